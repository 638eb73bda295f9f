"""Wrong uses of executors, pools, jobs and futures: the error says what to write."""

import pytest

from farcall import BatchExecutor, BatchFuture, BatchPoolExecutor


def simulate(x):
    return x


def enter():
    with BatchExecutor():
        pass


def decorate():
    @BatchExecutor()
    def function(x): ...


def decorate_by_the_class():
    @BatchExecutor.task
    def function(x): ...


@pytest.mark.parametrize(
    ("use", "kind", "words"),
    [
        (enter, TypeError, "`async with`.* `with farcall.BatchPoolExecutor"),
        (decorate, TypeError, "decorate with @executor.task"),
        (decorate_by_the_class, TypeError, "write executor = BatchExecutor"),
        (lambda: BatchExecutor().map(simulate, []), AttributeError, "executor.task.function..map"),
        (lambda: BatchExecutor().shutdown(), AttributeError, "async with BatchExecutor"),
        (lambda: BatchExecutor().nothing, AttributeError, "has no 'nothing'$"),
        (lambda: BatchPoolExecutor().apply_async(simulate), AttributeError, "use submit"),
        (lambda: BatchPoolExecutor().starmap(simulate, []), AttributeError, "use map.*xs, ys"),
        (lambda: BatchPoolExecutor().nothing, AttributeError, "Pool.* has no 'nothing'$"),
    ],
)
def test_wrong_use_error_suggests_fix(use, kind, words):
    with pytest.raises(kind, match=words):
        use()


async def test_async_with_on_pool_is_rejected():
    with pytest.raises(TypeError, match="use `with`.* `async with farcall.BatchExecutor"):
        async with BatchPoolExecutor():
            pass


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (BatchExecutor().attach("job"), r"Write await job\.result\(\)"),
        (BatchFuture(), r"Write await asyncio\.wrap_future\(future\)"),
    ],
    ids=["job", "future"],
)
async def test_await_error_says_how_to_wait(made, words):
    with pytest.raises(TypeError, match=words):
        await made


@pytest.mark.parametrize("typed", ["tsak", "with_option", "submti"])
def test_misspelled_attribute_has_suggestion(typed):
    with pytest.raises(AttributeError) as at:
        getattr(BatchExecutor(), typed)
    assert (at.value.name, type(at.value.obj)) == (
        typed,
        BatchExecutor,
    )  # Python's suggestion needs both
