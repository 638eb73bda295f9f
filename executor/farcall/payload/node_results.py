"""Results of multi-node calls, combined from the results on each node. No I/O."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from farcall.model import errors, failure_reasons
from farcall.payload import results
from farcall.payload.results import Result
from farcall_runtime.contract import OutcomeStatus

_MOST_NOTES = 20
_STOPPED = (OutcomeStatus.TERMINATED, OutcomeStatus.PEER_FAILED)


class NodeEnd(NamedTuple):
    """End of a task on one node.

    Attributes:
        node: The node's index.
        results: One result for each call.
        meta: The outcome's description; None if there is no usable outcome.
    """

    node: int
    results: Sequence[Result]
    meta: dict[str, Any] | None = None

    @property
    def was_stopped(self) -> bool:
        """Whether it was stopped because another node or the job ended."""
        return self.meta is not None and self.meta["status"] in _STOPPED

    @property
    def ended_at(self) -> float:
        """Time of its end, by the node's clock; 0 if the outcome is unreadable."""
        return 0.0 if self.meta is None else float(self.meta["ended_at"])

    def line(self, error: BaseException) -> str:
        """Describe its failure in one line."""
        if self.meta is not None:
            return results.of_node(self.meta).sentence
        message = str(error) if isinstance(error, errors.FarcallError) else ""
        return (
            f"node {self.node} failed: {failure_reasons.in_a_line(type(error).__name__, message)}"
        )


def join(
    main: NodeEnd,
    others: Sequence[NodeEnd],
    nodes: int,
    incomplete: BaseException | None,
    *,
    main_decides: bool,
) -> list[Result]:
    """Combine the results of a task's calls on all nodes.

    A call's result is the list of the nodes' results, in the order of the nodes. If nodes failed,
    the error of the first failure is raised, and its notes describe the other failures. Output and
    times are the main node's.

    Args:
        main: The main node.
        others: The other nodes; without those that left no outcome if the main node failed.
        nodes: Number of nodes.
        incomplete: The error of a call that has neither ended on all nodes nor failed on one.
        main_decides: Whether the main node's errors take precedence over those of other nodes.
    """
    joined = []
    for number, own in enumerate(main.results):
        each = [end.results[number] for end in (main, *others)]
        failed = _failed(number, main, others)
        if failed and not (main_decides and own.error is not None):
            decides = failed[0][0].node
            error: BaseException | None = failed[0][1]
        else:
            decides, error = main.node, own.error
        if error is None and (len(each) < nodes or any(one.error is not None for one in each)):
            error = incomplete
        if error is None:
            joined.append(own._replace(value=[one.value for one in each]))
            continue
        _note(error, [(end, other) for end, other in failed if end.node != decides])
        joined.append(own._replace(value=None, error=error))
    return joined


def _failed(
    number: int, main: NodeEnd, others: Sequence[NodeEnd]
) -> list[tuple[NodeEnd, BaseException]]:
    """Return the nodes on which a call failed by itself, in the order of their ends."""
    found = []
    for end in sorted((main, *others), key=lambda end: end.ended_at):
        error = end.results[number].error
        if error is not None and not end.was_stopped:
            found.append((end, error))
    return found


def _note(error: BaseException, rest: Sequence[tuple[NodeEnd, BaseException]]) -> None:
    lines = [end.line(other) for end, other in rest[:_MOST_NOTES]]
    if len(rest) > _MOST_NOTES:
        lines.append(f"{len(rest) - _MOST_NOTES} more nodes failed")
    for line in lines:
        with contextlib.suppress(BaseException):  # the error class's own code
            results.add_note(error, line)
