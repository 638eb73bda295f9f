"""Health checks of the bucket: region, access, object lifetime, and a round trip."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError

from farcall.aws import clients, error_translation
from farcall.aws.clients import Aws
from farcall.aws.findings import guarded
from farcall.config.settings import Settings
from farcall.model.errors import ServiceError, SettingsError
from farcall.model.findings import FAILED, NOT_CHECKED, OK, WARNING, Finding, parted
from farcall.storage.bucket import RANGE_IGNORED, Bucket, demanded
from farcall.storage.packages import FRESH
from farcall_runtime.contract import Location, run_root

_BLOCKS = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
_EVERYBODY = ("/global/AllUsers", "/global/AuthenticatedUsers")
_NOT_IMPLEMENTED = 501
_OTHER_STORE = (
    "set s3_bucket_name and endpoint_url to a store that behaves like S3, or update this one: "
    "farcall stores each result only once, and reads results in parts"
)
_OF_BUCKETS = ("public access", "lifecycle", "versions")
_ACCESS_POINT = (
    "an access point does not report it for its bucket",
    "check the bucket itself: FARCALL_S3_BUCKET_NAME=BUCKET farcall doctor",
)
_USE_DAYS = 7
"""Days for which Batch lists a finished job, which needs its objects that long."""

_KEPT_DAYS = _USE_DAYS + FRESH.days
"""Days for which objects must exist; shared values may be reused for some days."""

_ADVISED_DAYS = 30


async def examine(access: Aws, settings: Settings, time_limit_s: float) -> list[Finding]:
    """Run all checks of the bucket."""
    name = settings.s3_bucket_name
    if not name:
        return [Finding("bucket", OK, "not set: functions need a bucket, command jobs do not")]
    client = await access.client("s3")
    first = await guarded("bucket", _locate(client, access, name), time_limit_s)
    if first[0].verdict == FAILED:
        return first
    if name.startswith("arn:") or name.endswith("-s3alias"):
        unchecked = [Finding(each, NOT_CHECKED, *_ACCESS_POINT) for each in _OF_BUCKETS]
        return [
            *first,
            *await guarded("bucket access", _round_trip(access, settings), time_limit_s),
            *unchecked,
        ]
    checks = {
        "bucket access": _round_trip(access, settings),
        "public access": _public(client, name),
        "lifecycle": _lifecycle(client, settings),
        "versions": _versions(client, settings),
    }
    limited = (guarded(n, check, time_limit_s) for n, check in checks.items())
    results = await asyncio.gather(*limited)
    return [*first, *(finding for several in results for finding in several)]


async def _locate(client: Any, access: Aws, name: str) -> list[Finding]:
    try:
        reply = await clients.call(client, "head_bucket", Bucket=name)
    except ServiceError as error:
        if error.status != 404:
            raise
        raise SettingsError(
            f"s3_bucket_name is {name!r}, which does not exist; create it, or set "
            "s3_bucket_name to an existing bucket",
            option="s3_bucket_name",
        ) from error
    region = reply["ResponseMetadata"]["HTTPHeaders"].get("x-amz-bucket-region", access.region)
    if region == access.region:
        return [Finding("bucket", OK, f"{name}, in {region}")]
    text = f"{name}, in {region}, but the jobs are in {access.region}"
    remedy = (
        "this works, but transfers between regions cost money and take longer: set "
        "s3_bucket_name to a bucket in the jobs' region, or set region"
    )
    return [Finding("bucket", WARNING, text, remedy)]


async def _round_trip(access: Aws, settings: Settings) -> list[Finding]:
    """Write, read and delete an object as the client and the container do."""
    name = settings.s3_bucket_name
    root = run_root(settings.prefix, f"doctor-{secrets.token_hex(6)}")
    key = Location(name, root, "doctor").bundle_key
    bucket = Bucket(name, access)
    data = secrets.token_bytes(16)

    async def get(store: Any) -> bytes:
        return bytes(await (await obstore.get_async(store, key)).bytes_async())

    try:
        await bucket.send("PutObject", key, lambda s: obstore.put_async(s, key, data))
        try:
            if await bucket.send("GetObject", key, get) != data:
                return [
                    Finding("bucket access", FAILED, f"s3://{name}/{key} was changed by the store")
                ]
            lacking = [*await _ranges(bucket, key, data), *await _overwrites(bucket, key)]
            if lacking:
                return lacking
        finally:
            await bucket.send("DeleteObject", key, lambda s: obstore.delete_async(s, [key]))
    except ServiceError as error:
        if not error_translation.is_denied(error):
            raise
        # Without this permission, the caller cannot submit. Other checks cover other permissions.
        remedy = (
            demanded(error)
            or f"allow s3:{error.operation} under {settings.prefix}/, see `farcall policy client`"
        )
        return [Finding("bucket access", FAILED, parted(str(error))[0], remedy)]
    text = f"an object under {settings.prefix}/ was written, read and deleted"
    return [Finding("bucket access", OK, text)]


async def _overwrites(bucket: Bucket, key: str) -> list[Finding]:
    """Check that a conditional request does not replace an existing object."""

    async def create(store: Any) -> str:
        try:
            await obstore.put_async(store, key, b"another", mode="create", use_multipart=False)
        except AlreadyExistsError:
            return ""
        return "it overwrites an object despite If-None-Match"

    try:
        lacking = await bucket.send("PutObject", key, create)
    except ServiceError as error:
        if error.status != _NOT_IMPLEMENTED:
            raise
        lacking = f"it does not support If-None-Match ({error.code})"
    return [Finding("bucket access", FAILED, lacking, _OTHER_STORE)] if lacking else []


async def _ranges(bucket: Bucket, key: str, data: bytes) -> list[Finding]:
    """Check that ranges in the middle and at the end of an object can be read."""
    half = len(data) // 2
    for where, part in (((1, half), data[1:half]), ({"suffix": half}, data[half:])):

        async def get(store: Any, where: Any = where) -> bytes:
            reply = await obstore.get_async(store, key, options={"range": where})
            return bytes(await reply.bytes_async())

        try:
            if await bucket.send("GetObject", key, get) == part:
                continue
            lacking = "it does not return the requested range of bytes"
        except ServiceError as error:
            if error.code != RANGE_IGNORED:
                raise
            lacking = "it ignores Range, and returns the whole object instead of a part"
        return [Finding("bucket access", FAILED, lacking, _OTHER_STORE)]
    return []


async def _public(client: Any, name: str) -> list[Finding]:
    block = await _configured(
        client, "get_public_access_block", name, "NoSuchPublicAccessBlockConfiguration"
    )
    rules = block.get("PublicAccessBlockConfiguration", {})
    missing = [rule for rule in _BLOCKS if not rules.get(rule)]
    if not missing:
        return [Finding("public access", OK, "blocked")]
    remedy = (
        f"aws s3api put-public-access-block --bucket {name} --public-access-block-configuration "
        + ",".join(f"{rule}=true" for rule in _BLOCKS)
    )
    grants = await clients.call(client, "get_bucket_acl", Bucket=name)
    status = await _configured(client, "get_bucket_policy_status", name, "NoSuchBucketPolicy")
    open_to = [g.get("Grantee", {}).get("URI", "") for g in grants.get("Grants", [])]
    if "IgnorePublicAcls" in missing and any(uri.endswith(_EVERYBODY) for uri in open_to):
        return [Finding("public access", FAILED, "its ACL grants public access", remedy)]
    is_public = status.get("PolicyStatus", {}).get("IsPublic", False)
    if "RestrictPublicBuckets" in missing and is_public:
        return [Finding("public access", FAILED, "its policy grants public access", remedy)]
    text = f"the bucket is not public, but public access is not blocked: {', '.join(missing)} off"
    return [Finding("public access", WARNING, text, remedy)]


async def _lifecycle(client: Any, settings: Settings) -> list[Finding]:
    where = f"{settings.prefix}/" if settings.prefix else ""
    rules = await _rules(client, settings)
    days = [rule["Expiration"]["Days"] for rule in rules if "Days" in rule.get("Expiration", {})]
    remedy = (
        f"add a rule that deletes objects older than {_ADVISED_DAYS} days "
        f"{f'under {where}' if where else 'in the whole bucket'}: aws s3api "
        "put-bucket-lifecycle-configuration (it replaces the existing rules)"
    )
    if not days:
        place = f"under {where}" if where else "in the bucket"
        text = f"no rule deletes leftover objects {place}, such as failed tasks"
        return [Finding("lifecycle", WARNING, text, remedy)]
    text = f"objects are deleted after {min(days)} days"
    if min(days) < _KEPT_DAYS:
        text += ", including those that jobs which wait or run longer need or share"
        return [Finding("lifecycle", WARNING, text, f"keep them for {_ADVISED_DAYS} days")]
    return [Finding("lifecycle", OK, text)]


async def _versions(client: Any, settings: Settings) -> list[Finding]:
    reply = await clients.call(client, "get_bucket_versioning", Bucket=settings.s3_bucket_name)
    if reply.get("Status") != "Enabled":
        return [Finding("versions", OK, "not kept: deletions are final")]
    try:
        rules = await _rules(client, settings)
    except ServiceError as error:
        if not error_translation.is_denied(error):
            raise
        rules = []
    if any("NoncurrentVersionExpiration" in rule for rule in rules):
        return [Finding("versions", OK, "kept, and deleted by a lifecycle rule")]
    return [
        Finding(
            "versions",
            WARNING,
            "kept forever: objects that farcall deletes still cost storage",
            "add NoncurrentVersionExpiration to the bucket's lifecycle rule",
        )
    ]


async def _rules(client: Any, settings: Settings) -> list[dict[str, Any]]:
    """Return the enabled rules that cover all objects that farcall writes."""
    reply = await _configured(
        client,
        "get_bucket_lifecycle_configuration",
        settings.s3_bucket_name,
        "NoSuchLifecycleConfiguration",
    )
    root = run_root(settings.prefix, "")
    return [rule for rule in reply.get("Rules", []) if _covers(rule, f"{root}/")]


def _covers(rule: dict[str, Any], root: str) -> bool:
    """Return whether a rule applies to every object below a prefix."""
    conditions = {**rule.get("Filter", {}), **rule.get("Filter", {}).get("And", {})}
    conditions.pop("And", None)
    prefix = conditions.pop("Prefix", rule.get("Prefix", ""))
    return rule.get("Status") == "Enabled" and not conditions and root.startswith(prefix)


async def _configured(client: Any, operation: str, name: str, absent: str) -> dict[str, Any]:
    """Return a part of the bucket's configuration; empty if it is not configured."""
    try:
        return await clients.call(client, operation, Bucket=name)
    except ServiceError as error:
        if error.code != absent:
            raise
        return {}
