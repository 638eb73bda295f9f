"""Bucket URLs: a bucket's endpoint, and the region for which requests are signed.

They follow botocore's rules, so that client and container use the same hosts as AWS's tools: in
every partition, with FIPS and dual-stack endpoints if the AWS configuration requests them, for
buckets with dots in their names, and for access points.

Sources:
    https://docs.aws.amazon.com/AmazonS3/latest/userguide/VirtualHosting.html
    https://docs.aws.amazon.com/AmazonS3/latest/userguide/access-points-naming.html
    https://docs.aws.amazon.com/sdkref/latest/guide/feature-endpoints.html
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import re
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import botocore.loaders
from botocore.configprovider import ConfiguredEndpointProvider
from botocore.endpoint_provider import EndpointProvider
from botocore.exceptions import EndpointProviderError

from farcall.model.errors import SettingsError
from farcall_runtime.contract import bucket_url

_PLAIN_BUCKET = re.compile(r"[a-z0-9](-?[a-z0-9]){2,62}")
_PLAIN_REGION = re.compile(r"(af|ap|ca|eu|il|me|mx|sa|us)-[a-z]+-\d+")
"""Regions of the partition aws, as in botocore's partitions.json.

Names of GovCloud regions, such as us-gov-west-1, have one more part.
"""

_AUTHENTICATION, _SERVICE = "sigv4", "s3"


class BucketLocation(NamedTuple):
    """Location of a bucket.

    Attributes:
        url: The bucket's URL without a trailing slash; a slash and the key follow.
        region: The region for which requests are signed.
    """

    url: str
    region: str


class Addressing(NamedTuple):
    """Settings of S3's endpoints from the AWS configuration and the options.

    Attributes:
        endpoint: URL instead of AWS's own; empty for none. As in botocore, FIPS and dual-stack
            have no effect with it.
        use_fips: Whether to use endpoints validated by FIPS 140.
        use_dual_stack: Whether to use endpoints with IPv6 addresses.
        style: ``path``, ``virtual``, or empty for automatic.
        use_arn_region: Whether an access point may be in another region than the configured one.
    """

    endpoint: str = ""
    use_fips: bool = False
    use_dual_stack: bool = False
    style: str = ""
    use_arn_region: bool = True


def addressing(core: Any, endpoint_url: str) -> Addressing:
    """Read the endpoint settings.

    Args:
        core: The botocore session.
        endpoint_url: The option, which takes precedence over the AWS configuration.
    """
    endpoint = (
        endpoint_url
        or ConfiguredEndpointProvider(
            full_config=core.full_config,
            scoped_config=core.get_scoped_config(),
            client_name="s3",
        ).provide()
        or ""
    )
    of_s3 = core.get_config_variable("s3") or {}
    dual_stack = of_s3.get("use_dualstack_endpoint")
    if dual_stack is None:
        dual_stack = core.get_config_variable("use_dualstack_endpoint")
    style = of_s3.get("addressing_style")
    use_arn_region = of_s3.get("use_arn_region")
    return Addressing(
        endpoint.rstrip("/"),
        bool(core.get_config_variable("use_fips_endpoint")),
        bool(dual_stack),
        style if style in ("path", "virtual") else "",
        use_arn_region is None or bool(use_arn_region),
    )


def place(bucket: str, region: str, how: Addressing = Addressing()) -> BucketLocation:  # noqa: B008  # frozen
    """Return the location of a bucket.

    Args:
        bucket: Its name, an access point's alias, or an access point's ARN.
        region: Its region, as far as known.
        how: Settings of the AWS configuration.

    Raises:
        SettingsError: The endpoint does not exist, or its requests need another signature than
            those of buckets.
    """
    # Shortcut with the same result, because reading botocore's rules takes 60 ms.
    if how == Addressing() and _PLAIN_BUCKET.fullmatch(bucket) and _PLAIN_REGION.fullmatch(region):
        return BucketLocation(bucket_url(bucket, region), region)
    is_arn = bucket.startswith("arn:")
    placement: dict[str, Any] = {
        "Bucket": bucket,
        "Region": region,
        "UseFIPS": how.use_fips and not how.endpoint,
        "UseDualStack": how.use_dual_stack and not how.endpoint,
        # botocore's default for other stores, because some have no separate host for each bucket.
        "ForcePathStyle": not is_arn
        and how.style != "virtual"
        and (bool(how.endpoint) or how.style == "path"),
        "UseArnRegion": how.use_arn_region,
    }
    try:
        endpoint = _rules().resolve_endpoint(
            **placement, **({"Endpoint": how.endpoint} if how.endpoint else {})
        )
    except EndpointProviderError as error:
        raise _no_place(bucket, region, str(error)) from error
    if is_arn and _is_address(how.endpoint):
        reason = f"{how.endpoint} is an IP address, but an access point has its own host name"
        raise _no_place(bucket, region, reason)
    scheme = endpoint.properties["authSchemes"][0]
    if (scheme["name"], scheme["signingName"]) != (_AUTHENTICATION, _SERVICE):
        signed = f"requests must be signed with {scheme['name']} for {scheme['signingName']}"
        raise _no_place(bucket, region, f"{signed}, which farcall does not support")
    return BucketLocation(endpoint.url.rstrip("/"), scheme["signingRegion"])


def copy_source(bucket: str) -> str:
    """Return the bucket as written in the source of a copy request.

    Source:
        https://docs.aws.amazon.com/AmazonS3/latest/API/API_CopyObject.html
    """
    head, is_access_point, name = bucket.partition(":accesspoint:")
    return f"{head}:accesspoint/{name}/object" if is_access_point else bucket


@functools.cache
def _rules() -> EndpointProvider:
    loader = botocore.loaders.create_loader()
    rules = loader.load_service_model("s3", "endpoint-rule-set-1")
    return EndpointProvider(rules, loader.load_data("partitions"))


def _is_address(url: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(urlsplit(url).hostname or "")
        return True
    return False


def _no_place(bucket: str, region: str, reason: str) -> SettingsError:
    return SettingsError(
        f"s3_bucket_name is {bucket!r}, which is not accessible from the region {region}: "
        f"{reason}; use a general purpose bucket, or its access point or alias, in the partition "
        "that the option region names",
        option="s3_bucket_name",
    )
