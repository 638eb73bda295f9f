"""The TorchX door: its scheduler ``aws_batch``, whose apps are command jobs.

===========  ============================================================
scheduler    what TorchX calls
options      what ``-cfg`` takes
mapping      an app and its options, as groups of nodes
request      what a dry run shows and `schedule` submits
workspace    the folder that an app takes along
===========  ============================================================

TorchX finds it by ``torchx_plugins.schedulers.aws_batch``, which lies beside this package. It
needs the ``torchx`` extra: ``pip install 'farcall[torchx]'``.
"""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("torchx") is None:
    raise ModuleNotFoundError(
        "The TorchX scheduler needs torchx: pip install 'farcall[torchx]'", name="torchx"
    )
