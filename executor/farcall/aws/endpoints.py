"""Endpoints that do not respond like AWS: their URL, its origin, and the remedy."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import ipaddress
import os
import re
from urllib.parse import urlsplit
from urllib.request import getproxies

import botocore.session

from farcall.config.files import files
from farcall.config.settings import ENVIRONMENT_PREFIX, in_force
from farcall.model.errors import SettingsError

_URL = re.compile(r"https?://[^\s/\"')>,;]+")
DOMAINS = (
    *("amazonaws.com", "amazonaws.com.cn", "amazonaws.eu", "c2s.ic.gov", "sc2s.sgov.gov"),
    *("cloud.adc-e.uk", "csp.hci.ic.gov"),
    *("api.aws", "api.amazonwebservices.com.cn", "api.amazonwebservices.eu", "api.aws.ic.gov"),
    *("api.aws.scloud", "api.cloud-aws.adc-e.uk", "api.aws.hci.ic.gov"),
)
"""AWS's domains in all partitions, then the dual-stack ones: partitions.json."""

_VARIABLES = re.compile(rf"({ENVIRONMENT_PREFIX}|AWS_)ENDPOINT_URL(_[A-Z0-9_]+)?")


def in_text(text: str) -> str:
    """Return the first URL in a text without its path and password; empty if none."""
    match = _URL.search(text)
    return re.sub("//[^@]*@", "//", match[0]) if match else ""


def named(url: str) -> str:
    """Return a URL without its path, and the source of its configuration."""
    return f"{in_text(url)} ({_origin(url)})" if url else "the service's endpoint"


def remedy(url: str) -> str:
    """Return the remedy if AWS does not respond at a URL.

    Args:
        url: The URL; empty if unknown.
    """
    if not url:
        return "check the network, and the options region and endpoint_url"
    if is_aws(url):
        return "check the network and its proxy, and the option region"
    if _is_here(url):
        return (
            "check the server at this URL; if it was a local AWS emulator, start another one with "
            "`farcall local -- COMMAND`; or set another URL, or none for AWS's own"
        )
    return "check the network, and set another URL, or none for AWS's own"


async def check_region(url: str, region: str, origin: str) -> None:
    """Reject a region that AWS does not have, before requests wait for its endpoint.

    Args:
        url: Endpoint of a service in the region.
        region: The region.
        origin: Source of the region's configuration.

    Raises:
        SettingsError: botocore does not know the region, and its endpoint has no address.
    """
    if not is_aws(url) or getproxies():  # a proxy resolves the names of hosts
        return
    try:
        await asyncio.get_running_loop().getaddrinfo(_place(url)[1], 443)
    except OSError:
        known = await asyncio.to_thread(_regions)
        if region in known:
            return  # the network fails
        close = difflib.get_close_matches(region, known, 2)
        hint = (
            f"did you mean {' or '.join(close)}?"
            if close
            else "set it to a region such as eu-west-1"
        )
        raise SettingsError(
            f"region is {region!r} (from {origin}), which does not exist; {hint}", option="region"
        ) from None


def _regions() -> list[str]:
    session = botocore.session.get_session()
    partitions = session.get_available_partitions()
    return [name for each in partitions for name in session.get_available_regions("batch", each)]


def _origin(url: str) -> str:
    """Return the source of an endpoint URL's configuration."""
    if is_aws(url):
        return "AWS's own in its region"
    place = _place(url)
    for name, value in os.environ.items():
        if _VARIABLES.fullmatch(name) and _place(value) == place:
            return f"from {name}"
    with contextlib.suppress(SettingsError):
        if _place(str(in_force()[1].get("endpoint_url", ""))) == place:
            return f"endpoint_url in {files()[0]}"
    return "from an argument endpoint_url, or from the AWS configuration"


def _place(url: str) -> tuple[str, str | None, int | None]:
    with contextlib.suppress(ValueError):  # an invalid port
        parts = urlsplit(url)
        return parts.scheme, parts.hostname, parts.port
    return "", None, None


def is_aws(url: str) -> bool:
    """Return whether a URL belongs to AWS."""
    return (_place(url)[1] or "").endswith(tuple(f".{each}" for each in DOMAINS))


def _is_here(url: str) -> bool:
    host = _place(url)[1] or ""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
