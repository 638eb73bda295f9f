"""Error messages for calls that do not fit their function."""

from __future__ import annotations

import inspect

import pytest

from farcall.client.arguments import bind


def simulate(x, *, steps=10) -> int: ...


WHOLE = r"; the function is simulate\(x, \*, steps=10\)$"


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((3,), {"stpes": 1}, r"does not accept the argument 'stpes' \(did you mean 'steps'\?\)"),
        (
            (3,),
            {"chunk_size": 1},
            r"does not accept the argument 'chunk_size' \(did you mean 'chunksize'\?\)",
        ),
        (
            (3,),
            {"vcpu": 1},
            r"'vcpu' \(set an option of the job using with_options\(vcpu=\.\.\.\)\)",
        ),
        ((3,), {"qqqqqq": 1}, "does not accept the argument 'qqqqqq'"),
        (
            (),
            {},
            r"missing a required argument: 'x' \(map passes one item .*\)",
        ),
        ((1, 2), {}, "too many positional arguments"),
        ((1,), {"x": 2}, "multiple values for argument 'x'"),
    ],
)
def test_error_names_function_signature_and_suggestion(args, kwargs, text):
    with pytest.raises(TypeError, match=f"simulate: .*{text}{WHOLE}"):
        bind("simulate", inspect.signature(simulate), args, kwargs, ["chunksize"])


def test_single_call_error_omits_map_hint():
    with pytest.raises(TypeError, match=f"simulate: missing a required argument: 'x'{WHOLE}"):
        bind("simulate", inspect.signature(simulate), (), {})


def test_fitting_arguments_are_accepted():
    bind("simulate", inspect.signature(simulate), (3,), {"steps": 1})


def test_long_signature_is_truncated():
    def long(x=list(range(1000))): ...  # noqa: B006

    with pytest.raises(TypeError) as at:
        bind("long", inspect.signature(long), (1, 2), {})
    assert len(str(at.value)) < 300
