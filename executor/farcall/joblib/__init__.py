"""The joblib backend, ``"farcall"``: what scikit-learn and ``joblib.Parallel`` run, as Batch jobs.

::

    import farcall.joblib
    import joblib

    with joblib.parallel_config(backend="farcall", vcpu=2, memory=4):
        search = GridSearchCV(SVC(), grid).fit(X, y)

Importing this module registers the name; joblib looks for no backends by itself. It needs the
``joblib`` extra, ``pip install 'farcall[joblib]'``, and an image that has joblib and scikit-learn,
in the versions that are here.
"""

from __future__ import annotations

try:
    from joblib import register_parallel_backend
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"The joblib backend needs {error.name}: pip install 'farcall[joblib]'", name=error.name
    ) from error

from farcall.joblib.backend import AWSBatchBackend

__all__ = ["AWSBatchBackend"]

register_parallel_backend("farcall", AWSBatchBackend)
