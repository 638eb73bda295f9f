"""Descriptions of calls: short, by type, and without running the user's code."""

import datetime as dt
import enum
import functools
import gc
import json
import pathlib
import sys
import zlib

import numpy as np
import pandas as pd
import pytest

from farcall.payload import call_texts
from farcall.payload.call_texts import LONGEST, CallTexts
from farcall_runtime import envelope


def fit(lr, depth=3, *rest, data=None, password=None, **more):
    """Have parameters of every kind."""


class Colour(enum.Enum):
    RED = 1


class Hostile:
    """Fails if any of its methods is called."""

    def _fail(self, *_):
        raise AssertionError("a text has called the user's own code")

    __repr__ = __str__ = __len__ = __iter__ = __bool__ = __eq__ = __format__ = _fail
    __hash__ = __getattribute__ = __class_getitem__ = _fail  # type: ignore[assignment]


class Meta(type):
    @property
    def __module__(cls):
        raise AssertionError("a text has called the user's own code")


class OfMeta(metaclass=Meta):
    pass


class Weird(str):
    __slots__ = ()

    def __repr__(self):
        raise AssertionError("a text has called the user's own code")


class Frame(np.ndarray):
    @property
    def shape(self):
        raise AssertionError("a text has called the user's own code")


def text(*args, **kwargs):
    return CallTexts(fit).of([(args, kwargs)])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.1, "0.1"),
        (True, "True"),
        (None, "None"),
        (-7, "-7"),
        ("a\n\x1b[31m\u202e", r"'a\n\x1b[31m\u202e'"),
        ("x" * 10**6, "'" + "x" * 48 + "'..."),
        (b"ab", "b'ab'"),
        (bytes(10**6), "bytes(1000000)"),
        (dt.date(2026, 11, 23), "2026-11-23"),
        (Colour.RED, "Colour.RED"),
        (pathlib.PurePosixPath("/data/a.csv"), "'/data/a.csv'"),
        (fit, "fit"),
        (dict, "dict"),
        ([], "[]"),
        ((1,), "(1,)"),
        (set(), "set()"),
        (list(range(10**6)), "[0, 1, 2, 3, 4, 5, ... 999994 more]"),
        ([[[1]]], "[[[...]]]"),
        ({"a": {"b": 1}}, "{'a': {'b': 1}}"),
        (np.zeros((1000, 3)), "ndarray(1000, 3) float64"),
        (np.float64(0.5), "0.5"),
        (np.int32(4), "4"),
        (pd.DataFrame({"a": [1], "b": [2]}), "DataFrame(1, 2)"),
        (pd.Series([1.5]), "Series(1) float64"),
        ("https://me:hunter2@host/x", "'https://***@host/x'"),
        ("https://" + "u" * 900 + "@host", "'https://***@host'"),
    ],
)
def test_values_are_shown_by_type(value, expected):
    assert f"fit(lr={expected})" == text(value)


def test_huge_number_is_abbreviated():
    assert text(10**5000) == "fit(lr=int of 16610 bits)"


@pytest.mark.parametrize("kind", [Hostile, OfMeta, Weird])
def test_user_code_is_never_called(kind):
    value = object.__new__(kind) if kind is not Weird else Weird("secret")
    shown = text([value], data=value)
    assert f"{kind.__qualname__}]" in shown
    assert "secret" not in shown


def test_array_subclass_is_shown_by_class():
    assert "Frame)" in text(np.zeros(3).view(Frame))


def test_positional_arguments_have_parameter_names():
    assert text(0.1, 3, "a", data=1) == "fit(lr=0.1, depth=3, 'a', data=1)"
    bound = functools.partial(fit, 0.1)
    bound.__name__ = "bound"  # type: ignore[attr-defined]
    assert CallTexts(bound).of([((3,), {})]) == "bound(depth=3)"

    @functools.wraps(fit)
    def wrapper(*args, **kwargs):
        return fit(*args, **kwargs)

    assert CallTexts(wrapper).of([((1,), {})]) == "fit(lr=1)"
    assert CallTexts(max).of([((1, 2), {})]) == "max(1, 2)"


@pytest.mark.parametrize(
    "name", ["password", "db_passwd", "apiKey", "key", "secretName", "ACCESS_TOKEN", "auth"]
)
def test_secret_names_are_hidden(name):
    assert text(1, **{name: "hunter2"}) == f"fit(lr=1, {name}=***)"
    assert text({name: "hunter2", "a": 1}) == f"fit(lr={{'{name}': ***, 'a': 1}})"


@pytest.mark.parametrize("name", ["monkey", "keyboard", "author", "compass"])
def test_similar_names_are_shown(name):
    assert text(1, **{name: 2}) == f"fit(lr=1, {name}=2)"


def test_positional_secret_is_hidden():
    def login(user, password):
        """Take a value that must be hidden."""

    assert CallTexts(login).of([(("ada", "hunter2"), {})]) == "login(user='ada', password=***)"


def test_fixed_keywords_are_shown():
    assert CallTexts(fit, {"data": 1}).of([((0.1,), {})]) == "fit(lr=0.1, data=1)"


def test_chunk_is_summarized_by_its_first_call():
    text = CallTexts(fit).of([((n,), {}) for n in range(10)])
    assert call_texts.summary(text) == "fit(lr=0) and 9 more"
    assert call_texts.of_call(text, 3) == "fit(lr=3)"


def test_calls_of_large_chunk_are_counted():
    text = CallTexts(fit).of([((n, "x" * 40), {}) for n in range(1000)])
    assert len(text) <= 1500
    assert call_texts.summary(text) == f"fit(lr=0, depth={'x' * 40!r}) and 999 more"
    assert call_texts.of_call(text, 998).startswith("call 999 of the task fit(lr=0, depth='xx")


def test_text_length_is_limited():
    for calls in (
        [(tuple("x" * 100 for _ in range(50)), {})] * 12,
        [((), {f"name{n}" * 30: [[n] * 9] * 9 for n in range(50)})],
    ):
        shown = call_texts.summary(CallTexts(fit).of(calls))
        assert len(shown) <= LONGEST
        assert "..." in shown


def test_control_characters_are_escaped():
    def named():
        """Function that gets another name."""

    named.__name__ = "a\x1b[2J\nb" + "c" * 1000
    shown = CallTexts(named).of([((), {"\x1b]0;x": 1})])
    assert shown.isprintable()
    assert len(shown) <= LONGEST


def test_failing_signature_leaves_name():
    class Nothing:
        __name__ = "nothing"
        __signature__ = property(lambda _: 1 / 0)

        def __call__(self):
            """Have no readable signature."""

    assert CallTexts(Nothing()).of([((1,), {})]) == "nothing(...)"


def functions_called(texts, calls):
    """Count the function calls for the text of one task, after a first one."""
    texts.of(calls)
    count = 0

    def note(_frame, event, _arg):
        nonlocal count
        count += event in ("call", "c_call")

    gc.disable()  # its callbacks would be counted
    sys.setprofile(note)
    try:
        texts.of(calls)
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def test_cost_is_independent_of_argument_size():
    def work(size):
        texts = CallTexts(fit)
        calls = [((list(range(size)), set(range(size))), {"data": dict.fromkeys(range(size))})]
        return functions_called(texts, calls)

    assert work(100) == work(100_000)


def test_stored_texts_are_read_back():
    texts = [f"fit(lr={n})" for n in range(1000)]
    data = call_texts.seal(texts)
    assert texts == call_texts.read(data, 1000)
    assert len(data) < 10_000
    assert call_texts.seal(["", ""]) == b""


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no zlib",
        zlib.compress(b"["),
        zlib.compress(b"{}"),
        zlib.compress(b'["a"]'),
        zlib.compress(b"[" * 10**6),
        zlib.compress(b'["' + b"a" * 10**8 + b'", "b"]'),
    ],
)
def test_invalid_texts_are_rejected(data):
    with pytest.raises(envelope.IntegrityError, match="the call descriptions (cannot|do not)"):
        call_texts.read(data, 2)


def test_stored_texts_are_truncated_and_escaped():
    data = zlib.compress(json.dumps(["\x1b[2J" + "x" * 10**5, 7]).encode())
    first, second = call_texts.read(data, 2)
    assert first.isprintable()
    assert len(first) <= LONGEST
    assert second == "7"
