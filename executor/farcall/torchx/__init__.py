"""TorchX integration: the schedulers ``aws_batch`` and ``kubernetes_job``.

Both submit apps as command jobs.

===============  ====================================================================
scheduler        methods that TorchX calls, for every platform
options          ``-cfg`` options, for every platform
roles            role parsing and node groups, for every platform
request          request that a dry run shows and `schedule` submits
apps, states     jobs as apps
workspace        folder that is uploaded with an app
batch/           options, mapping and scheduler of AWS Batch
kubernetes/      options, mapping and scheduler of Kubernetes
===============  ====================================================================

TorchX finds the schedulers through modules of ``torchx_plugins.schedulers``, a package next to
this one. They need the ``torchx`` extra: ``pip install '.[torchx]'`` in farcall's folder.
"""

from __future__ import annotations

import importlib.util

from farcall.model.names import install

if importlib.util.find_spec("torchx") is None:
    raise ModuleNotFoundError(
        f"The TorchX schedulers require torchx. {install('torchx')}", name="torchx"
    )
