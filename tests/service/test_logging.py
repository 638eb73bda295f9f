"""Log records of tasks.

Starts the local AWS emulator, because a task configures logging in its own process.
"""

import asyncio
import logging
import logging.config
import re

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"


def log_plainly():
    logging.getLogger("train.model").debug("unseen")
    logging.getLogger("train.model").info("epoch %d", 3)
    try:
        raise KeyError("lost")
    except KeyError:
        logging.getLogger("train").exception("on purpose")


def log_by_functions():
    logging.info("by the module's function")
    logging.getLogger("other").warning("after it")


def log_configured():
    logging.basicConfig(format="mine %(message)s", level="WARNING")
    logging.info("unseen")
    logging.warning("seen")


def log_by_dictionary():
    handler = {"class": "logging.StreamHandler", "formatter": "short"}
    logging.config.dictConfig(
        {
            "version": 1,
            "formatters": {"short": {"format": "%(levelname)s/%(message)s"}},
            "handlers": {"own": handler},
            "loggers": {"app": {"handlers": ["own"], "propagate": False}},
        }
    )
    logging.getLogger("app").info("by its own handler")
    logging.getLogger("library").info("by the default")


async def written(executor, function):
    job = await executor.submit(function)
    await job.result()
    assert await job.stdout() == ""
    return (await job.stderr()).splitlines()


async def test_tasks_log_by_default_or_configuration(executor):
    functions = (log_plainly, log_by_functions, log_configured, log_by_dictionary)
    plain, simple, own, dictionary = await asyncio.gather(
        *(written(executor, function) for function in functions)
    )

    assert re.fullmatch(f"{TIME} INFO train.model: epoch 3", plain[0])
    assert re.fullmatch(f"{TIME} ERROR train: on purpose", plain[1])
    assert (plain[2], plain[-1]) == ("Traceback (most recent call last):", "KeyError: 'lost'")
    assert re.fullmatch(f"{TIME} INFO root: by the module's function", simple[0])
    assert re.fullmatch(f"{TIME} WARNING other: after it", simple[1])
    assert own == ["mine seen"]
    assert dictionary[0] == "INFO/by its own handler"
    assert re.fullmatch(f"{TIME} INFO library: by the default", dictionary[1])
