"""Bundles as a client stores them, on an in-memory store."""

from farcall import Settings
from farcall.model.submission import Submission
from farcall.model.workflows import Workflow
from farcall.payload.bundle import Bundle
from farcall.payload.call_texts import CallTexts
from farcall.payload.pickling import pack_calls, pack_function
from farcall_runtime import contract

ROOT = "farcall/v1/run"


def double(x, **_):
    return 2 * x


async def submit(store, *tasks, root=ROOT, job_id="6f1c", **options):
    """Store a bundle of tasks with some calls each.

    Returns:
        Its job, and the job's environment.
    """
    function = pack_function(double)
    settings = Settings(**options)
    to_text = CallTexts(double).of if settings.store_call_summaries else None
    packed = ((function, arguments) for arguments in pack_calls(tasks, to_text=to_text))
    made = Bundle(settings, root, "double", packed, Workflow("w"), most=10_000)
    await store.put(made.where.bundle_key, made.pieces())
    environment = made.environment(
        url=contract.bucket_url(made.where.bucket, "us-east-1"), region="us-east-1"
    )
    digest = environment[contract.ENV_DIGEST]
    name = made.where.bundle
    return Submission(job_id, name, made.where, made.key, made.size, digest), environment
