"""Joblib backend ``"farcall"``, for scikit-learn and ``joblib.Parallel`` on Batch.

::

    import farcall.joblib
    import joblib

    with joblib.parallel_config(backend="farcall", vcpu=2, memory=4):
        search = GridSearchCV(SVC(), grid).fit(X, y)

Importing this module registers the backend, because joblib does not search for backends. It needs
the ``joblib`` extra, ``pip install '.[joblib]'`` in farcall's folder, and an image with joblib and
scikit-learn in the local versions.
"""

from __future__ import annotations

from farcall.model.names import install

try:
    from joblib import register_parallel_backend
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"The joblib backend requires {error.name}. {install('joblib')}", name=error.name
    ) from error

from farcall.joblib.backend import AWSBatchBackend

__all__ = ["AWSBatchBackend"]

register_parallel_backend("farcall", AWSBatchBackend)
