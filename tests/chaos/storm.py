"""The failures of containers, hosts, clients and the Kubernetes API during a chaos run."""

import os
import signal
import time
from pathlib import Path
from random import Random

import psutil

from farcall_local.runners.process import FOLDER
from tests.chaos import truth
from tests.chaos.work import read

NO_START = "CannotPullContainerError: pull image manifest has been retried 5 time(s): i/o timeout"


class Storm:
    """Deals the blows of a plan, each as soon as it is due and a target exists.

    Args:
        plan: The plan.
        aws: The local AWS emulator, whose child processes are the containers.
        ledger: Path of the tasks' ledger.

    Attributes:
        dealt: What happened: kind, and job and attempt, or the client.
        met: How often the API of Kubernetes met each of its failures.
    """

    def __init__(self, plan, aws, ledger):
        self.dealt = []
        self.met = {}
        self._names = {}  # of blows that hit something else than their kind says
        self._aws = aws
        self._ledger = ledger
        self._chance = Random(f"{plan.seed} storm")
        self._left = list(plan.blows)
        self._client_of = {n: i for i in range(len(plan.clients)) for n in plan.works(i)}
        self._due = {}

    def step(self, clients):
        """Deal what is due.

        Args:
            clients: Processes, by kind and number: ``("client", 0)``, ``("recovery", 0)``.
        """
        begun = [line["task"] for line in read(self._ledger) if line["what"] == "begin"]
        now = time.monotonic()
        for blow in list(self._left):
            own = [t for t in begun if blow.client in (None, self._client_of[t])]
            if len(own) < blow.begun:
                continue
            if blow.client is not None and (blow.kind, blow.client) not in clients:
                continue  # not started yet
            if now < self._due.setdefault(id(blow), now + blow.delay_s):
                continue
            if self._deal(blow, clients):
                self._left.remove(blow)

    def _deal(self, blow, clients):
        """Return whether the blow has hit its target, or its target no longer exists."""
        if blow.client is not None:
            process = clients[blow.kind, blow.client]
            if process.poll() is None:
                process.kill()
                process.wait()
                self.dealt.append({"kind": blow.kind, "client": blow.client})
            return True
        if blow.kind == "start":
            self._aws.break_starts(NO_START)
            self.dealt.append({"kind": "start"})
            return True
        hit = [(d["job"], d["attempt"]) for d in self.dealt if "job" in d]
        found = [c for c in self._containers() if c[1:] not in hit]
        if not found:
            return False
        process, job, attempt = self._chance.choice(sorted(found, key=lambda c: c[1:]))
        try:
            is_hit = self._hit(blow.kind, process, job)
        except (psutil.Error, ProcessLookupError, ValueError):  # it has just ended
            return False
        if is_hit:
            kind = self._names.get(blow.kind, blow.kind)
            self.dealt.append({"kind": kind, "job": job, "attempt": attempt})
        return is_hit

    def _hit(self, kind, process, job):
        if kind == "host":
            self._reclaim(process, job)
        elif kind == "container":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            children = process.children()
            if not children:
                return False
            children[0].kill()
        return True

    def _reclaim(self, process, job):
        self._aws.reclaim(job)

    def _containers(self):
        """Return the running containers: process, job and attempt.

        Their folders identify them: a forked process has its parent's environment in /proc.
        """
        found = []
        for process in psutil.Process(self._aws._process.pid).children(recursive=True):
            try:
                if os.getsid(process.pid) == process.pid and (name := _folder(process)):
                    job, attempt = name
                    found.append((process, job, int(attempt)))
            except (psutil.Error, ProcessLookupError):  # ended
                continue
        return found


def _folder(process):
    """Return the job or pod, and the attempt, after which a container's folder is named."""
    folder = Path(process.cwd()).name
    if not folder.startswith(FOLDER):
        return ()
    job, attempt, _ = folder.removeprefix(FOLDER).rsplit("-", 2)
    return job.replace(".", ":"), attempt


#: Faults of the API with their chance per step: about ten of each kind in a run of a minute.
_API_BLOWS = {
    "lost response": (0.02, lambda hooks, _: hooks.lose_response()),
    "cut connections": (0.01, lambda hooks, _: hooks.cut_connections()),
    "compaction": (0.005, lambda hooks, _: (hooks.compact(), hooks.cut_connections())),
    "throttling": (0.01, lambda hooks, chance: hooks.throttle(chance.randint(1, 8), 1)),
    "restart": (0.003, lambda hooks, _: hooks.restart()),
}

#: How hosts are lost: none of these counts as an attempt of a task.
_LOSSES = (
    lambda hooks, pod: hooks.evict(pod),
    lambda hooks, pod: hooks.preempt(pod),
)


class ClusterStorm(Storm):
    """Deals the blows of a plan to pods, and other failures to the API of Kubernetes."""

    def __init__(self, plan, aws, ledger):
        super().__init__(plan, aws, ledger)
        self.met = dict.fromkeys(_API_BLOWS, 0)
        self._hooks = aws.kubernetes
        self._api_chance = Random(f"{plan.seed} API")
        self._left = [blow for blow in self._left if blow.kind != "start"]
        self._known_sizes = {}

    def step(self, clients):
        super().step(clients)
        for name, (chance, deal) in _API_BLOWS.items():
            if self._api_chance.random() < chance:
                self.met[name] += 1
                deal(self._hooks, self._api_chance)

    def _reclaim(self, process, job):
        pod, _ = _folder(process)
        self._chance.choice(_LOSSES)(self._hooks, pod)

    def _containers(self):
        found = []
        for process, pod, attempt in super()._containers():
            name, index, _ = pod.rsplit("-", 2)
            if name not in self._known_sizes:
                self._known_sizes[name] = truth.completions(self._aws.environment, name)
            found.append((process, truth.job_id(name, index, self._known_sizes[name]), attempt))
        return found


class PodStorm(Storm):
    """Kills clients, and deletes pods of a cluster: at once, or as a drained node does.

    Processes in a cluster's containers cannot be killed from here, nor can its nodes.
    """

    def __init__(self, plan, cluster, ledger):
        super().__init__(plan, cluster, ledger)
        self._left = [blow for blow in self._left if blow.kind not in ("child", "start")]
        self._names = {"container": "pod"}

    def _hit(self, kind, process, job):
        truth.delete_pod(self._aws.environment, process, at_once=kind == "container")
        return True

    def _containers(self):
        return truth.running(self._aws.environment)


def left_behind(*words):
    """Return the processes that have a word in their environment, except this one."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and not set(words).isdisjoint(
                process.environ().values()
            ):
                found.append(f"{process.pid}: {' '.join(process.cmdline())[:120]}")
        except psutil.Error:
            continue
    return found
