"""The page on which jobs are seen and cancelled: its server, for one person on one machine.

`serve` answers a browser on loopback with the AWS credentials of whoever started it; what it
shows comes from Batch and S3 alone, so it can be started anywhere, at any time, and ended again.

===========  ============================================================
guard        who may ask at all: the token, names, origins, headers
api          the HTTP API
site         what is behind it
jobs         the jobs of some queues, watched while somebody looks
children     the same for the children of an array
watchers     what both have in common
streams      server-sent events
account      the session, and the requests made of Batch
server       the HTTP server
static       what the browser gets
===========  ============================================================

It needs the ``ui`` extra: ``pip install 'farcall[ui]'``.
"""

from __future__ import annotations

try:
    import starlette
    import uvicorn
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"The page needs {error.name}: pip install 'farcall[ui]'", name=error.name
    ) from error

from farcall.ui.server import Served, serve
from farcall.ui.site import Options, Site

__all__ = ["Options", "Served", "Site", "serve"]

del starlette, uvicorn
