"""ReceiveMessage of SQS with long polling, for which moto would wait where nobody else may work.

moto waits inside the request, hence under the lock of the service, and nothing could be sent to
the queue for which it waits. So moto is asked for what is there, again and again, and the lock is
free meanwhile. Who has hung up gets no message: it would stay hidden from everybody else for the
queue's visibility timeout.

Source:
    https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_ReceiveMessage.html
"""

from __future__ import annotations

import io
import json
import select
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

_TARGET = "AmazonSQS.ReceiveMessage"
_LONGEST_S = 20
#: How often is looked whether the client is there, and whether hidden messages are visible again.
_LOOK_S = 0.5
#: The least time between two looks: moto counts messages of a busy FIFO group as there.
_PAUSE_S = 0.02


def may_wait(environ: dict[str, Any]) -> bool:
    """Say whether a request is a ReceiveMessage call."""
    return bool(environ.get("HTTP_X_AMZ_TARGET") == _TARGET)


def receive(
    sqs: Any,
    environ: dict[str, Any],
    start_response: Callable[..., Any],
    app: Callable[..., Iterable[bytes]],
    lock: AbstractContextManager[Any],
    refill: Callable[[Any], None],
) -> list[bytes]:
    """Answer a ReceiveMessage call once there is a message or its time is over.

    Args:
        sqs: moto's backend.
        environ: The request.
        start_response: Takes status and headers.
        app: Has moto answer a request.
        lock: Held while it does.
        refill: Puts into a queue of moto's what waits for room there.
    """
    body = environ["wsgi.input"].read()
    queue, wait_s = _wanted(sqs, body)
    if queue is not None:
        body = json.dumps({**json.loads(body), "WaitTimeSeconds": 0}).encode()
    deadline = time.monotonic() + wait_s
    while not _has_hung_up(environ.get("werkzeug.socket")):
        asked = {**environ, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        given: list[Any] = []
        with lock:
            if queue is not None:
                refill(queue)
            answer = list(app(asked, lambda *what, given=given: given.extend(what)))
        left = deadline - time.monotonic()
        there = not given[0].startswith("200") or b'"Messages"' in b"".join(answer)
        if there or left <= 0:
            start_response(*given)
            return answer
        queue.wait_for_messages(min(left, _LOOK_S))
        time.sleep(_PAUSE_S)
    start_response("408 -", [])  # which nobody reads
    return []


def _wanted(sqs: Any, body: bytes) -> tuple[Any, int]:
    """Return the queue and for how long to wait; no queue and 0 for what moto refuses at once."""
    try:
        document = json.loads(body)
        queue = sqs.get_queue(document["QueueUrl"].rpartition("/")[2])
        wait_s = int(document.get("WaitTimeSeconds", queue.receive_message_wait_time_seconds))
    except Exception:  # no such queue, no queue named, no number, no JSON
        return None, 0
    return (queue, wait_s) if 0 <= wait_s <= _LONGEST_S else (None, 0)


def _has_hung_up(connection: socket.socket | None) -> bool:
    """Say whether the other side closed a connection while it waits for an answer."""
    if connection is None:
        return False
    try:
        # Not recv alone, which waits where the connection has a time limit.
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        return bool(poll.poll(0)) and not connection.recv(1, socket.MSG_PEEK)
    except (OSError, ValueError):  # it is closed here, too
        return True
