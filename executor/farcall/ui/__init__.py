"""Web UI that shows and cancels jobs: its server, for one user on one machine.

`serve` listens on loopback and uses the AWS credentials of the user who started it. All data come
from Batch and S3, so the server can be started and stopped anywhere at any time.

===========  ============================================================
guard        request checks: the token, host names, origins, headers
api          HTTP API
site         data and actions behind the API
jobs         jobs of some queues, polled while a browser listens
parts        parts of one job: array tasks or nodes
watchers     session, and polling for jobs and parts
server       HTTP server
static       files of the browser
===========  ============================================================

It needs the ``ui`` extra: ``pip install '.[ui]'`` in farcall's folder.
"""

from __future__ import annotations

from farcall.model.names import install

try:
    import starlette
    import uvicorn
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"The web UI requires {error.name}. {install('ui')}", name=error.name
    ) from error

from farcall.ui.server import Served, serve
from farcall.ui.site import Options, Site

__all__ = ["Options", "Served", "Site", "serve"]

del starlette, uvicorn
