"""TorchX integration: the schedulers ``aws_batch`` and ``kubernetes_job``.

Both submit apps as command jobs.

===============  ==================================================================== scheduler
the calls that TorchX makes, for every platform options          the ``-cfg`` options, for every
platform roles            role parsing that all platforms share request          the request that a
dry run shows and `schedule` submits apps, states     jobs as apps workspace        the folder that
is uploaded with an app batch/           the parts that are specific to AWS Batch kubernetes/
the same for Kubernetes: options, mapping, request, places, scheduler ===============
====================================================================

TorchX finds the schedulers through modules of ``torchx_plugins.schedulers``, a package next to
this one. They need the ``torchx`` extra: ``pip install 'farcall[torchx]'``.
"""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("torchx") is None:
    raise ModuleNotFoundError(
        "The TorchX schedulers require torchx. Run `pip install 'farcall[torchx]'`.", name="torchx"
    )
