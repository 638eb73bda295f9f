"""What the jobs of these tests do."""

from __future__ import annotations


def hold(gate: str, value: int = 0) -> int:
    """Print to both streams, wait until a file is there, and print once more."""
    import pathlib
    import sys
    import time

    print(f"{value} has begun", flush=True)
    print(f"{value} complains", file=sys.stderr, flush=True)
    while not pathlib.Path(gate).exists():
        time.sleep(0.05)
    print(f"{value} is over", flush=True)
    return value


def fill(gate: str, mebibytes: int) -> int:
    """Hold memory until a file is there."""
    import pathlib
    import time

    block = bytearray(b"x") * (mebibytes << 20)
    while not pathlib.Path(gate).exists():
        time.sleep(0.05)
    return len(block)


def fill_again(gate: str, begun: str, mebibytes: int) -> int:
    """Hold memory until a file is there; say by another one that this is a later attempt."""
    import os
    import pathlib
    import time

    block = bytearray(b"x") * (mebibytes << 20)
    if os.environ["AWS_BATCH_JOB_ATTEMPT"] != "1":
        pathlib.Path(begun).touch()
    while not pathlib.Path(gate).exists():
        time.sleep(0.05)
    return len(block)


def fill_and_die(end: str, mebibytes: int) -> int:
    """Hold memory until a file is there, and kill the container then."""
    import os
    import pathlib
    import signal
    import time

    block = bytearray(b"x") * (mebibytes << 20)
    while not pathlib.Path(end).exists():
        time.sleep(0.05)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)  # with it goes this process
    return len(block)


def hold_first(gate: str, number: int) -> int:
    """Return at once, but for the first: that one waits until a file is there."""
    import pathlib
    import time

    while number == 0 and not pathlib.Path(gate).exists():
        time.sleep(0.05)
    return number


def draw(gate: str) -> None:
    """Draw a progress bar, whose end waits for a file."""
    import pathlib
    import sys
    import time

    sys.stderr.write("\r10%|#|\r50%|#####|")
    sys.stderr.flush()
    while not pathlib.Path(gate).exists():
        time.sleep(0.05)
    sys.stderr.write("\r100%|##########|\n")


def diverge(step: int) -> None:
    raise ArithmeticError(f"diverged at step {step}")


def crash() -> None:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGSEGV)


def write(*texts: str) -> None:
    """Print texts as they are."""
    import sys

    for text in texts:
        print(text, flush=True)
        print(text, file=sys.stderr, flush=True)


def fail_with(name: str, text: str) -> None:
    """Raise an exception of a class of this name."""
    raise type(name, (ValueError,), {})(text)


def settle(rate: float) -> float:
    """Fail for some rates."""
    if rate > 0.5:
        raise ValueError(f"singular matrix at {rate}")
    return rate


def need_or_hold(file: str, gate: str, number: int) -> str:
    """Fail where a file is missing; with another number than 0 wait for one before."""
    import pathlib
    import time

    while number and not pathlib.Path(gate).exists():
        time.sleep(0.05)
    return pathlib.Path(file).read_text()


def need(file: str) -> str:
    """Fail where a file is missing."""
    import pathlib

    return pathlib.Path(file).read_text()
