"""A chaos run on Kubernetes: what befalls pods and the API, and what the cluster says at the end.

Jobs are told as AWS Batch would tell of them, so that one accountant does for both.
"""

from __future__ import annotations

import contextlib
import time
from http import HTTPStatus
from random import Random

import psutil
from kubernetes import client, config

from farcall_local.runners.process import FOLDER
from tests.chaos.events import Storm
from tests.chaos.truth import Truth, ask_bucket

JOB_NAME = "batch.kubernetes.io/job-name"
INDEX = "batch.kubernetes.io/job-completion-index"

#: What the API meets at each step, with its chance: in a run of a minute each some ten times.
_API_BLOWS = {
    "lost answer": (0.02, lambda hooks, _: hooks.lose_answer()),
    "cut watches": (0.01, lambda hooks, _: hooks.cut_watches()),
    "compaction": (0.005, lambda hooks, _: (hooks.compact(), hooks.cut_watches())),
    "throttling": (0.01, lambda hooks, chance: hooks.throttle(chance.randint(1, 8), 1)),
    "restart": (0.003, lambda hooks, _: hooks.restart()),
}

#: How hosts are taken away: none of these counts as a try of a task.
_TAKEN = (
    lambda hooks, pod: hooks.evict(pod),
    lambda hooks, pod: hooks.evict(pod, api=True),
    lambda hooks, pod: hooks.preempt(pod),
)


class ClusterStorm(Storm):
    """Deals the blows of a plan to pods, and others to the API on its own.

    Args:
        plan: The plan.
        aws: The local Kubernetes emulator.
        ledger: Path of the tasks' ledger.

    Attributes:
        met: How often the API met each of its blows.
    """

    def __init__(self, plan, aws, ledger):
        super().__init__(plan, aws, ledger)
        self.met = dict.fromkeys(_API_BLOWS, 0)
        self._hooks = aws.kubernetes
        self._api_chance = Random(f"{plan.seed} API")
        self._left = [blow for blow in self._left if blow.kind != "start"]

    def step(self, clients):
        """Deal what is due, and perhaps something to the API."""
        super().step(clients)
        for name, (chance, deal) in _API_BLOWS.items():
            if self._api_chance.random() < chance:
                self.met[name] += 1
                deal(self._hooks, self._api_chance)

    def _hit(self, kind, process, job):
        if kind != "host":
            return super()._hit(kind, process, job)
        try:
            self._chance.choice(_TAKEN)(self._hooks, _pod(process))
        except (psutil.Error, ValueError):  # it has just ended
            return False
        return True

    def _containers(self):
        found = []
        for process, pod, attempt in super()._containers():
            name, index, _ = pod.rsplit("-", 2)
            found.append((process, _id(name, index, self._sizes(name)), attempt))
        return found

    def _sizes(self, name):
        """Return how many tasks a job has; nobody changes it."""
        known = self.__dict__.setdefault("_known_sizes", {})
        if name not in known:
            with _jobs(self._aws.environment) as (jobs, namespace):
                known[name] = jobs.read_namespaced_job(name, namespace).spec.completions
        return known[name]


def _pod(process):
    """Return the pod whose container a process is: its folder is named after it."""
    from pathlib import Path

    job = Path(process.cwd()).name.removeprefix(FOLDER).rsplit("-", 2)[0]
    return job.replace(".", ":")


def _id(name, index, size):
    return f"{name}:{index}" if size > 1 else name


@contextlib.contextmanager
def _api(environment):
    file = environment["KUBECONFIG"]
    with contextlib.closing(config.new_client_from_config(file, persist_config=False)) as api:
        yield api, environment["FARCALL_NAMESPACE"]


@contextlib.contextmanager
def _jobs(environment):
    with _api(environment) as (api, namespace):
        yield client.BatchV1Api(api), namespace


def _listed(ask, namespace):
    """Return a list's items; a request that the storm throttles is made again."""
    while True:
        try:
            return ask(namespace).items
        except client.ApiException as error:
            if error.status != HTTPStatus.TOO_MANY_REQUESTS:
                raise
            time.sleep(float(error.headers["Retry-After"]))


def ask(environment):
    """Ask cluster and bucket for everything."""
    truth = Truth()
    with _api(environment) as (api, namespace):
        found = _listed(client.BatchV1Api(api).list_namespaced_job, namespace)
        pods = _listed(client.CoreV1Api(api).list_namespaced_pod, namespace)
    by_index = {}
    for pod in pods:
        labels, annotations = pod.metadata.labels or {}, pod.metadata.annotations or {}
        place = (labels.get(JOB_NAME), annotations.get(INDEX))
        by_index.setdefault(place, []).append(pod)
    for job in found:
        truth.jobs.update(_told(job, by_index))
    ask_bucket(truth, environment)
    return truth


def _told(job, by_index):
    """Return what Batch would say of a Job and its indexes, by ID."""
    name, size = job.metadata.name, job.spec.completions
    variables = [
        {"name": found.name, "value": found.value or ""}
        for found in job.spec.template.spec.containers[0].env or ()
    ]
    ended = _ended(job)
    whole = {
        "jobId": name,
        "status": ended or "RUNNING",
        "statusReason": (job.metadata.annotations or {}).get("farcall/reason", ""),
        "container": {"environment": variables},
        "attempts": [],
    }
    done = _indexes(job.status.completed_indexes)
    failed = _indexes(job.status.failed_indexes)
    leaves = {}
    for index in range(size):
        status = "SUCCEEDED" if index in done else "FAILED" if index in failed or ended else ""
        attempts = [_attempt(pod) for pod in by_index.get((name, str(index)), ())]
        leaves[_id(name, index, size)] = {
            **whole,
            "jobId": _id(name, index, size),
            "status": status or "RUNNING",
            "attempts": attempts,
        }
    if size == 1:
        return leaves
    return {name: {**whole, "arrayProperties": {"size": size}}, **leaves}


def _ended(job):
    for found in job.status.conditions or ():
        if found.status == "True" and found.type in ("Complete", "Failed"):
            return "SUCCEEDED" if found.type == "Complete" else "FAILED"
    return ""


def _attempt(pod):
    statuses = pod.status.container_statuses or ()
    ended = statuses[0].state.terminated if statuses else None
    return {
        "container": {"exitCode": ended.exit_code if ended else None},
        "statusReason": pod.status.reason or "",
        "startedAt": str(pod.status.start_time),
        "stoppedAt": str(ended.finished_at) if ended else "",
    }


def _indexes(text):
    """Return the numbers of ``1,3-5``."""
    found = set()
    for part in filter(None, (text or "").split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found
