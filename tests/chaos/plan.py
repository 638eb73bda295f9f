"""The plan of a chaos run. The seed decides what happens; the machine also decides when."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from random import Random

#: How a client submits tasks and collects their results.
WAYS = ("await", "submit", "map", "results", "chunks")

ATTEMPTS = 4

#: Values of the options: a hungry task needs the second size.
MEMORY, VCPU = (1, 2), (1, 2)
CLIENTS = 4

_RECOVERIES_KILLED = 0.5
_SHARES = {"container": 0.08, "child": 0.04, "host": 0.04, "start": 0.02}  # of the tasks

#: Possible ends of a task whose container, child or host was lost in its last attempt.
TAKEN = {"killed", "OutOfMemoryError", "HostLostError", "ImageError", "JobError"}
_ENDS = {"raise": "raised", "exit": "exit", "segfault": "segfault", "forever": "cancelled"}

_KINDS = {
    "return": 8,
    "sleep": 8,
    "print": 3,
    "raise": 2,
    "exit": 1,
    "segfault": 1,
    "large": 2,
    "hungry": 2,
}
_MIB = 1024 * 1024
_IN_PARTS = 66 * _MIB  # too large for one request to S3
_SHARED = 3 * _MIB // 2


@dataclass(frozen=True)
class Work:
    """One call of `work.work`.

    Attributes:
        number: Its number, unique in the run.
        kind: One of `_KINDS`, such as ``hungry``, which needs more than the first size of memory,
            or ``forever``, which its client cancels.
        seconds: How long it sleeps first.
        size: Bytes of the result.
        argument: Bytes of the argument.
        shared: Bytes of another argument, which is the same for all calls that have one.
    """

    number: int
    kind: str
    seconds: float = 0.0
    size: int = 0
    argument: int = 0
    shared: int = 0

    def as_argument(self):
        return asdict(self)

    @property
    def end(self):
        """How it ends if nothing happens to it."""
        return _ENDS.get(self.kind, "value")


@dataclass(frozen=True)
class Order:
    """Calls that a client submits together, in one of the `WAYS`.

    Attributes:
        start_s: When it is submitted, after the client's start.
        chunksize: Calls in one task.
        cancel_s: When after `start_s` its client cancels it; None for never.
    """

    way: str
    works: tuple[Work, ...]
    start_s: float
    chunksize: int = 1
    cancel_s: float | None = None


@dataclass(frozen=True)
class Blow:
    """A failure of a container or client.

    Attributes:
        kind: ``container``, ``child`` (its task's process), ``client`` and ``recovery`` are
            killed, ``host`` is reclaimed, the next ``start`` of a container fails.
        begun: How many tasks must have begun before: in all, or of the client.
        delay_s: How long after that.
        client: Number of the client; None for any.
    """

    kind: str
    begun: int
    delay_s: float
    client: int | None = None


@dataclass
class Plan:
    """A run: the orders of each client, and the blows."""

    seed: int
    clients: list[list[Order]] = field(default_factory=list)
    blows: list[Blow] = field(default_factory=list)

    def works(self, client=None):
        """Return all calls, or a client's, each with its order, by number."""
        orders = [o for i, own in enumerate(self.clients) if client in (None, i) for o in own]
        return {work.number: (work, order) for order in orders for work in order.works}

    def client_of(self, number):
        return next(i for i in range(len(self.clients)) if number in self.works(i))


def make(seed, tasks, clients=CLIENTS):
    """Draw a run.

    Args:
        seed: Any number.
        tasks: Approximate number of calls.
        clients: Processes that share them; half of them will be killed.
    """
    plan = Plan(seed)
    numbers = iter(range(10 * tasks))
    for client in range(clients):
        chance = Random(f"{seed} client {client}")  # so that clients are drawn independently
        plan.clients.append(_orders(chance, numbers, tasks // clients))
    chance = Random(f"{seed} blows")
    share = tasks // clients
    for nth, client in enumerate(chance.sample(range(clients), (clients + 1) // 2)):
        # The first is killed during its work, others at any time, perhaps before any task began.
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
    """Draw the orders of one client; with enough tasks, each way comes at least once."""
    orders = []
    ways = chance.sample(WAYS, len(WAYS))
    span_s = tasks / 8
    while tasks > 0:
        way = ways[len(orders) % len(ways)]
        is_single = way in ("await", "submit")
        count = min(tasks, chance.randint(2, 4 if is_single else 12))
        works = [_work(chance, next(numbers), way) for _ in range(count)]
        cancel_s = None
        if chance.random() < (0.5 if is_single else 0.2):
            works[-1] = Work(works[-1].number, "forever", 600)
            cancel_s = chance.choice([chance.uniform(0, 0.6), chance.uniform(0.6, 8)])
        start_s = chance.uniform(0, span_s)
        chunksize = chance.randint(2, 4) if way == "chunks" else 1
        orders.append(Order(way, tuple(works), start_s, chunksize, cancel_s))
        tasks -= count
    return orders


def _work(chance, number, way):
    without = ("exit", "large") if way == "chunks" else ()
    kinds = {k: n for k, n in _KINDS.items() if k not in without}
    (kind,) = chance.choices([*kinds], [*kinds.values()])
    size = chance.choice([64, 1024])
    if kind == "large":
        size = chance.choice([_MIB, 5 * _MIB, 9 * _MIB, _IN_PARTS])
    seconds = {"sleep": chance.uniform(0.5, 3), "raise": 0.1}.get(kind, 0.0)
    argument = chance.choice([0] * 9 + [256 * 1024])
    shared = chance.choice([0, 0, 0, _SHARED])
    return Work(number, kind, seconds, size, argument, shared)
