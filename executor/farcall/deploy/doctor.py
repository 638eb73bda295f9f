"""Health checks of the stack that a queue belongs to: its state, and what options name."""

from __future__ import annotations

from farcall.aws.clients import Aws
from farcall.aws.findings import FAILED, OK, WARNING, Finding, told
from farcall.deploy import gives
from farcall.deploy.asking import ask
from farcall.deploy.contents import TAG
from farcall.deploy.stack import Stack
from farcall.model.errors import ServiceError
from farcall.model.settings import Settings

_CHECK = "stack"


async def examine(access: Aws, settings: Settings) -> list[Finding]:
    """Look at the stack that `farcall deploy` has made; of other queues nothing is said."""
    queue = settings.batch_queue
    reply = await ask(access, "batch", "describe_job_queues", jobQueues=[queue])
    name = next((q.get("tags", {}).get(TAG, "") for q in reply["jobQueues"]), "")
    if not name:
        return []
    try:
        state = await Stack(access, name).state()
    except ServiceError as error:
        return [told(_CHECK, error)]
    if state is None:
        found = f"{name}, to which queue {queue} belongs, is not in {access.region_and_origin}"
        return [Finding(_CHECK, WARNING, found, "`farcall deploy` makes another")]
    text = f"{name}, {state.status}"
    if state.is_under_way:
        return [Finding(_CHECK, WARNING, f"{text}: somebody is at work on it", "wait for its end")]
    if not state.is_well:
        verdict = FAILED if state.is_dead else WARNING
        again = f"`farcall deploy --name {name}` makes it what it should be, or says why not"
        return [Finding(_CHECK, verdict, f"{text}: {state.reason or 'no reason is given'}", again)]
    others = [
        f"{option} is {getattr(settings, option)}, and the stack's {value}"
        for option, value in gives.names(state).items()
        if not f"/{getattr(settings, option)}".endswith(f"/{value}")  # a role may be an ARN
    ]
    if others:
        again = f"`farcall deploy --name {name}` writes the stack's, if that is what you want"
        return [Finding(_CHECK, WARNING, f"{text}; {', '.join(others)}", again)]
    return [Finding(_CHECK, OK, text)]
