"""One chaos run on a new local emulator."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import click
from kubernetes import config

from tests import emulators
from tests.chaos import plan as plans
from tests.chaos import truth
from tests.chaos.storm import ClusterStorm, PodStorm, Storm, left_behind
from tests.chaos.work import Bucket, read
from tests.support.proxy import SLOW_S, Proxy

#: Chances of faults by service. "expired" is rare: a container renews its keys.
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
_CLUSTER_STEP_S = 1.0  # a step reads the tasks' notes from the bucket
_SETTLE_S = 30.0
_SECOND_QUEUE = "chaos-second"
_ROOT = Path(__file__).parents[2]


@dataclass
class Record:
    """What a run leaves for the accountant.

    Attributes:
        told: Notes of the clients.
        ledger: Notes of the tasks.
        dealt: Failures of containers, hosts and clients.
        truth: Jobs and objects at the end.
        clients: Exit code and stderr of each client process, by name.
        requests: Number of requests, by operation.
        injected: Number of faults, by operation and kind.
        processes: Processes that still run.
        late: Whether the run was cut off.
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
    """Make a run, see `plan.make`; its files are written to an empty folder."""
    record = Record(plans.make(seed, tasks, clients))
    began = time.monotonic()
    token = secrets.token_hex(8)
    os.environ["CHAOS_TOKEN"] = token  # every process of the run inherits it
    try:
        with emulators.start(cpus=_CPUS, kubernetes=kubernetes) as aws:
            aws.configure(stop_grace_s=5.0)
            if not kubernetes:
                truth.create_queue(aws.environment, _SECOND_QUEUE)
            if kubernetes:
                aws.kubernetes.configure(retry_s=0.2)
            with Proxy(aws.endpoint_url, CHANCES, seed=seed) as proxy:
                crew = _Crew(record, aws, proxy.url, Path(folder), token, (seed, tasks, clients))
                crew.run(began + minutes * 60)
                record.requests, record.injected = dict(proxy.counts), dict(proxy.injected)
                record.injected |= {f"api {name}": n for name, n in crew.storm.met.items()}
            record.truth = truth.request(aws.environment)
    finally:
        del os.environ["CHAOS_TOKEN"]
    record.processes = left_behind(token, aws.endpoint_url)
    record.seconds = time.monotonic() - began
    return record


def run_on_cluster(seed, tasks, minutes, folder, kubeconfig, clients=plans.CLIENTS):
    """Make a run on the cluster of a kubeconfig file, whose clients and pods are killed.

    The options and keys are those of the environment, such as ``FARCALL_S3_BUCKET_NAME``. No
    proxy is used: the pods reach the bucket at the address that the clients use.
    """
    record = Record(plans.make(seed, tasks, clients))
    began = time.monotonic()
    token = secrets.token_hex(8)
    cluster = Cluster(kubeconfig, token)
    if any(key.startswith("chaos/") for key in truth.request(cluster.environment).keys):
        raise click.ClickException(
            f"bucket {cluster.bucket} contains objects of another run; delete those under chaos/"
        )
    os.environ["CHAOS_TOKEN"] = token
    try:
        crew = _Crew(record, cluster, "", Path(folder), token, (seed, tasks, clients))
        crew.run(began + minutes * 60)
        record.truth = truth.request(cluster.environment)
    finally:
        del os.environ["CHAOS_TOKEN"]
    record.processes = left_behind(token)
    record.seconds = time.monotonic() - began
    truth.delete(cluster.environment, record.truth)
    Bucket(crew.ledger).delete()
    return record


class Cluster:
    """A cluster, and the bucket of its jobs.

    Args:
        kubeconfig: Path of the kubeconfig file; its context selects the namespace.
        token: The run's name.
    """

    def __init__(self, kubeconfig, token):
        _, current = config.list_kube_config_contexts(kubeconfig)
        options = {k: v for k, v in os.environ.items() if k.startswith(("AWS_", "FARCALL_"))}
        self.environment = options | {
            "FARCALL_BACKEND": "kubernetes",
            "FARCALL_NAMESPACE": current["context"].get("namespace") or "default",
            "KUBECONFIG": str(kubeconfig),
        }
        self.bucket = options.get("FARCALL_S3_BUCKET_NAME", "")
        if not self.bucket:
            raise click.ClickException("set FARCALL_S3_BUCKET_NAME to the bucket of the jobs")
        self.ledger = {
            "bucket": self.bucket,
            "prefix": f"chaos-{token}",
            "endpoint": options.get("AWS_ENDPOINT_URL_S3") or options.get("AWS_ENDPOINT_URL", ""),
            "region": options.get("AWS_REGION", "us-east-1"),
        }


class _Crew:
    """The clients, and those that recover the runs of killed clients."""

    def __init__(self, record, aws, endpoint, folder, token, drawn):
        self._record, self._aws, self._endpoint, self._folder = record, aws, endpoint, folder
        self._token, self._drawn = token, drawn
        self.told, self.ledger = str(folder / "told"), str(folder / "ledger")
        self._kubernetes = "KUBECONFIG" in aws.environment
        self._step_s, storm = _STEP_S, ClusterStorm if self._kubernetes else Storm
        if isinstance(aws, Cluster):
            self.ledger, self._step_s, storm = aws.ledger, _CLUSTER_STEP_S, PodStorm
        self.storm = storm(record.plan, aws, self.ledger)
        record.dealt = self.storm.dealt
        self._processes = {}  # the latest of each kind
        self._all = {}
        self._to_recover = []  # client and moment

    def run(self, deadline):
        """Start the clients, and record what they and the tasks have noted."""
        try:
            self._record.late = not self.work(deadline)
        finally:
            self.end()
        self._record.told, self._record.ledger = read(self.told), read(self.ledger)

    def work(self, deadline):
        """Start the clients and wait; return whether all ended before the deadline."""
        for client in range(len(self._record.plan.clients)):
            self._start("client", client)
        seen = 0
        while time.monotonic() < deadline:
            self.storm.step(self._processes)
            killed = [blow["client"] for blow in self.storm.dealt if "client" in blow]
            for client in killed[seen:]:
                # A slow request of the killed client may still arrive.
                self._to_recover.append((client, time.monotonic() + SLOW_S + 1))
            seen = len(killed)
            self._recover()
            if not self._to_recover and all(p.poll() is not None for p in self._all.values()):
                return self._settled(deadline)
            time.sleep(self._step_s)
        return False

    def end(self):
        """Kill the remaining processes, and record how each has ended."""
        for name, process in self._all.items():
            if process.poll() is None:
                process.kill()
            process.wait()
            complaints = (self._folder / f"{name}.err").read_text(errors="replace")
            self._record.clients[name] = process.returncode, complaints

    def _recover(self):
        for client, moment in list(self._to_recover):
            if time.monotonic() >= moment:
                self._to_recover.remove((client, moment))
                self._start("recovery", client)

    def _settled(self, deadline):
        """Wait until the cancelled jobs have ended; the accountant names the rest."""
        until = min(deadline, time.monotonic() + _SETTLE_S)
        while truth.request(self._aws.environment).unfinished and time.monotonic() < until:
            time.sleep(0.5)
        return True

    def _start(self, kind, client):
        name = f"{kind} {client}"
        while name in self._all:
            name += " again"
        seed, tasks, clients = self._drawn
        extra = {"CHAOS_TOKEN": self._token}
        if self._endpoint:
            extra["AWS_ENDPOINT_URL_S3"] = self._endpoint
        variables = [{"name": key, "value": value} for key, value in extra.items()]
        options = {
            "vcpu": plans.VCPU,
            "memory": plans.MEMORY,
            "retry_attempts": plans.ATTEMPTS,
            "retry_on": "failure",
            "linger_s": 0.05,
            "poll_freq": 2,
            "prefix": f"chaos/{client}",
            "cache_dir": str(self._folder),
        }
        if self._kubernetes:
            container = {"name": "task", "env": variables}
            options["pod_overlay"] = {"spec": {"containers": [container]}}
        else:
            options["queue"] = [self._aws.environment["FARCALL_QUEUE"], _SECOND_QUEUE]
            options["queue_patience"] = 2
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
        there = dict(self._aws.environment)
        if self._endpoint:
            there["AWS_ENDPOINT_URL"] = self._endpoint
        return {**own, **there, "HOME": str(self._folder), "PYTHONPATH": path}
