"""Bucket URLs, compared with botocore's own for the same configuration."""

import re

import botocore.loaders
import botocore.session
import pytest
from botocore.config import Config
from botocore.exceptions import EndpointProviderError

from farcall.aws.buckets import Addressing, BucketLocation, addressing, place
from farcall.model.errors import SettingsError
from farcall_runtime.contract import bucket_url

REGIONS = {
    "aws": ["us-east-1", "eu-west-1", "ap-southeast-5", "mx-central-1", "il-central-1"],
    "aws-cn": ["cn-north-1", "cn-northwest-1"],
    "aws-us-gov": ["us-gov-west-1", "us-gov-east-1"],
    "aws-iso": ["us-iso-east-1"],
    "aws-iso-b": ["us-isob-east-1"],
    "aws-iso-e": ["eu-isoe-west-1"],
    "aws-iso-f": ["us-isof-south-1"],
    "aws-eusc": ["eusc-de-east-1"],
}
ALL = [(partition, region) for partition, regions in REGIONS.items() for region in regions]
NAMES = ["my-bucket", "my.bucket.eu", "abc", "a" * 63, "my-ap-abcdef0123456789-s3alias", "a--b"]


LOADER = botocore.loaders.create_loader()
"""Loader shared by all sessions, so that AWS's models are read once."""


@pytest.fixture
def configured(monkeypatch, tmp_path):
    """Return a function that creates the botocore session of an AWS configuration."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)

    def configure(text="", **environment):
        file = tmp_path / "config"
        file.write_text(f"[default]\n{text}\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(file))
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        core = botocore.session.Session()
        core.register_component("data_loader", LOADER)
        core.set_credentials("key", "secret")
        return core

    return configure


def botocore_location(core, region, endpoint_url=None):
    """Return a function that finds where botocore sends a bucket request, and how it signs it."""
    # In us-east-1, botocore uses the global name by default, which S3 may redirect.
    config = Config(s3={"us_east_1_regional_endpoint": "regional"})
    client = core.create_client("s3", region, endpoint_url=endpoint_url, config=config)
    client.meta.events.register("before-send.s3", keep)

    def find(bucket):
        with pytest.raises(SentError) as caught:
            client.head_object(Bucket=bucket, Key="key")
        (request,) = caught.value.args
        signed = request.headers["Authorization"].decode()
        return BucketLocation(request.url.removesuffix("/key"), signed.split("/")[2])

    return find


class SentError(Exception):
    """A request that would have been sent."""


def keep(request, **_):
    raise SentError(request)


@pytest.mark.parametrize(("partition", "region"), ALL)
def test_place_matches_botocore_in_every_partition(configured, partition, region):
    core = configured()
    assert core.get_partition_for_region(region) == partition
    expected = botocore_location(core, region)
    for bucket in (*NAMES, access_point(partition, region)):
        assert place(bucket, region, addressing(core, "")) == expected(bucket)


def access_point(partition, region):
    return f"arn:{partition}:s3:{region}:123456789012:accesspoint:mine"


CONFIGURATIONS = {
    "fips": "use_fips_endpoint = true",
    "dual-stack": "use_dualstack_endpoint = true",
    "dual-stack of S3 alone": "s3 =\n  use_dualstack_endpoint = true",
    "both": "use_fips_endpoint = true\nuse_dualstack_endpoint = true",
    "paths": "s3 =\n  addressing_style = path",
    "hosts": "s3 =\n  addressing_style = virtual",
    "false": "use_fips_endpoint = false\ns3 =\n  use_dualstack_endpoint = no",
}


@pytest.mark.parametrize("region", ["us-east-1", "us-gov-west-1", "cn-north-1", "us-iso-east-1"])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_place_matches_botocore_with_configuration(configured, name, region):
    core = configured(CONFIGURATIONS[name])
    partition = core.get_partition_for_region(region)
    find = botocore_location(core, region)
    for bucket in (*NAMES, access_point(partition, region)):
        try:
            expected = find(bucket)
        except EndpointProviderError as error:  # China has no FIPS
            with pytest.raises(SettingsError, match=re.escape(str(error))):
                place(bucket, region, addressing(core, ""))
        else:
            assert place(bucket, region, addressing(core, "")) == expected


@pytest.mark.parametrize("style", ["", "path", "virtual"])
@pytest.mark.parametrize("url", ["http://127.0.0.1:5000", "https://s3.lab:9000/", "http://a/b/"])
@pytest.mark.parametrize("fips", ["true", "false"])
def test_place_matches_botocore_with_custom_endpoint(configured, url, style, fips):
    text = f"use_fips_endpoint = {fips}\n" + (f"s3 =\n  addressing_style = {style}" * bool(style))
    core = configured(text)
    expected = botocore_location(core, "us-east-1", url)
    for bucket in NAMES:
        assert place(bucket, "us-east-1", addressing(core, url)) == expected(bucket)


def test_other_stores_use_path_style(configured):
    core = configured(AWS_ENDPOINT_URL_S3="http://127.0.0.1:5000/")
    found = place("my-bucket", "us-east-1", addressing(core, ""))
    assert found == BucketLocation("http://127.0.0.1:5000/my-bucket", "us-east-1")


def test_most_bucket_urls_are_derivable(configured):
    """Jobs then need no variable for it, and botocore's rules are not read."""
    for region in botocore.session.Session().get_available_regions("s3", "aws"):
        found = place("my-bucket", region)
        assert found == BucketLocation(bucket_url("my-bucket", region), region)
    assert place("my.bucket", "us-east-1").url == "https://s3.us-east-1.amazonaws.com/my.bucket"


def test_access_point_region_is_signed_for(configured):
    arn = access_point("aws", "us-west-2")
    core = configured()
    assert place(arn, "eu-west-1", addressing(core, "")) == BucketLocation(
        "https://mine-123456789012.s3-accesspoint.us-west-2.amazonaws.com", "us-west-2"
    )
    core = configured("s3 =\n  use_arn_region = false")
    with pytest.raises(SettingsError, match="region from ARN `us-west-2` does not match"):
        place(arn, "eu-west-1", addressing(core, ""))


@pytest.mark.parametrize(
    ("bucket", "reason"),
    [
        ("name--use1-az4--x-s3", "sigv4-s3express"),
        ("arn:aws:s3::123456789012:accesspoint:mfzwi23gnjvgw.mrap", "sigv4a"),
        ("arn:aws-cn:s3:cn-north-1:123456789012:accesspoint:mine", "aws-cn"),
        ("arn:aws:s3-outposts:us-east-1:123456789012:outpost:op-1:accesspoint:mine", "outposts"),
    ],
)
def test_unsupported_bucket_is_rejected(bucket, reason):
    with pytest.raises(SettingsError, match=reason) as caught:
        place(bucket, "us-east-1")
    assert caught.value.option == "s3_bucket_name"
    assert repr(bucket) in str(caught.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:5000", "http://[::1]:5000", "https://10.1.2.3"])
def test_access_point_requires_host_name(url):
    arn = access_point("aws", "us-east-1")
    with pytest.raises(SettingsError, match=re.escape(f"{url} is an IP address")):
        place(arn, "us-east-1", Addressing(url))
    there = Addressing("https://s3.lab:9000")
    assert place(arn, "us-east-1", there).url == "https://mine-123456789012.s3.lab:9000"
