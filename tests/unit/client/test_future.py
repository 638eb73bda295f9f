"""Futures whose jobs can be cancelled while they run."""

import concurrent.futures
import sys
import threading
import traceback
from concurrent.futures import _base as futures

import pytest

from farcall import BatchFuture, TaskNotPicklableError
from farcall.client import future as future_module
from farcall.payload import pickling
from tests.support.patience import PATIENCE_S


class Owner:
    """Records the requests of a future."""

    def __init__(self):
        self.ended = []

    def check_process(self):
        pass

    def check_thread(self):
        pass

    def end(self, future):
        self.ended.append(future)


@pytest.fixture
def owner():
    return Owner()


@pytest.fixture
def future(owner):
    return BatchFuture(owner)


def test_future_is_pending_until_accepted(future):
    assert not future.running()
    assert future.job_id is None
    future._record_accepted("j1", dict)
    assert future.running()
    assert future.job_id == "j1"


def test_ctrl_c_leaves_no_lock_held(future):
    """Interrupt each call and return, where Python checks for signals."""
    number = interrupted = 0

    def trace(frame, event, _):
        nonlocal interrupted
        files = threading.__file__, futures.__file__, future_module.__file__
        if event in ("call", "return") and frame.f_code.co_filename in files:
            interrupted += 1
            if interrupted == number:
                raise KeyboardInterrupt
        return trace

    def take():
        taken.append(future._condition.acquire(blocking=False))

    while interrupted == number:
        number, interrupted, taken = number + 1, 0, []
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            future.running()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        thread = threading.Thread(target=take)
        thread.start()
        thread.join()
        assert taken == [True], number
        future._condition = type(future._condition)()
    assert number > 3


@pytest.mark.parametrize("is_accepted", [False, True])
def test_cancelling_notifies_waiters_and_ends_job(future, owner, is_accepted):
    called = []
    future.add_done_callback(called.append)
    if is_accepted:
        future._record_accepted("j1", dict)
    assert future.cancel()
    assert future.cancel()
    assert future.cancelled()
    assert not future.running()
    assert called == [future]
    assert owner.ended == [future]
    assert concurrent.futures.wait([future]).done == {future}
    assert list(concurrent.futures.as_completed([future])) == [future]
    with pytest.raises(concurrent.futures.CancelledError):
        future.result()
    with pytest.raises(concurrent.futures.InvalidStateError):
        future.set_result(1)
    future._record_accepted("j1", dict)
    assert future.cancelled()


def test_cancel_pending_keeps_running_future(future, owner):
    future._record_accepted("j1", dict)
    assert not future._cancel_pending()
    assert future.running()
    other = BatchFuture(owner)
    assert other._cancel_pending()
    assert owner.ended == [other]


def test_raising_again_adds_no_frames(future):
    future.set_exception(KeyError("x"))
    seen = []
    for _ in range(5):
        with pytest.raises(KeyError) as caught:
            future.result()
        seen.append(len(traceback.extract_tb(caught.value.__traceback__)))
    assert len(set(seen)) == 1


def test_pickling_is_rejected(future):
    with pytest.raises(TaskNotPicklableError, match=r"Pass its result\(\)"):
        next(pickling.pack_calls([[((future,), {})]]))


def test_callback_may_wait_for_state_reader(future):
    """The lock is not held while the callbacks of a cancellation run."""
    seen = []

    def ask(_):
        other = threading.Thread(target=lambda: seen.append(future.cancelled()), daemon=True)
        other.start()
        other.join(PATIENCE_S / 5)

    future.add_done_callback(ask)
    assert future._cancel_pending()
    assert seen == [True]


def test_callback_error_does_not_keep_job(future, owner):
    future.add_done_callback(lambda _: sys.exit(1))
    with pytest.raises(SystemExit):
        future.cancel()
    assert owner.ended == [future]
