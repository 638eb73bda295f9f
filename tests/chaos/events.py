"""What happens to containers, hosts and clients while a chaos run is under way."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from random import Random

import psutil

from farcall_local.runners.process import FOLDER
from tests.chaos.work import read

NO_START = "CannotPullContainerError: pull image manifest has been retried 5 time(s): i/o timeout"


class Storm:
    """Deals the blows of a plan, each as soon as its moment has come and there is somebody to hit.

    Args:
        plan: The plan.
        aws: The local AWS emulator, whose processes the containers are.
        ledger: Path of the tasks' ledger.

    Attributes:
        dealt: What happened: kind, and job and attempt, or the client.
    """

    def __init__(self, plan, aws, ledger):
        self.dealt = []
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
        """Return whether there was somebody to hit, or never will be."""
        if blow.client is not None:
            process = clients[blow.kind, blow.client]
            if process.poll() is None:
                _kill(process)
                self.dealt.append({"kind": blow.kind, "client": blow.client})
            return True
        if blow.kind == "start":
            self._aws.break_starts(NO_START)  # of whichever comes next
            self.dealt.append({"kind": "start"})
            return True
        hit = [(d["job"], d["attempt"]) for d in self.dealt if "job" in d]
        found = [c for c in self._containers() if c[1:] not in hit]
        if not found:
            return False
        process, job, attempt = self._chance.choice(sorted(found, key=lambda c: c[1:]))
        if self._hit(blow.kind, process, job):
            self.dealt.append({"kind": blow.kind, "job": job, "attempt": attempt})
            return True
        return False

    def _hit(self, kind, process, job):
        try:
            if kind == "host":
                self._aws.reclaim(job)
            elif kind == "container":
                os.killpg(process.pid, signal.SIGKILL)
            else:
                children = process.children()
                if not children:
                    return False
                children[0].kill()
        except (psutil.Error, ProcessLookupError, ValueError):  # it has just ended
            return False
        return True

    def _containers(self):
        """Return the running containers: process, job and attempt.

        They are known by their folders: a forked process has its parent's environment in /proc.
        """
        found = []
        for process in psutil.Process(self._aws._process.pid).children(recursive=True):
            try:
                folder = Path(process.cwd()).name
                if os.getsid(process.pid) == process.pid and folder.startswith(FOLDER):
                    job, attempt, _ = folder.removeprefix(FOLDER).rsplit("-", 2)
                    job = job.replace(".", ":")
                    found.append((process, job, int(attempt)))
            except (psutil.Error, ProcessLookupError):  # ended
                continue
        return found


def _kill(client):
    """Kill a client, and with it the commands that it has just called."""
    client.send_signal(signal.SIGSTOP)  # so that it calls no others
    commands = psutil.Process(client.pid).children(recursive=True)
    for process in (client, *commands):
        process.kill()
    client.wait()


def left_behind(*words):
    """Return the processes that bear a word in their environment, except this one."""
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
