"""joblib and scikit-learn on Batch."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import joblib
import numpy as np
import pytest
from joblib import Parallel, delayed

from farcall import BatchPoolExecutor, SettingsError
from tests.support import jobs
from tests.support.patience import until
from tests.support.tasks import wait_for

pytestmark = pytest.mark.usefixtures("module_travels")

OnBatch = Callable[..., joblib.parallel_config]


def where(value: int) -> tuple[int, int]:
    return value, os.getpid()


def values(found: list[tuple[int, int]]) -> list[int]:
    return [value for value, _ in found]


def processes(found: list[tuple[int, int]]) -> int:
    return len({pid for _, pid in found})


def calls(found: list[dict[str, Any]]) -> int:
    """Return the number of calls; each array task has one."""
    return sum(job.get("arrayProperties", {}).get("size", 1) for job in found)


def data() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import make_classification  # two seconds, in each process of the tests

    return make_classification(n_samples=60, n_features=8, random_state=3)  # type: ignore[no-any-return]


def version_of(name: str) -> str:
    from importlib import metadata

    return metadata.version(name)


def test_packages_are_synced(on_batch, index):
    index.add("travelled")
    with on_batch(packages=["travelled"]):
        found = Parallel()(delayed(version_of)("travelled") for _ in range(3))
    assert found == ["1.0"] * 3


# --- scikit-learn -----------------------------------------------------------------------------


@pytest.mark.slow  # 200 fits
def test_grid_search_equals_local_search(on_batch):
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import SVC

    def search() -> GridSearchCV:
        grid = {"C": np.logspace(-2, 2, 10), "gamma": np.logspace(-3, 1, 4)}
        return GridSearchCV(SVC(), grid, cv=5).fit(*data())

    here = search()
    with on_batch(chunksize=100):
        there = search()

    assert len(here.cv_results_["params"]) * here.n_splits_ == 200
    columns = [name for name in here.cv_results_ if not name.endswith("_time")]
    for name in columns:
        np.testing.assert_array_equal(there.cv_results_[name], here.cv_results_[name], name)
    assert here.best_params_ == there.best_params_
    assert np.array_equal(
        here.best_estimator_.support_vectors_, there.best_estimator_.support_vectors_
    )


def test_forest_fits_on_batch(on_batch):
    from sklearn.ensemble import RandomForestClassifier

    forest = RandomForestClassifier(n_estimators=8, random_state=1)
    here = forest.fit(*data()).predict_proba(data()[0])

    with on_batch(chunksize=8):
        there = forest.fit(*data())
        found = there.predict_proba(data()[0])

    assert np.array_equal(here, found)
    assert calls(jobs.find("parallel_build_trees")) == 1


# --- where calls run --------------------------------------------------------------------------


def test_calls_run_on_batch_by_default(on_batch):
    with on_batch():
        found = Parallel()(delayed(where)(number) for number in range(2))

    assert values(found) == [0, 1]
    assert processes(found) == 2
    assert os.getpid() not in {pid for _, pid in found}


def test_single_job_runs_locally(on_batch):
    with on_batch():
        found = Parallel(n_jobs=1)(delayed(where)(number) for number in range(3))

    assert [(number, os.getpid()) for number in range(3)] == found


def test_each_chunk_runs_in_one_process(options):
    parallel = Parallel(backend="farcall", chunksize=3, **options)
    found = parallel(delayed(where)(number) for number in range(5))

    assert values(found) == [*range(5)]
    assert processes(found) == 2


def test_n_jobs_limits_submitted_jobs(on_batch, tmp_path, gate):
    def only_two(number: int) -> int:
        (tmp_path / f"began-{number}").touch()
        return wait_for(gate, number)

    def look_and_open() -> int:
        until(lambda: len(list(tmp_path.glob("began-*"))) == 2)
        found = calls(jobs.find("only_two"))
        gate.touch()
        return found

    with on_batch(n_jobs=2):
        found = Parallel(return_as="generator")(delayed(only_two)(number) for number in range(3))
        assert look_and_open() == 2
        assert list(found) == [*range(3)]


@pytest.mark.parametrize("vcpu", [1, 2])
def test_nested_parallel_uses_threads(on_batch, vcpu):
    def inside() -> tuple[int, set[int]]:
        found = Parallel()(delayed(where)(number) for number in range(3))
        return joblib.effective_n_jobs(None), {pid for _, pid in found} - {os.getpid()}

    with on_batch(vcpu=vcpu):
        assert Parallel()([delayed(inside)()]) == [(vcpu, set())]


# --- results -----------------------------------------------------------------------------------


@pytest.mark.core
def test_first_failure_cancels_other_jobs(on_batch, tmp_path):
    began = tmp_path / "began"

    def fail_or_wait(number: int) -> None:
        if number == 0:
            wait_for(began)
            raise KeyError("the first")
        began.touch()
        wait_for(tmp_path / "never")

    with on_batch(), pytest.raises(KeyError, match="the first") as caught:
        Parallel()(delayed(fail_or_wait)(number) for number in range(2))

    assert "in fail_or_wait" in "".join(caught.value.__notes__)  # the remote traceback
    until(lambda: jobs.states("fail_or_wait") == {"FAILED"})


def test_timeout_cancels_jobs(on_batch, tmp_path):
    def too_long() -> None:
        wait_for(tmp_path / "never")

    with on_batch(), pytest.raises(multiprocessing.TimeoutError):
        Parallel(timeout=0.5)([delayed(too_long)()])

    until(lambda: jobs.states("too_long") <= {"FAILED"})


def test_closed_generator_cancels_jobs(on_batch, tmp_path):
    def begin_and_wait() -> None:
        (tmp_path / "began").touch()
        wait_for(tmp_path / "never")

    with on_batch():
        found = Parallel(return_as="generator")([delayed(begin_and_wait)()])
        until((tmp_path / "began").exists)
        with pytest.warns(UserWarning, match="cancelled"):
            found.close()

    until(lambda: jobs.states("begin_and_wait") == {"FAILED"})


def test_parallel_is_reusable_after_failure(on_batch):
    with on_batch(), Parallel() as parallel:
        with pytest.raises(ZeroDivisionError):
            parallel([delayed(divmod)(7, 0)])
        assert parallel([delayed(divmod)(7, 2)]) == [(3, 1)]


def test_generator_yields_finished_results(on_batch, gate):
    with on_batch():
        two = [delayed(wait_for)(gate, "late"), delayed(str)("early")]
        found = Parallel(return_as="generator_unordered")(two)
        assert next(found) == "early"
        gate.touch()
        assert list(found) == ["late"]


def test_parallel_calls_can_be_nested_locally(on_batch):
    with on_batch():
        found = Parallel(return_as="generator")(delayed(abs)(number) for number in (-1, -2))
        assert [Parallel()([delayed(abs)(-10 * value)]) for value in found] == [[10], [20]]


def test_arguments_may_wait_for_other_calls(on_batch, options):
    """joblib reads further calls in its callbacks."""
    with BatchPoolExecutor(**options) as pool, on_batch(n_jobs=2):
        given = ["first", pool.submit]
        calls = (delayed(str)(one if one == "first" else one(abs, -2).result()) for one in given)
        assert Parallel(pre_dispatch=1)(calls) == ["first", "2"]


def test_no_calls_return_empty_list(on_batch):
    with on_batch():
        assert Parallel()([]) == []


# --- options ----------------------------------------------------------------------------------


def test_unknown_option_is_named():
    with pytest.raises(SettingsError, match="vpcu"):
        joblib.parallel_config(backend="farcall", vpcu=2)
    with pytest.raises(SettingsError, match="vpcu"):
        Parallel(backend="farcall", vpcu=2)([])


@pytest.mark.parametrize("chunksize", [0, -1, True, 2.5, "4"])
def test_invalid_chunksize_is_rejected(chunksize):
    with pytest.raises(SettingsError, match="chunksize is .*at least 1"):
        joblib.parallel_config(backend="farcall", chunksize=chunksize)


def test_several_nodes_are_rejected():
    with pytest.raises(SettingsError, match="nodes is 2; use 1 with joblib"):
        joblib.parallel_config(backend="farcall", nodes=2)


def test_zero_jobs_are_rejected(on_batch):
    with on_batch(), pytest.raises(ValueError, match="n_jobs is 0"):
        Parallel(n_jobs=0)([delayed(abs)(1)])


def test_missing_joblib_names_install_command():
    code = "import sys; sys.modules['joblib'] = None; import farcall.joblib"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert "The joblib backend requires joblib. Run `pip install '.[joblib]'`" in done.stderr
