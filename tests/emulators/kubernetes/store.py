"""Objects of the local Kubernetes emulator, in memory, with versions and history.

Everything is synchronous and belongs on one event loop. Documents in the store are immutable: to
change one, callers create a new document from its parts and pass it to `Store.update`. So ten
thousand pods share equal parts, and nothing is copied.

The store knows only one rule of a kind: a running Pod has a grace period. Defaults, validation and
rights are in `tests.emulators.kubernetes.resources`, garbage collection is in
`tests.emulators.kubernetes.garbage`.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
import uuid
from bisect import bisect_right
from collections.abc import Callable
from datetime import UTC, datetime
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, Self

from tests.emulators.kubernetes.errors import (
    AlreadyExistsError,
    ConflictError,
    ExpiredError,
    NotFoundError,
)
from tests.emulators.kubernetes.kinds import POD, Kind

Document = dict[str, Any]

#: Minimum number of changes in the history; the maximum is twice as many.
HISTORY = 40_000

_SERVER_SET = (
    *("uid", "creationTimestamp", "resourceVersion"),
    *("deletionTimestamp", "deletionGracePeriodSeconds"),
)

#: Characters of a generated name's random suffix, without vowels so that it forms no words.
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


class Change(NamedTuple):
    """Change of one object.

    Attributes:
        version: The change's resourceVersion.
        kind: Kind of the object.
        type: ``ADDED``, ``MODIFIED`` or ``DELETED``.
        document: The object after the change; for a deleted object its last state.
        before: The object before the change, None if it is new.
    """

    version: int
    kind: Kind
    type: str
    document: Document
    before: Document | None


Changes = list[Change]

#: Called with each change at once; it may record the change, but must not change the store.
Subscriber = Callable[[str, Kind, Document], None]


class Store:
    """Store of all objects, by kind, namespace and name.

    Attributes:
        version: The resourceVersion of the last change.
        compacted: The version before which there is no history.
    """

    def __init__(self) -> None:
        self.version = 1
        self._objects: dict[Kind, dict[tuple[str, str], Document]] = {}
        self._history: list[Change] = []
        self.compacted = 0
        self._watches: set[Watch] = set()
        self._subscribers: list[Subscriber] = []

    def subscribe(self, callback: Subscriber) -> Callable[[], None]:
        """Call a subscriber with each later change; the returned function unsubscribes it."""
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    def get(self, kind: Kind, namespace: str, name: str) -> Document | None:
        """Return an object, None if missing; use "" for objects without a namespace."""
        return self._of(kind).get((namespace, name))

    def list(self, kind: Kind, namespace: str = "") -> list[Document]:
        """Return the objects of a kind, ordered by namespace and name.

        Args:
            kind: The kind.
            namespace: Empty for all.
        """
        return [
            document
            for (place, _), document in sorted(self._of(kind).items(), key=itemgetter(0))
            if not namespace or place == namespace
        ]

    def create(self, kind: Kind, document: Document) -> Document:
        """Add an object.

        It gets a uid if it has none, creationTimestamp and resourceVersion, and a name if it has
        only ``generateName``.

        Raises:
            AlreadyExistsError: An object of that name exists.
        """
        metadata = dict(document.get("metadata") or {})
        prefix = metadata.get("generateName")
        if not metadata.get("name") and prefix:
            metadata["name"] = generated_name(prefix)
        key = (metadata.get("namespace") or "", metadata["name"])
        if key in self._of(kind):
            raise AlreadyExistsError.of(kind, key[1])
        metadata.update(
            uid=metadata.get("uid") or str(uuid.uuid4()), creationTimestamp=timestamp()
        )
        return self._put("ADDED", kind, document, metadata)

    def update(self, kind: Kind, document: Document) -> Document:
        """Replace an object with a newer one of the same name.

        Fields that only the server sets do not change: uid, creationTimestamp, deletionTimestamp.
        An object that is being deleted disappears with its last finalizer.

        Args:
            kind: The kind.
            document: The complete object, including its status. A resourceVersion must be the
                current one; without it the object is replaced regardless of other changes.

        Returns:
            The current object. If nothing has changed, it is the stored one with its
            resourceVersion, as with the real server.

        Raises:
            NotFoundError: The object does not exist.
            ConflictError: The object has changed since, or is another one of the same name.
        """
        metadata = dict(document["metadata"])
        stored = self._found(kind, metadata.get("namespace") or "", metadata["name"])
        old = stored["metadata"]
        _check_same(kind, metadata, old)
        for name in _SERVER_SET:
            metadata.pop(name, None)
            if name in old:
                metadata[name] = old[name]
        if metadata == old and _is_equal(document, stored):
            return stored
        ending = "deletionTimestamp" in metadata
        if ending and not (metadata.get("finalizers") or metadata["deletionGracePeriodSeconds"]):
            return self._remove(kind, {**document, "metadata": metadata}, stored)
        return self._put("MODIFIED", kind, document, metadata, stored)

    def delete(
        self, kind: Kind, namespace: str, name: str, *, grace_s: int | None = None
    ) -> Document:
        """Delete an object, or start its deletion.

        The object is gone at once unless it has finalizers, or is a Pod with a grace period: the
        kubelet deletes such a Pod again, with no grace, when its container has ended.

        Args:
            kind: The kind.
            namespace: Namespace of the object.
            name: Name of the object.
            grace_s: Grace period of a Pod in seconds, by default its spec's. A second
                delete can shorten it.

        Returns:
            The current object, or its last state.

        Raises:
            NotFoundError: The object does not exist.
        """
        stored = self._found(kind, namespace, name)
        metadata = dict(stored["metadata"])
        grace = _grace(stored, grace_s) if kind is POD else 0
        is_deleting = "deletionTimestamp" in metadata
        if is_deleting:
            grace = min(grace, metadata["deletionGracePeriodSeconds"])
        if not grace and not metadata.get("finalizers"):
            return self._remove(kind, stored, stored)
        if is_deleting and grace == metadata["deletionGracePeriodSeconds"]:
            return stored
        metadata["deletionTimestamp"] = timestamp(time.time() + grace)
        metadata["deletionGracePeriodSeconds"] = grace
        return self._put("MODIFIED", kind, stored, metadata, stored)

    def watch(self, kind: Kind, since: int) -> Watch:
        """Open a watch of a kind since a resourceVersion, as a context manager."""
        return Watch(self, kind, since, self._watches)

    def since(self, kind: Kind, version: int) -> Changes:
        """Return the changes of a kind after a version.

        Raises:
            ExpiredError: The history does not reach back that far.
        """
        if version < self.compacted:
            raise ExpiredError(f"too old resource version: {version} ({self.compacted})")
        found = self._history[bisect_right(self._history, version, key=attrgetter("version")) :]
        return [change for change in found if change.kind is kind]

    def compact(self) -> None:
        """Drop the history, and reject watches and lists from an older version.

        No object has the new version, so a client that has just listed everything must list again,
        too. Open watches that are up to date continue.
        """
        self.version += 1
        self.compacted = self.version
        for watch in self._watches:
            if not watch.news.is_set():
                watch.at = self.version
        self._history.clear()

    def _of(self, kind: Kind) -> dict[tuple[str, str], Document]:
        return self._objects.setdefault(kind, {})

    def _found(self, kind: Kind, namespace: str, name: str) -> Document:
        stored = self.get(kind, namespace, name)
        if stored is None:
            raise NotFoundError.of(kind, name)
        return stored

    def _put(
        self,
        type_: str,
        kind: Kind,
        document: Document,
        metadata: Document,
        before: Document | None = None,
    ) -> Document:
        self.version += 1
        metadata["resourceVersion"] = str(self.version)
        whole = {
            **document,
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": metadata,
        }
        self._of(kind)[key_of(whole)] = whole
        self._publish(type_, kind, whole, before)
        return whole

    def _remove(self, kind: Kind, last: Document, before: Document) -> Document:
        self.version += 1
        metadata = {**last["metadata"], "resourceVersion": str(self.version)}
        last = {**last, "metadata": metadata}
        del self._of(kind)[key_of(last)]
        self._publish("DELETED", kind, last, before)
        return last

    def _publish(self, type_: str, kind: Kind, new: Document, before: Document | None) -> None:
        self._history.append(Change(self.version, kind, type_, new, before))
        if len(self._history) > 2 * HISTORY:
            self.compacted = self._history[-HISTORY - 1].version
            del self._history[:-HISTORY]
        for watch in self._watches:
            if watch.kind is kind:
                watch.news.set()
        for subscriber in list(self._subscribers):
            subscriber(type_, kind, new)


class Watch:
    """Changes of the objects of one kind.

    Attributes:
        kind: The kind.
        at: Version up to which changes were returned.
        news: Set if there may be more.
    """

    def __init__(self, store: Store, kind: Kind, at: int, all_: set[Watch]) -> None:
        self.kind = kind
        self.at = at
        self.news = asyncio.Event()
        self._store = store
        self._all = all_
        if at < store.version:
            self.news.set()

    def __enter__(self) -> Self:
        self._all.add(self)
        return self

    def __exit__(self, *error: object) -> None:
        self._all.discard(self)

    async def changes(self, timeout_s: float | None = None) -> Changes:
        """Return the changes since the last call, as soon as there are any.

        Raises:
            ExpiredError: The history does not reach back that far.
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.news.wait(), timeout_s)
        self.news.clear()
        found = self._store.since(self.kind, self.at)
        self.at = self._store.version
        return found


def key_of(document: Document) -> tuple[str, str]:
    """Return namespace and name of an object."""
    metadata = document["metadata"]
    return metadata.get("namespace") or "", metadata["name"]


def timestamp(at: float | None = None) -> str:
    """Return a time in the format of documents, to the second; by default now.

    Args:
        at: Seconds since 1970.
    """
    moment = datetime.fromtimestamp(time.time() if at is None else at, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def generated_name(prefix: str) -> str:
    """Return a new name; the prefix is cut so that the name has at most 63 characters."""
    return prefix[:58] + "".join(secrets.choice(_LETTERS) for _ in range(5))


def _check_same(kind: Kind, metadata: Document, old: Document) -> None:
    """Reject an update of an object that has changed since it was read."""
    for name in ("uid", "resourceVersion"):
        if metadata.get(name) not in (None, "", old[name]):
            raise ConflictError.of(kind, old["name"])


def _is_equal(one: Document, other: Document) -> bool:
    """Return whether two documents are equal, except their metadata."""
    names = (one.keys() | other.keys()) - {"metadata", "kind", "apiVersion"}
    return all(one.get(name) == other.get(name) for name in names)


def _grace(pod: Document, requested_s: int | None) -> int:
    """Return the grace period of a Pod in seconds."""
    spec = pod.get("spec", {})
    over = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    if over or not spec.get("nodeName"):
        return 0
    if requested_s is not None:
        return requested_s
    return int(spec.get("terminationGracePeriodSeconds", 30))
