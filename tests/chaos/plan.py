"""What a chaos run will do. The seed decides it; when it happens, the machine does too."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from random import Random

#: How tasks are submitted and waited for. A map that is to be "complete" ends at its first error,
#: and its owner has the rest run by retries, until each call has its value.
WAYS = ("await", "submit", "map", "each", "results", "chunks", "complete")

ATTEMPTS = 4
RETRIES = 5
"""By the owner, at most: more than one where blows keep a call from its value."""

_CANCELLED = {"await": 0.5, "submit": 0.5, "map": 0.2, "each": 0.2, "results": 0.2, "chunks": 0.2}
_RETRIED = {"submit": 0.6, "map": 0.6, "each": 0.6, "results": 0.6, "chunks": 0.6, "complete": 1}
_RECOVERIES_KILLED = 0.5
_SHARES = {"container": 0.08, "child": 0.04, "host": 0.04, "start": 0.02}  # of the tasks
CLIENTS = 4

#: What a task comes to whose container, child or host was taken away in its last attempt.
TAKEN = {"killed", "OutOfMemoryError", "HostLostError", "ImageError", "JobError"}
_ENDS = {"raise": "raised", "exit": "exit", "segfault": "segfault", "forever": "cancelled"}

_KINDS = {"return": 8, "sleep": 8, "print": 3, "raise": 2, "exit": 1, "segfault": 1, "large": 2}
_MENDS = 3  # where it is run again
_FAIL = ("raise", "exit", "segfault")  # and do so again
_MIB = 1024 * 1024
_IN_PARTS = 66 * _MIB  # more than S3 is sent by one request
_SHARED = 3 * _MIB // 2


@dataclass(frozen=True)
class Work:
    """One call of `work.work`.

    Attributes:
        number: Its name in the whole run.
        kind: One of `work.KINDS`.
        seconds: How long it sleeps first.
        size: Bytes of the value.
        argument: Bytes of the argument.
        shared: Bytes of another argument, which all calls that have one have in common.
    """

    number: int
    kind: str
    seconds: float = 0.0
    size: int = 0
    argument: int = 0
    shared: int = 0

    def as_argument(self):
        return asdict(self)

    def end(self, nth):
        """Return what it comes to if nothing happens to it, in one of its retries; 0 for none."""
        if self.kind == "fixes":
            return "value" if nth else "raised"
        return _ENDS.get(self.kind, "value")

    def is_to_run_again(self, nth, end):
        """Return whether its owner retries it after an end: once, and more often after blows."""
        return end != "value" if nth == 0 else end in TAKEN and self.end(nth) == "value"


@dataclass(frozen=True)
class Order:
    """Tasks that a client asks for together, in one of the `WAYS`.

    Attributes:
        way: How.
        works: The calls.
        start_s: When, after the client's start.
        chunksize: Calls in one task.
        cancel_s: When after `start_s` its owner cancels it; None for never.
        retried: Whether its owner has run again what failed.
    """

    way: str
    works: tuple[Work, ...]
    start_s: float
    chunksize: int = 1
    cancel_s: float | None = None
    retried: bool = False


@dataclass(frozen=True)
class Blow:
    """Something that happens to containers or clients.

    Attributes:
        kind: ``container``, ``child`` (its task's process), ``client`` and ``recovery`` are
            killed, ``host`` is reclaimed, the next ``start`` of a container fails.
        begun: How many tasks must have begun before: in all, or of the client.
        delay_s: How long after that.
        client: Of which client's it is; None for any.
    """

    kind: str
    begun: int
    delay_s: float
    client: int | None = None


@dataclass
class Plan:
    """A whole run."""

    seed: int
    clients: list[list[Order]] = field(default_factory=list)
    blows: list[Blow] = field(default_factory=list)

    def works(self, client=None):
        """Return all calls, or a client's, with the order each belongs to, by their number."""
        orders = [o for i, own in enumerate(self.clients) if client in (None, i) for o in own]
        return {work.number: (work, order) for order in orders for work in order.works}

    def client_of(self, number):
        return next(i for i in range(len(self.clients)) if number in self.works(i))


def make(seed, tasks, clients=CLIENTS):
    """Draw a run.

    Args:
        seed: Any number.
        tasks: How many, about.
        clients: Processes that share them; about half of them will be killed.
    """
    plan = Plan(seed)
    numbers = iter(range(10 * tasks))
    for client in range(clients):
        chance = Random(f"{seed} client {client}")  # so that clients are drawn apart
        plan.clients.append(_orders(chance, numbers, tasks // clients))
    chance = Random(f"{seed} blows")
    share = tasks // clients
    for nth, client in enumerate(chance.sample(range(clients), (clients + 1) // 2)):
        # The first in the midst of its work, others at any time, also before they have begun.
        begun = chance.randrange(1, share // 2 + 2)
        begun = begun if nth == 0 else chance.choice([0, begun, begun])
        plan.blows.append(Blow("client", begun, chance.uniform(0, 3), client))
        if chance.random() < _RECOVERIES_KILLED:
            plan.blows.append(Blow("recovery", 0, chance.uniform(1, 6), client))
    for kind, share in _SHARES.items():
        for _ in range(max(1, round(share * tasks))):
            begun = chance.randrange(max(1, int(0.6 * tasks)))
            plan.blows.append(Blow(kind, begun, chance.uniform(0, 1)))
    return plan


def _orders(chance, numbers, tasks):
    """Draw the orders of one client; each way comes at least once where there are enough.

    The first one has two tasks run again, one of them by the command.
    """
    orders = []
    ways = sorted(chance.sample(WAYS, len(WAYS)), key=lambda way: way != "submit")
    span_s = tasks / 8
    while tasks > 0:
        way = ways[len(orders) % len(ways)]
        most = 4 if way in ("await", "submit") else 12
        count = min(tasks, chance.randint(2, most))
        cancelled = chance.random() < _CANCELLED.get(way, 0) and bool(orders)
        retried = not orders or (not cancelled and chance.random() < _RETRIED.get(way, 0))
        works = [_work(chance, next(numbers), way, retried=retried) for _ in range(count)]
        for at in range({"complete": 1}.get(way, 0 if orders else min(2, count))):
            works[at] = Work(works[at].number, "fixes", 0.1, 64)
        cancel_s = None
        if cancelled:
            works[-1] = Work(works[-1].number, "forever", 600)
            cancel_s = chance.choice([chance.uniform(0, 0.6), chance.uniform(0.6, 8)])
        start_s = chance.uniform(0, span_s)
        chunksize = chance.randint(2, 4) if way == "chunks" else 1
        orders.append(Order(way, tuple(works), start_s, chunksize, cancel_s, retried))
        tasks -= count
    return orders


def _work(chance, number, way, *, retried):
    without = {"chunks": ("exit", "large"), "complete": _FAIL}.get(way, ())
    kinds = {k: n for k, n in _KINDS.items() if k not in without}
    if retried:
        kinds["fixes"] = _MENDS
    (kind,) = chance.choices([*kinds], [*kinds.values()])
    size = chance.choice([64, 1024])
    if kind == "large":
        size = chance.choice([_MIB, 5 * _MIB, 9 * _MIB, _IN_PARTS])
    seconds = {"sleep": chance.uniform(0.5, 3), "raise": 0.1}.get(kind, 0.0)
    argument = chance.choice([0] * 9 + [256 * 1024])
    shared = chance.choice([0, 0, 0, _SHARED])
    return Work(number, kind, seconds, size, argument, shared)
