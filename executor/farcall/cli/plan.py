"""``farcall plan``: what `farcall run` would send to Batch, as JSON."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import sys
from typing import Any

import click

from farcall.aws.clients import Aws
from farcall.backends.batch.client import Batch
from farcall.backends.batch.documents import LARGEST_ARRAY
from farcall.backends.batch.plan import Documents
from farcall.backends.batch.preflight import Resources, role_arn
from farcall.cli.options import called, given, job_options
from farcall.cli.printing import say
from farcall.cli.run import prepare
from farcall.client.console import Console
from farcall.engine.session import session_for
from farcall.model.settings import Settings
from farcall.payload import pickling
from farcall_runtime.contract import ENV_OUTCOME_KEY, run_root

_SECRET = "(a secret, made anew for each job)"  # noqa: S105  # it stands in its place
_ACCOUNT = "ACCOUNT"
_RUN = "RUN"


@click.command("plan", context_settings={"allow_interspersed_args": False})
@job_options
@click.option(
    "--array",
    "size",
    type=click.IntRange(1, LARGEST_ARRAY),
    default=1,
    metavar="N",
    help="Plan an array of N such tasks.",
)
@click.option("--offline", is_flag=True, help="Ask AWS for nothing; ARNs have ACCOUNT in them.")
@called
@click.pass_context
def plan(
    ctx: click.Context,
    /,
    target: str,
    args: tuple[str, ...],
    assignments: tuple[str, ...],
    size: int,
    *,
    offline: bool,
    **short: str | None,
) -> None:
    """Show what run would send to Batch, and send nothing.

    \b
    farcall plan train:fit data.csv --epochs 3
    farcall plan --array 100 --vcpu 8 train:fit data.csv

    The JSON holds the very requests, RegisterJobDefinition and SubmitJob, and the size of what
    would be uploaded. Two things differ each time: the end of the job's name, and the key that
    outcomes are signed with, which is not shown. AWS is asked whether what the options name is
    there, and whether the definition is registered already: then it is not registered again.
    """  # noqa: D301  # click's mark for lines to be left as they are
    found, executor, bound = prepare(ctx, target, args, lambda: given(assignments, short))
    document = asyncio.run(_plan(executor.settings, found.function, bound, size, offline=offline))
    text = json.dumps(document, indent=2)
    if sys.stdout.isatty():
        Console().print_json(text, ensure_ascii=True)
    else:
        say(text)


async def _plan(
    settings: Settings,
    function: Any,
    bound: inspect.BoundArguments,
    size: int,
    *,
    offline: bool,
) -> dict[str, Any]:
    pickling.check_callable(function)
    call = bound.args, bound.kwargs
    task = pickling.pack_function(function), pickling.pack_call([call], settings.cache_dir)
    if offline and not settings.container_image_uri:
        image = f"(image of {settings.batch_job_definition_name})"
        settings = settings.replace(container_image_uri=image)
    batch, documents = await (_offline(settings) if offline else _online(settings))
    definition = await documents.definition(settings)
    found = None if offline else await batch.find_definition(definition.name)
    arn = found["jobDefinitionArn"] if found else f"(ARN of {definition.name})"
    name = getattr(function, "__name__", "task")
    bundle = documents.bundle(settings, name, itertools.repeat(task, size))
    size_bytes = sum(map(len, bundle.pieces()))
    request = documents.request(settings, bundle, arn, size=bundle.size)
    for variable in request["containerOverrides"]["environment"]:
        if variable["name"] == ENV_OUTCOME_KEY:
            variable["value"] = _SECRET
    return {
        "definition": {
            "name": definition.name,
            "registered": None if offline else found is not None,
        },
        "bundle": {"url": bundle.where.url, "size_bytes": size_bytes, "tasks": bundle.size},
        "RegisterJobDefinition": {"jobDefinitionName": definition.name, **definition.document},
        "SubmitJob": request,
    }


async def _online(settings: Settings) -> tuple[Batch, Documents]:
    session = await session_for(settings)
    return session.batch, (await session.submitter(settings)).documents


async def _offline(settings: Settings) -> tuple[Batch, Documents]:
    access = await Aws.configured(settings)

    def arn(name: str) -> str:
        is_name = name and not name.startswith("arn:")
        return role_arn(access.region, _ACCOUNT, name) if is_name else name

    resources = Resources(
        arn(settings.batch_job_role_name), arn(settings.batch_execution_role_name)
    )
    batch, root = Batch(access), run_root(settings.prefix, _RUN)
    documents = Documents(
        batch,
        root,
        resources,
        region=access.region,
        bucket_region=access.region,
        endpoint=access.s3_endpoint,
    )
    return batch, documents
