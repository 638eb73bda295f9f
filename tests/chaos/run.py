"""One chaos run, from a fresh local AWS emulator to its figures."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import farcall_local
from tests.chaos import cluster, truth
from tests.chaos import plan as plans
from tests.chaos.events import Storm, left_behind
from tests.chaos.work import read
from tests.support.proxy import SLOW_S, Proxy

#: What the requests of each service meet. "expired" now and then: a container's keys are renewed.
CHANCES = {
    "s3 *": {
        "error": 0.02,
        "slow down": 0.02,
        "slow": 0.01,
        "reset": 0.02,
        "lost": 0.02,
        "truncated": 0.02,
        "expired": 0.005,
    },
    "batch *": {
        "throttled": 0.04,
        "error": 0.03,
        "slow": 0.02,
        "reset": 0.03,
        "lost": 0.04,
        "truncated": 0.03,
        "expired": 0.005,
    },
    "*": {"throttled": 0.03, "error": 0.03, "reset": 0.03, "lost": 0.03, "truncated": 0.03},
}

_CPUS = 8
_STEP_S = 0.05
_SETTLE_S = 30.0
_ROOT = Path(__file__).parents[2]


@dataclass
class Record:
    """What is left of a run for the accountant.

    Attributes:
        plan: What was to happen.
        told: What the clients noted.
        ledger: What the tasks noted.
        dealt: What happened to containers and clients.
        truth: What the account says at the end.
        clients: How each process of a client ended: exit code and complaints, by its name.
        requests: How many, by operation.
        injected: How many faults, by operation and kind.
        processes: Those that are still there.
        seconds: How long it took.
        late: Whether it was cut off.
    """

    plan: plans.Plan
    told: list = field(default_factory=list)
    ledger: list = field(default_factory=list)
    dealt: list = field(default_factory=list)
    truth: truth.Truth = field(default_factory=truth.Truth)
    clients: dict = field(default_factory=dict)
    requests: dict = field(default_factory=dict)
    injected: dict = field(default_factory=dict)
    processes: list = field(default_factory=list)
    seconds: float = 0.0
    late: bool = False


def run(seed, tasks, minutes, folder, clients=plans.CLIENTS, *, kubernetes=False):
    """Make a run.

    Args:
        seed: What decides it.
        tasks: How many, about.
        minutes: After which it is cut off, and has failed.
        folder: An empty folder for what it writes.
        clients: Processes that share the tasks.
        kubernetes: Whether the tasks run there, and not on Batch.
    """
    record = Record(plans.make(seed, tasks, clients))
    began = time.monotonic()
    token = secrets.token_hex(8)
    os.environ["CHAOS_TOKEN"] = token  # whoever is started from here on bears it
    try:
        with farcall_local.start(cpus=_CPUS, kubernetes=kubernetes) as aws:
            aws.configure(stop_grace_s=5.0)
            if kubernetes:
                aws.kubernetes.configure(retry_s=0.2)
            with Proxy(aws.endpoint_url, CHANCES, seed=seed) as proxy:
                crew = _Crew(record, aws, proxy.url, Path(folder), token, (seed, tasks, clients))
                try:
                    record.late = not crew.work(began + minutes * 60)
                finally:
                    crew.end()
                record.requests, record.injected = dict(proxy.counts), dict(proxy.injected)
                if kubernetes:
                    record.injected |= {f"api {name}": n for name, n in crew.storm.met.items()}
            record.truth = crew.ask()
    finally:
        del os.environ["CHAOS_TOKEN"]
    record.told, record.ledger = read(crew.told), read(crew.ledger)
    record.processes = left_behind(token, aws.endpoint_url)
    record.seconds = time.monotonic() - began
    return record


class _Crew:
    """The clients, and those that recover what killed ones left."""

    def __init__(self, record, aws, endpoint, folder, token, drawn):
        self._record, self._aws, self._endpoint, self._folder = record, aws, endpoint, folder
        self._token, self._drawn = token, drawn
        self.told, self.ledger = str(folder / "told"), str(folder / "ledger")
        self._kubernetes = "KUBECONFIG" in aws.environment
        storm = cluster.ClusterStorm if self._kubernetes else Storm
        self.storm = storm(record.plan, aws, self.ledger)
        record.dealt = self.storm.dealt
        self._processes = {}  # the latest of each kind
        self._all = {}
        self._to_recover = []  # client and moment

    def work(self, deadline):
        """Have everything done; say whether it was before the deadline."""
        for client in range(len(self._record.plan.clients)):
            self._start("client", client)
        seen = 0
        while time.monotonic() < deadline:
            self.storm.step(self._processes)
            killed = [blow["client"] for blow in self.storm.dealt if "client" in blow]
            for client in killed[seen:]:
                # What the killed one had sent may still be on its way.
                self._to_recover.append((client, time.monotonic() + SLOW_S + 1))
            seen = len(killed)
            self._recover()
            if not self._to_recover and all(p.poll() is not None for p in self._all.values()):
                return self._settled(deadline)
            time.sleep(_STEP_S)
        return False

    def end(self):
        """Kill who is left, and note how each has ended."""
        for name, process in self._all.items():
            if process.poll() is None:
                process.kill()
            process.wait()
            complaints = (self._folder / f"{name}.err").read_text(errors="replace")
            self._record.clients[name] = process.returncode, complaints

    def ask(self):
        """Return what the account says."""
        return (cluster if self._kubernetes else truth).ask(self._aws.environment)

    def _recover(self):
        for client, moment in list(self._to_recover):
            if time.monotonic() >= moment:
                self._to_recover.remove((client, moment))
                self._start("recovery", client)

    def _settled(self, deadline):
        """Wait until the jobs that were told to end have ended; the accountant names the rest."""
        until = min(deadline, time.monotonic() + _SETTLE_S)
        while self.ask().unfinished and time.monotonic() < until:
            time.sleep(0.5)
        return True

    def _start(self, kind, client):
        name = f"{kind} {client}"
        while name in self._all:
            name += " again"
        seed, tasks, clients = self._drawn
        extra = {"AWS_ENDPOINT_URL_S3": self._endpoint, "CHAOS_TOKEN": self._token}
        variables = [{"name": key, "value": value} for key, value in extra.items()]
        options = {
            "vcpu": 1,
            "memory": 1,
            "retry_attempts": plans.ATTEMPTS,
            "retry_on": "failure",
            "linger_s": 0.05,
            "poll_freq": 2,
            "prefix": _prefix(client),
            "cache_dir": str(self._folder),
        }
        if self._kubernetes:
            container = {"name": "task", "env": variables}
            options["pod_overlay"] = {"spec": {"containers": [container]}}
        else:
            options["job_definition_extra"] = {"containerProperties": {"environment": variables}}
        spec = {
            "seed": seed,
            "tasks": tasks,
            "clients": clients,
            "client": client,
            "name": name,
            "told": self.told,
            "ledger": self.ledger,
            "options": options,
            "recovers": kind == "recovery",
        }
        with (self._folder / f"{name}.err").open("wb") as complaints:
            process = subprocess.Popen(
                [sys.executable, "-W", "always", "-m", "tests.chaos.client", json.dumps(spec)],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stderr=complaints,
            )
        self._all[name] = self._processes[kind, client] = process

    def _environment(self):
        own = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "FARCALL_"))}
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
        there = {**self._aws.environment, "AWS_ENDPOINT_URL": self._endpoint}
        return {**own, **there, "HOME": str(self._folder), "PYTHONPATH": path}


def _prefix(client):
    return f"chaos/{client}"
