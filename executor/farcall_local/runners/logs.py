"""Output of jobs in CloudWatch Logs, as written by Docker's awslogs driver.

Standard output and standard error are merged into one stream. Each line becomes an event; empty
lines are dropped, because CloudWatch rejects empty events.

Sources:
    https://docs.aws.amazon.com/batch/latest/userguide/using_awslogs.html
    https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/cloudwatch_limits_cwl.html
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from farcall_local import names
from farcall_local.runners.runner import StartError

if TYPE_CHECKING:
    from farcall_local.services.front import Extension

#: Maximum event size: 256 KiB less the 26 bytes that CloudWatch counts for each event.
MAX_EVENT_BYTES = 256 * 1024 - 26
#: Maximum number of characters of the definition's name in a stream's name.
MAX_STREAM_PREFIX = 200


class LogStream:
    """Log stream that splits output into events and writes them while the job runs.

    A write contains one read from a pipe and the rest of an incomplete line, so it hardly exceeds
    the limits of PutLogEvents, 1 MB and 10,000 events.

    Attributes:
        name: Name of the stream.
    """

    def __init__(self, name: str, put: Callable[[list[dict[str, Any]]], None]) -> None:
        self.name = name
        self._put = put
        self._rest = b""

    def write(self, data: bytes) -> None:
        """Write the complete lines, and keep the last one until it is complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) > MAX_EVENT_BYTES:
            lines.append(self._rest[:MAX_EVENT_BYTES])
            self._rest = self._rest[MAX_EVENT_BYTES:]
        self._write(lines)

    def close(self) -> None:
        """Write a last line without a line end."""
        self._write([self._rest])
        self._rest = b""

    def _write(self, lines: list[bytes]) -> None:
        now = names.now_ms()
        events = [
            {"timestamp": now, "message": line[at : at + MAX_EVENT_BYTES].decode(errors="replace")}
            for line in lines
            for at in range(0, len(line), MAX_EVENT_BYTES)
        ]
        if events:
            self._put(events)


#: Creates an attempt's stream, given the arguments of `CloudWatchLogs.open`.
OpenLog = Callable[["dict[str, Any] | None", str, str, "str | None"], "LogStream | None"]


class CloudWatchLogs:
    """Log groups of moto, accessed without HTTP.

    Args:
        backend: moto's backend of the service in one region.
        lock: Held for each call, because moto's backends are not thread-safe.
        extension: Checks the permissions of execution roles; None if every role may do everything.
    """

    def __init__(
        self, backend: Any, lock: AbstractContextManager[Any], extension: Extension | None = None
    ) -> None:
        self._backend = backend
        self._lock = lock
        self._extension = extension

    def open(
        self,
        configuration: dict[str, Any] | None,
        definition: str,
        task_id: str,
        role_arn: str | None,
    ) -> LogStream | None:
        """Create the stream of an attempt.

        Args:
            configuration: The definition's logConfiguration.
            definition: Name of the definition, the prefix of the stream's name unless
                ``awslogs-stream-prefix`` is set.
            task_id: Last part of the stream's name.
            role_arn: ARN of the execution role; None if the instance writes the log.

        Returns:
            The stream, or None if the log driver is not awslogs.

        Raises:
            StartError: The group does not exist and the options do not create it, or the role may
                not write to it.
        """
        configuration = configuration or {}
        if configuration.get("logDriver", "awslogs") != "awslogs":
            return None
        options = configuration.get("options") or {}
        group = options.get("awslogs-group", names.DEFAULT_LOG_GROUP)
        prefix = options.get("awslogs-stream-prefix", definition[:MAX_STREAM_PREFIX])
        stream = f"{prefix}/default/{task_id}"
        creating = options.get("awslogs-create-group") == "true"
        for action in ("CreateLogGroup", "CreateLogStream") if creating else ("CreateLogStream",):
            objection = self._objection(role_arn, task_id, action, group)
            if objection:
                raise _no_stream(f"AccessDeniedException: {objection}")
        with self._lock:
            if creating or group == names.DEFAULT_LOG_GROUP:  # Batch creates this group itself
                self._backend.ensure_log_group(group)
            if group not in self._backend.groups:
                raise _no_stream(
                    "ResourceNotFoundException: The specified log group does not exist."
                )
            self._backend.create_log_stream(group, stream)
        if self._objection(role_arn, task_id, "PutLogEvents", group, stream):
            return LogStream(stream, lambda _: None)  # Docker, too, drops the output
        return LogStream(stream, lambda events: self._store(group, stream, events))

    def _objection(
        self, role_arn: str | None, task_id: str, action: str, group: str, stream: str = ""
    ) -> str | None:
        if self._extension is None or role_arn is None:
            return None
        return self._extension.log_objection(role_arn, task_id, action, group, stream)

    def _store(self, group: str, stream: str, events: list[dict[str, Any]]) -> None:
        with self._lock:
            # If the log group is deleted while the job runs, the output is lost.
            if stream in getattr(self._backend.groups.get(group), "streams", ()):
                self._backend.put_log_events(group, stream, events)


def _no_stream(why: str) -> StartError:
    return StartError(
        "ResourceInitializationError: failed to validate logger args: create stream has been "
        f"retried 1 times: failed to create Cloudwatch log stream: {why}"
    )
