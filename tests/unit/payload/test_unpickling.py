"""Unpickled instances are of the classes that are known in this process."""

import gc
import sys
import typing
import weakref

import cloudpickle.cloudpickle as internals
import numpy as np

from farcall.payload.pickling import pack_calls, pack_function
from farcall.payload.unpickling import load
from farcall_runtime import envelope, pickles
from tests.unit.fakes import joined, unpickled


def test_array_uses_memory_of_outcome():
    data = bytearray(joined(next(pack_calls([[((np.zeros(10_000),), {})]]))))
    ((copy,), _) = load(envelope.unpack(data))[0]
    assert copy.flags["WRITEABLE"]
    assert np.shares_memory(copy, np.frombuffer(data, np.uint8))


def test_unpickler_retains_nothing():
    class Made:
        pass

    parts = [b"".join(map(bytes, pieces)) for pieces in pickles.dump(Made())]
    made = weakref.ref(value := load(parts))
    del value
    gc.collect()
    assert made() is None


def test_instance_has_local_class(remote, models):
    result = remote(models.move, models.Point(1), 2).unwrap()
    assert type(result) is models.Point


def test_local_class_is_unchanged(remote, models):
    before = dict(vars(models.Point))
    remote(models.move, models.Point(1), 2)
    after = dict(vars(models.Point))
    after.pop("__slotnames__", None)  # added by pickle
    assert (models.Point.made, after) == (0, before)


def test_enum_member_is_the_local_one(remote, models):
    assert remote(models.paint, models.Color.RED).unwrap() is models.Color.BLUE


def test_nested_class_is_the_local_one(remote, models):
    result = remote(models.nest, models.Shape.Point(4)).unwrap()
    assert (type(result), result.x) == (models.Shape.Point, 4)
    assert models.Shape.Point.sides == 0


def test_remote_local_class_is_distinct(remote, models):
    result = remote(models.local_point, 4).unwrap()
    assert not isinstance(result, models.Point)
    assert result.x == 4


def test_class_of_function_is_unchanged(remote):
    class Tally:
        total = 0

        def add(self, x):
            type(self).total += x
            return self

    def work(tally):
        return tally.add(5)

    add = Tally.add
    assert type(remote(work, Tally()).unwrap()) is Tally
    assert (Tally.total, Tally.add) == (0, add)


def test_remote_only_class_is_sent(remote, models):
    def work():
        Made = typing.NamedTuple("Made", [("x", int)])  # noqa: UP014
        return Made(3)

    result = remote(work).unwrap()
    assert (result.x, type(result).__name__) == (3, "Made")


def test_classes_are_found_in_new_process(models):
    """If a job is joined after a crash, its classes were not pickled in this process."""
    packed = [pack_function(models.Point), pack_function(models.Shape.Point)]
    internals._DYNAMIC_CLASS_TRACKER_BY_CLASS.clear()
    internals._DYNAMIC_CLASS_TRACKER_BY_ID.clear()
    assert [unpickled(one) for one in packed] == [models.Point, models.Shape.Point]


def test_enum_is_found_in_new_process(models):
    packed = pack_function(models.Color)
    internals._DYNAMIC_CLASS_TRACKER_BY_CLASS.clear()
    internals._DYNAMIC_CLASS_TRACKER_BY_ID.clear()
    assert unpickled(packed) is models.Color


def test_copied_class_gives_way_to_import(models, monkeypatch):
    """The first result is read when the module is missing, so its class is a copy."""
    packed = pack_function(models.Point)
    internals._DYNAMIC_CLASS_TRACKER_BY_CLASS.clear()
    internals._DYNAMIC_CLASS_TRACKER_BY_ID.clear()
    for name in ("labkit.models", "labkit"):
        monkeypatch.delitem(sys.modules, name)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(sys, "path", [])
        copy = unpickled(packed)
    assert "labkit.models" not in sys.modules
    assert unpickled(packed) is sys.modules["labkit.models"].Point is not copy
