"""Functions that the jobs of these tests run."""

from __future__ import annotations


def hold(gate: str, value: int = 0) -> int:
    """Print to both streams, wait until a file exists, and print again."""
    import pathlib
    import sys
    import time

    print(f"{value} has begun", flush=True)
    print(f"{value} complains", file=sys.stderr, flush=True)
    while not pathlib.Path(gate).exists():
        time.sleep(0.05)
    print(f"{value} is over", flush=True)
    return value


def diverge(step: int) -> None:
    raise ArithmeticError(f"diverged at step {step}")


def write(*texts: str) -> None:
    """Print texts unchanged to both streams."""
    import sys

    for text in texts:
        print(text, flush=True)
        print(text, file=sys.stderr, flush=True)


def fail_with(name: str, text: str) -> None:
    """Raise an exception whose class has the given name."""
    raise type(name, (ValueError,), {})(text)


def settle(rate: float) -> float:
    """Fail for some rates."""
    if rate > 0.5:
        raise ValueError(f"singular matrix at {rate}")
    return rate


def need(file: str) -> str:
    """Fail if a file is missing."""
    import pathlib

    return pathlib.Path(file).read_text()
