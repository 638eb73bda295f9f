"""S3 listings, as returned by AWS and by other servers."""

from datetime import UTC, datetime

import pytest
from obstore.exceptions import GenericError

from farcall.aws import s3
from farcall.aws.s3 import Listed, Page, moment_of

AT = "2026-01-02T03:04:05.678Z"


def answer(*objects, more=""):
    contents = "".join(f"<Contents>{each}</Contents>" for each in objects)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3">'
        f"<Name>b</Name><Prefix>p%2F</Prefix><KeyCount>{len(objects)}</KeyCount>{contents}{more}"
        "</ListBucketResult>"
    )


def entry(key, size=1):
    owner = "<Owner><ID>1</ID></Owner><ETag>&quot;x&quot;</ETag>"
    return f"<Key>{key}</Key><LastModified>{AT}</LastModified>{owner}<Size>{size}</Size>"


def test_encoded_keys_are_decoded():
    text = answer(entry("p/%01+%2B%25/%2F/..%C3%BC", 17), more="<EncodingType>url</EncodingType>")
    assert s3._read(text) == Page([Listed("p/\x01 +%///..\u00fc", 17, AT)], [], "")


def test_unencoded_keys_are_unchanged():
    text = answer(entry("p/a+%2F&amp;&lt;Key&gt;"), entry("p/b", 2))
    assert [each.key for each in s3._read(text).objects] == ["p/a+%2F&<Key>", "p/b"]


def test_page_has_token_and_prefixes():
    more = (
        "<CommonPrefixes><Prefix>p/a%20b/</Prefix></CommonPrefixes>"
        "<CommonPrefixes><Prefix>p//</Prefix></CommonPrefixes>"
        "<EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"
        "<NextContinuationToken>a+b&amp;/=</NextContinuationToken>"
    )
    assert s3._read(answer(more=more)) == Page([], ["p/a b/", "p//"], "a+b&/=")
    assert s3._read(answer(more=more.replace("true", "false"))).token == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>Log in</html>",
        answer()[:-9],
        answer("<Key>k</Key><Size>x</Size>"),
        answer("<Key>"),
    ],
)
def test_invalid_listing_is_rejected(text):
    with pytest.raises(GenericError, match="is not a listing"):
        s3._read(text)


@pytest.mark.parametrize(
    "at", [AT, "2026-01-02T03:04:05.678000+00:00", "Fri, 02 Jan 2026 03:04:05 GMT"]
)
def test_timestamps_are_parsed(at):
    assert moment_of(at).replace(microsecond=0) == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
