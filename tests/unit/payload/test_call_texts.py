"""Texts of calls: short, by types, and without a line of the user's own code."""

from __future__ import annotations

import datetime as dt
import decimal
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
    """Parameters of every kind."""


class Colour(enum.Enum):
    RED = 1


class Hostile:
    """Each of its methods would be noticed."""

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
        (decimal.Decimal("1.50"), "1.50"),
        (decimal.Decimal("1" * 5000), "Decimal"),
        (range(3, 10**6), "range(3, 1000000)"),
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
def test_values_are_shown_by_their_types(value, expected):
    assert f"fit(lr={expected})" == text(value)


def test_a_number_is_not_written_out_that_takes_long():
    assert text(10**5000) == "fit(lr=int of 16610 bits)"


@pytest.mark.parametrize("kind", [Hostile, OfMeta, Weird])
def test_the_users_own_code_is_never_called(kind):
    value = object.__new__(kind) if kind is not Weird else Weird("secret")
    shown = text([value], data=value)
    assert f"{kind.__qualname__}]" in shown
    assert "secret" not in shown


def test_a_subclass_of_an_array_is_a_class_like_others():
    assert "Frame)" in text(np.zeros(3).view(Frame))


def test_positional_arguments_have_the_names_of_their_parameters():
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
def test_what_is_named_like_a_secret_is_hidden(name):
    assert text(1, **{name: "hunter2"}) == f"fit(lr=1, {name}=***)"
    assert text({name: "hunter2", "a": 1}) == f"fit(lr={{'{name}': ***, 'a': 1}})"


@pytest.mark.parametrize("name", ["monkey", "keyboard", "author", "compass"])
def test_what_only_contains_such_a_word_is_shown(name):
    assert text(1, **{name: 2}) == f"fit(lr=1, {name}=2)"


def test_a_positional_secret_is_known_by_its_parameter():
    def login(user, password):
        """Of which a value is not to be seen."""

    assert CallTexts(login).of([(("ada", "hunter2"), {})]) == "login(user='ada', password=***)"


def test_keywords_of_all_calls_are_in_each_text():
    assert CallTexts(fit, {"data": 1}).of([((0.1,), {})]) == "fit(lr=0.1, data=1)"


def test_a_task_of_several_calls_shows_the_first():
    assert CallTexts(fit).of([((n,), {}) for n in range(10)]) == "fit(lr=0) and 9 more"


def test_a_text_is_never_longer_than_its_limit():
    for calls in (
        [(tuple("x" * 100 for _ in range(50)), {})] * 12,
        [((), {f"name{n}" * 30: [[n] * 9] * 9 for n in range(50)})],
    ):
        shown = CallTexts(fit).of(calls)
        assert len(shown) <= LONGEST
        assert "..." in shown


def test_a_name_cannot_write_to_a_terminal():
    def named():
        """Its name is changed."""

    named.__name__ = "a\x1b[2J\nb" + "c" * 1000
    shown = CallTexts(named).of([((), {"\x1b]0;x": 1})])
    assert shown.isprintable()
    assert len(shown) <= LONGEST


def test_what_fails_leaves_the_name():
    class Nothing:
        __name__ = "nothing"
        __signature__ = property(lambda _: 1 / 0)

        def __call__(self):
            """A class without a readable signature."""

    assert CallTexts(Nothing()).of([((1,), {})]) == "nothing(...)"


def functions_called(texts, calls):
    """Count the functions that the text of a task calls, once such a task is known."""
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


def test_the_work_does_not_depend_on_the_size_of_the_arguments():
    def work(size):
        texts = CallTexts(fit)
        calls = [((list(range(size)), set(range(size))), {"data": dict.fromkeys(range(size))})]
        return functions_called(texts, calls)

    assert work(100) == work(100_000)


def test_a_small_call_costs_few_steps():
    texts = CallTexts(fit)
    calls = [((0.1, 3), {})]
    assert (
        functions_called(texts, calls) <= 40
    )  # 4 us; 5 % of what a call of a map costs the client are 21 us


def test_stored_texts_are_read_again():
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
def test_what_is_no_list_of_texts_is_refused(data):
    with pytest.raises(envelope.IntegrityError, match="the call descriptions (cannot|do not)"):
        call_texts.read(data, 2)


def test_what_a_submitter_wrote_there_is_cut_and_shown():
    data = zlib.compress(json.dumps(["\x1b[2J" + "x" * 10**5, 7]).encode())
    first, second = call_texts.read(data, 2)
    assert first.isprintable()
    assert len(first) <= LONGEST
    assert second == "7"
