"""Function signatures as command lines.

Starts nothing: parsing needs no service.
"""

from __future__ import annotations

import enum
import json
import threading
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from farcall.cli.signatures import Call


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclass
class Point:
    x: int
    y: float = 0.0


class Model(BaseModel):
    name: str
    sizes: list[int]


def bind(function: Any, *words: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    bound = Call("m:f", function).bind(words, click.Context(click.Command("run")))
    return bound.args, bound.kwargs


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        (int, "-3", -3),
        (float, "-.5", -0.5),
        (float, "nan", pytest.approx(float("nan"), nan_ok=True)),
        (str, "3", "3"),
        (str, '{"a": 1}', '{"a": 1}'),
        (bool, "yes", True),
        (Path, "a/b", Path("a/b")),
        (Colour, "BLUE", Colour.BLUE),
        (Colour, "2", Colour.BLUE),
        (Literal[1, "a"], "1", 1),
        (Literal[1, "a"], "a", "a"),
        (int | None, "null", None),
        (str | None, "null", "null"),
        (int | str, "x", "x"),
        (date, "2026-11-20", date(2026, 11, 20)),
        (Annotated[int, Field(gt=0)], "1", 1),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (tuple[int, str], '[1, "a"]', (1, "a")),
        (Point, '{"x": "1"}', Point(1)),
        (Model, '{"name": "n", "sizes": [1]}', Model(name="n", sizes=[1])),
        (Any, "[1, null]", [1, None]),
        (Any, "no json", "no json"),
    ],
)
def test_text_is_converted_to_annotation(annotation: Any, text: str, value: Any) -> None:
    def function(x):
        pass

    function.__annotations__ = {"x": annotation}

    assert ((value,), {}) == bind(function, text)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(), st.floats(allow_nan=False), st.text(st.characters(codec="utf-8"), min_size=1)
)
def test_numbers_and_strings_round_trip(whole: int, real: float, text: str) -> None:
    def function(a: int, *, b: float, c: str):
        pass

    if text.startswith("-") or "\0" in text:
        text = f"x{text}".replace("\0", "")
    assert ((whole,), {"b": real, "c": text}) == bind(
        function, str(whole), "--b", repr(real), "--c", text
    )


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.text(), _json))
def test_json_documents_round_trip(document: dict[str, Any]) -> None:
    def function(a: dict[str, Any], b):
        pass

    text = json.dumps(document)
    assert ((document, document), {}) == bind(function, text, text)


def test_parameters_with_defaults_are_options() -> None:
    marker = object()

    def function(a, /, n_steps: int = 3, *rest: int, C=marker, flag: bool = True, kept=marker):  # noqa: N803
        pass

    assert (("x",), {}) == bind(function, "x")
    assert (("x", 4), {"C": 1}) == bind(function, "x", "--n-steps", "4", "--C", "1")
    assert (("x", 3, 7, -8), {"flag": False}) == bind(function, "x", "7", "-8", "--no-flag")


def test_list_options_are_repeated() -> None:
    def function(files: list[Path], *, seeds: set[int], names: tuple[str, ...] = ()):
        pass

    words = ["a", "b", "--seeds", "1", "--seeds", "2", "--names", "n"]
    assert (([Path("a"), Path("b")],), {"seeds": {1, 2}, "names": ("n",)}) == bind(
        function, *words
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["x"], "'X': 'x' is not int"),
        ([], "Missing argument 'X'"),
        (["1", "2"], "unexpected extra argument"),
        (["1", "--colur", "RED"], "--colour"),
        (["1", "--colour", "GREEN"], "'GREEN' is not RED|BLUE"),
        (["1", "--point", '{"x": "w"}'], "x: Input should be a valid integer"),
        (["1", "--point", "{"], "'{' is not Point as JSON"),
    ],
)
def test_invalid_arguments_raise_usage_error(words: list[str], said: str) -> None:
    def function(x: int, *, colour: Colour = Colour.RED, point: Point | None = None):
        pass

    with pytest.raises(click.UsageError) as caught:
        bind(function, *words)

    caught.value.show()  # adds click's suggestions
    assert said in caught.value.format_message()


def test_unresolvable_annotation_accepts_json_or_text() -> None:
    def function(x: NotThere, y: NeitherThis):  # noqa: F821
        pass

    assert (([1], "b"), {}) == bind(function, "[1]", "b")


@pytest.mark.parametrize("annotation", [threading.Event, dict[str, "NotThere"]])  # noqa: F821
def test_other_annotations_require_json(annotation: Any) -> None:
    def function(x):
        pass

    function.__annotations__ = {"x": annotation}

    assert (({"a": 1},), {}) == bind(function, '{"a": 1}')
    with pytest.raises(click.UsageError, match="is not valid JSON"):
        bind(function, "a")


def test_misplaced_command_option_is_explained():
    command = click.Command("run", params=[click.Option(["--vcpu"])])
    with pytest.raises(click.UsageError, match="--vcpu is an option of run.* Put it before m:f"):
        Call("m:f", lambda x: x).bind(
            ["1", "--vcpu", "8"], click.Context(command, info_name="run")
        )
