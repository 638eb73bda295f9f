"""Bodies signed in chunks, with the examples of AWS's documentation.

Starts nothing.
https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-streaming.html
https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-streaming-trailers.html
"""

from __future__ import annotations

import dataclasses
import io
from email.message import Message

import pytest

from farcall_local.services import signatures
from farcall_local.services.error_responses import RefusedError

EXAMPLE_KEY = signatures.AccessKey(
    "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
)
EXAMPLES = {
    signatures.SIGNED_CHUNKS: (
        "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
        "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
        "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
        "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
        "",
    ),
    signatures.SIGNED_CHUNKS_TRAILER: (
        "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e",
        "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
        "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
        "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
        # The documentation has another value, which does not follow from its own rules.
        "d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435",
    ),
}


def example(payload):
    """Return a documented request and its body."""
    seed, *chunks, last, trailer = EXAMPLES[payload]
    headers = Message()
    fields = {
        "Host": "s3.amazonaws.com",
        "x-amz-date": "20130524T000000Z",
        "x-amz-storage-class": "REDUCED_REDUNDANCY",
        "x-amz-content-sha256": payload,
        "Content-Encoding": "aws-chunked",
        "x-amz-decoded-content-length": "66560",
    }
    if trailer:
        fields["x-amz-trailer"] = "x-amz-checksum-crc32c"
    else:
        fields["Content-Length"] = "66824"
    for name, value in fields.items():
        headers[name] = value
    names = ";".join(sorted(map(str.lower, fields)))
    headers["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={EXAMPLE_KEY.key_id}/20130524/us-east-1/s3/aws4_request,"
        f"SignedHeaders={names},Signature={seed}"
    )
    sizes = [65536, 1024]
    body = b"".join(
        b"%x;chunk-signature=%s\r\n%s\r\n" % (size, chunk.encode(), b"a" * size)
        for size, chunk in zip(sizes, chunks, strict=True)
    )
    body += b"0;chunk-signature=%s\r\n" % last.encode()
    if trailer:
        body += b"x-amz-checksum-crc32c:sOO8/Q==\r\n"
        body += b"x-amz-trailer-signature:%s\r\n" % trailer.encode()
    body += b"\r\n"
    return signatures.Request("PUT", "/examplebucket/chunkObject.txt", headers), body


@pytest.fixture
def in_2013(monkeypatch):
    monkeypatch.setattr(signatures.time, "time", lambda: 1369353600.0)


def unchunk(request, body):
    """Verify a request; return the decoded body and the trailers."""
    signature = signatures.read(request)
    signatures.verify(request, signature, EXAMPLE_KEY.secret)
    source = io.BytesIO(body)
    chunks = signatures.Chunks(source.readline, source.read, signature, EXAMPLE_KEY.secret)
    return b"".join(chunks), chunks.trailers


@pytest.mark.parametrize("payload", EXAMPLES)
def test_documented_examples_are_verified(payload, in_2013):
    data, trailers = unchunk(*example(payload))
    assert data == b"a" * 66560
    is_last = payload == signatures.SIGNED_CHUNKS_TRAILER
    assert trailers == ({"x-amz-checksum-crc32c": "sOO8/Q=="} if is_last else {})


CHANGES = {
    "data": lambda body: body.replace(b"aaaa", b"aaab", 1),
    "no last chunk": lambda body: body[: body.rindex(b"0;chunk")],
    "cut off": lambda body: body[:60_000],
    "not signed": lambda body: body.replace(b";chunk-signature=", b";x=", 1),
    "shorter": lambda body: body.replace(b"400;", b"3ff;", 1),
    "unsigned chunks": lambda _: b"5\r\nhello\r\n0\r\n\r\n",
    "no chunks": lambda _: b"hello",
    "nothing": lambda _: b"",
}


@pytest.mark.parametrize("payload", EXAMPLES)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changed_chunk_is_rejected(payload, change, in_2013):
    request, body = example(payload)
    changed = change(body)
    assert changed != body
    with pytest.raises(RefusedError):
        unchunk(request, changed)


def test_changed_trailer_is_rejected(in_2013):
    request, body = example(signatures.SIGNED_CHUNKS_TRAILER)
    with pytest.raises(RefusedError):
        unchunk(request, body.replace(b"sOO8", b"tOO8"))


@pytest.mark.parametrize("target", ["{}#x", "http://s3.amazonaws.com{}", "http:/{}", "[{}"])
def test_target_without_path_is_rejected(target, in_2013):
    request, body = example(signatures.SIGNED_CHUNKS)
    changed = dataclasses.replace(request, target=target.format(request.target))
    with pytest.raises(RefusedError):
        unchunk(changed, body)
