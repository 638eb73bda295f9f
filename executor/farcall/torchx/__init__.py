"""The TorchX door: its schedulers ``aws_batch`` and ``kubernetes_job``, made of command jobs.

===============  ====================================================================
scheduler        what TorchX calls, whatever the platform
options          what ``-cfg`` takes, likewise
roles            what of roles is read alike
request          what a dry run shows and `schedule` submits
apps, states     jobs as apps
workspace        the folder that an app takes along
batch/           what of it all is AWS Batch's own
kubernetes/      and Kubernetes's: options, mapping, request, places, scheduler
===============  ====================================================================

TorchX finds them by modules of ``torchx_plugins.schedulers``, which lies beside this package. They
need the ``torchx`` extra: ``pip install 'farcall[torchx]'``.
"""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("torchx") is None:
    raise ModuleNotFoundError(
        "The TorchX door needs torchx: pip install 'farcall[torchx]'", name="torchx"
    )
