"""TorchX's command line: farcall's errors are one sentence, botocore is quiet.

The command catches few errors. It prints all other tracebacks in each of its threads and again
at the end, and shows every library's log messages. Programs that import TorchX keep their own
hooks and levels.
"""

from __future__ import annotations

import logging
import sys
import threading
from types import TracebackType

from farcall.model.errors import FarcallError

_COMMAND = "torchx.cli.main"
_CHATTY = ("botocore", "aiobotocore")

_errors_log = logging.getLogger("torchx.farcall")
_reported: set[str] = set()


def install() -> None:
    """Print farcall's errors as one sentence if this process is TorchX's command.

    With ``--log_level DEBUG``, tracebacks and all botocore messages are shown.
    """
    if not _is_command() or sys.excepthook is _report or _errors_log.isEnabledFor(logging.DEBUG):
        return
    sys.excepthook = _report
    threading.excepthook = _report_thread
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)


def _is_command() -> bool:
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name == _COMMAND:  # python -m torchx.cli.main
        return True
    command = getattr(sys.modules.get(_COMMAND), "main", None)
    return command is not None and getattr(main, "main", None) is command


def _report(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    if not isinstance(error, FarcallError):
        sys.__excepthook__(kind, error, traceback)
        return
    text = str(error)
    if text not in _reported:  # the thread that raised it first has reported it
        _reported.add(text)
        _errors_log.error("%s", text)


def _report_thread(args: threading.ExceptHookArgs) -> None:
    if isinstance(args.exc_value, FarcallError):
        _report(type(args.exc_value), args.exc_value, args.exc_traceback)
    else:
        threading.__excepthook__(args)
