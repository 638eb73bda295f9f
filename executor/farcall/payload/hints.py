"""Hint on what a function raised in its job, where the cause is that it ran in a job."""

from __future__ import annotations

import re

from farcall.payload.sources import why_left_out

_IS_PLAIN = (
    "Inside a job a task of farcall's is the plain function, which runs there: call it as "
    "function(...), without await; its calls become jobs where the workflow runs"
)
_IS_LACKING = (
    "The Python of the job has no {0}: name its package in extra_packages, set packages to "
    '"auto", which sends what your code imports, or build it into the image (PIP_PACKAGES, see '
    "docs/image.md)"
)
_LACKS_LIBRARY = (
    "The image of the job has no {0}, a library of the system's: packages do not bring those "
    "along. Set container_image_uri (image on Kubernetes) to one that has it (docs/image.md), or "
    "look for a package that needs none, as opencv-python-headless does not need libGL"
)
_IS_TOO_OLD = (
    "The image of the job has an older {0} than a package was built for: set "
    "container_image_uri (image on Kubernetes) to one of a newer Linux, or name an older version "
    "of the package"
)
_IS_NOT_SENT = (
    "The job has no file {0}: only files of your project up to 1 MB are sent (docs/sources.md). "
    "Read the file before the call and pass its content (docs/shared-data.md), or put it on S3 or "
    "into the image"
)
_HINTS = (
    (
        "AttributeError",
        r"'(function|method)' object has no attribute '(map|starmap|submit|run|local)'",
        _IS_PLAIN,
    ),
    ("TypeError", r"object .+ can't be used in 'await' expression", _IS_PLAIN),
    ("TypeError", r"'.+' object can't be awaited", _IS_PLAIN),
    ("ValueError|TypeError", r"a coroutine was expected, got .*", _IS_PLAIN),
    (
        "ImportError|OSError",
        r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file: No such file or directory",
        _LACKS_LIBRARY,
    ),
    ("ImportError|OSError", r".*version `(GLIBC|GLIBCXX)_[\d.]+' not found .*", _IS_TOO_OLD),
    (
        "FileNotFoundError",
        r"\[Errno 2\] No such .+: '((?!/)[^']+|/(?:home|media|mnt|root|Users|Volumes)/[^']*)'",
        _IS_NOT_SENT,
    ),
    ("ModuleNotFoundError", r"No module named '(\w+)(?:\.[^']*)?'.*", _IS_LACKING),
)
"""By class and text of the error; what is in its groups stands in the hint."""


def hint(kind: str, message: str) -> str:
    """Return what to do about an error; empty where there is nothing to say."""
    for kinds, text, found in _HINTS:
        meant = re.fullmatch(text, message)
        if meant is not None and re.fullmatch(kinds, kind.rpartition(".")[2]):
            if found is _IS_LACKING and (why := why_left_out(meant[1])):
                return f"The job has no module {meant[1]}: {why}. See docs/sources.md"
            return found.format(*meant.groups())
    return ""
