"""Command line modes of the local AWS emulator: for one command, or until Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import queue
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from farcall_local.launch import own_environment, start

# --- Temporary handlers of termination signals --------------------------------------------------


@contextlib.contextmanager
def handling(handler: Callable[[int], object]) -> Iterator[None]:
    """Handle SIGINT, SIGTERM and SIGHUP during a block; call it from the main thread."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    former = {
        number: signal.signal(number, lambda received, _: handler(received)) for number in numbers
    }
    try:
        yield
    finally:
        for number, action in former.items():
            # None means a handler that Python has not installed and cannot restore.
            signal.signal(number, signal.SIG_DFL if action is None else action)


_UNLIMITED = "jobs run as processes without a memory limit; use --strict to enforce the limit"
#: Interval in seconds between checks that the server still runs.
POLL_S = 0.5


def _is_unlimited(options: Mapping[str, Any]) -> bool:
    return not (options.get("docker") or options.get("strict"))


def run_command(argv: Sequence[str], **options: Any) -> int:
    """Run a command with a new local AWS emulator, and stop both.

    SIGTERM and SIGHUP are forwarded to the command, and so is SIGINT, unless a terminal has sent
    it to the command as well. Call it from the main thread.

    Args:
        argv: The command.
        **options: See `start`.

    Returns:
        The command's exit code, ``128 + N`` if signal N killed it, 127 if the command does not
        exist, and 126 if it cannot be run.
    """
    with start(**options) as aws:
        if _is_unlimited(options) and sys.stderr.isatty():
            sys.stderr.write(f"farcall local: {_UNLIMITED}\n")
        try:
            process = subprocess.Popen(argv, env={**own_environment(), **aws.environment})  # noqa: S603
        except OSError as error:
            example = "farcall local -- python my_script.py"
            text = f"cannot run {argv[0]!r}: {error.strerror}. To run a script, write `{example}`"
            sys.stderr.write(f"farcall local: {text}\n")
            return 127 if isinstance(error, FileNotFoundError) else 126
        with _forwarding(process):
            code = process.wait()
        if not aws.running:
            sys.stderr.write("farcall local: the local AWS emulator exited before the command\n")
    return 128 - code if code < 0 else code


def serve(**options: Any) -> None:
    """Serve until SIGINT or SIGTERM; print the shell's ``export`` lines first.

    On a terminal, stderr explains their purpose and reports that the emulator is running. Call it
    from the main thread.

    Args:
        **options: See `start`.

    Raises:
        RuntimeError: The server exited by itself.
    """
    # Not an Event: its set() would deadlock if the signal arrives while wait() holds the lock.
    # put() is reentrant: https://docs.python.org/3/library/queue.html#queue.SimpleQueue.put
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()
    with start(**options) as aws, handling(signals.put):
        for name, value in aws.environment.items():
            sys.stdout.write(f"export {name}={shlex.quote(value)}\n")
        sys.stdout.flush()
        if sys.stdout.isatty():
            sys.stderr.write(
                f"\nA local AWS emulator is running on {aws.endpoint_url}; press Ctrl-C to "
                "stop it.\nPaste these lines into another terminal to use it there. `farcall "
                "local -- COMMAND`\nruns a single command on a new emulator, without these "
                "lines.\n"
            )
            if _is_unlimited(options):
                sys.stderr.write(f"{_UNLIMITED}\n")
        while True:
            with contextlib.suppress(queue.Empty):
                signals.get(timeout=POLL_S)
                return
            if not aws.running:
                raise RuntimeError(
                    "The local AWS emulator has exited; see its standard error for the cause."
                )


@contextlib.contextmanager
def _forwarding(process: subprocess.Popen[bytes]) -> Iterator[None]:
    def forward(number: int) -> None:
        if number != signal.SIGINT or not _in_foreground():
            process.send_signal(number)

    with handling(forward):
        yield


def _in_foreground() -> bool:
    """Return whether a terminal sends Ctrl-C to this process and its child processes."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
