"""TorchX's command line: farcall's errors in it are one sentence each, and botocore is quiet.

The command catches few errors. Of all others it prints the traceback, in each of its threads and
again at the end; and it shows what every library has to say of its work. Programs that import
TorchX keep the hooks and levels they have.
"""

from __future__ import annotations

import logging
import sys
import threading
from types import TracebackType

from farcall.model.errors import FarcallError

_COMMAND = "torchx.cli.main"
_CHATTY = ("botocore", "aiobotocore")

_log = logging.getLogger("torchx.farcall")
_told: set[str] = set()


def install() -> None:
    """Have farcall's errors told in a sentence where this process is TorchX's command.

    With ``--log_level DEBUG`` there are tracebacks, and all that botocore says.
    """
    if not _is_command() or sys.excepthook is _tell or _log.isEnabledFor(logging.DEBUG):
        return
    sys.excepthook = _tell
    threading.excepthook = _tell_of_thread
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)


def _is_command() -> bool:
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name == _COMMAND:  # python -m torchx.cli.main
        return True
    command = getattr(sys.modules.get(_COMMAND), "main", None)
    return command is not None and getattr(main, "main", None) is command


def _tell(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    if not isinstance(error, FarcallError):
        sys.__excepthook__(kind, error, traceback)
        return
    text = str(error)
    if text not in _told:  # by the thread in which it was raised first
        _told.add(text)
        _log.error("%s", text)


def _tell_of_thread(args: threading.ExceptHookArgs) -> None:
    if isinstance(args.exc_value, FarcallError):
        _tell(type(args.exc_value), args.exc_value, args.exc_traceback)
    else:
        threading.__excepthook__(args)
