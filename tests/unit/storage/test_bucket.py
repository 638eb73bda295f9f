"""Failing bucket requests: retries, and the text of the last error."""

import asyncio

import pytest
from obstore.exceptions import GenericError, PermissionDeniedError, UnauthenticatedError

from farcall.aws import error_translation
from farcall.model.errors import ServiceError, SettingsError
from farcall.model.timing import Timing
from farcall.storage.bucket import Bucket


def refusal(status, code):
    """Return the text of obstore's error for a response of S3."""
    return (
        f"Generic S3 error: Error performing GET http://s3/k in 1ms - Client error with status "
        f"{status} Bad Request: <Error><Code>{code}</Code><Message>No &amp; no</Message></Error>"
        "\n\nDebug source: a page of it"
    )


class World:
    """Opens numbered stores, and answers requests by script."""

    def __init__(self, *answers):
        self.asked = []
        self._answers = list(answers)
        self._opened = -1
        self.timing = Timing()
        self.bucket = Bucket("b", self)

    def store(self, bucket, *, sending):
        self._opened += 1
        return self._opened

    async def key_and_source(self):
        return "access key ending in AB3D from the environment"

    async def get(self, operation="GetObject", **options):
        async def request(store):
            self.asked.append(store)
            answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
            if isinstance(answer, Exception):
                raise answer
            return answer

        return await self.bucket.send(operation, "k", request, **options)


async def test_unrepeated_obstore_errors_are_retried(clock):
    world = World(GenericError("error decoding response body"), OSError("gone"), "value")
    assert await world.get() == "value"
    assert world.asked == [0, 0, 0]


async def test_unreachable_local_endpoint_is_named(clock, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    text = "Error performing GET http://127.0.0.1:9/b/k in 3 s - HTTP error: error sending request"
    with pytest.raises(ServiceError, match="if it was a local AWS emulator"):
        await World(GenericError(text)).get()


async def test_lasting_failure_raises(clock):
    world = World(GenericError("error sending request\n\nDebug source: a page of it"))
    begun = clock.now()
    with pytest.raises(ServiceError) as caught:
        await world.get()
    assert 60 <= clock.now() - begun < 70
    assert str(caught.value).startswith("GetObject of s3://b/k failed: error sending request; ")
    assert str(caught.value).endswith("check the network, and the options region and endpoint_url")


async def test_expired_credentials_are_renewed_few_times(clock):
    world = World(GenericError(refusal(400, "ExpiredToken")))
    with pytest.raises(
        ServiceError, match="No & no .ExpiredToken.; renew the credential"
    ) as caught:
        await world.get()
    assert world.asked == [*range(1 + error_translation.RENEWALS)]
    assert caught.value.code == "ExpiredToken"


async def test_refusal_is_final(clock):
    world = World(PermissionDeniedError(refusal(403, "AccessDenied")))
    with pytest.raises(ServiceError, match="need permission for GetObject") as caught:
        await world.get()
    assert (world.asked, caught.value.code) == ([0], "AccessDenied")
    world = World(GenericError(refusal(400, "InvalidArgument")))
    with pytest.raises(ServiceError, match="InvalidArgument"):
        await world.get()
    assert world.asked == [0]


async def test_unavailable_credentials_are_no_missing_permission(clock):
    missing = UnauthenticatedError("The operation lacked valid authentication credentials")
    assert await World(missing, missing, "value").get() == "value"
    with pytest.raises(ServiceError, match="check where the credentials come from") as caught:
        await World(missing).get()
    assert caught.value.code == ""


async def test_status_is_parsed_from_any_wording(clock):
    text = refusal(400, "InvalidArgument").replace("with status 400", "status code: 400")
    world = World(GenericError(text))
    with pytest.raises(ServiceError, match="InvalidArgument") as caught:
        await world.get()
    assert (world.asked, caught.value.status) == ([0], 400)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("RequestTimeTooSkewed", "set this machine's clock"),
        ("InvalidAccessKeyId", "AWS rejects the access key ending in AB3D from the environment"),
        ("ExpiredToken", r"renew the credentials \(access key ending in AB3D from the env"),
    ],
)
async def test_error_code_of_403_is_explained(code, words, clock):
    world = World(PermissionDeniedError(refusal(403, code)))
    with pytest.raises(ServiceError, match=words) as caught:
        await world.get()
    assert caught.value.code == code
    assert "permission" not in str(caught.value)


BY_POLICY = (
    "not authorized to perform: s3:PutObject with an explicit deny in a resource-based policy"
)


@pytest.mark.parametrize(
    ("operation", "message", "words"),
    [
        ("PutObject", BY_POLICY, "an encryption header, set s3_encryption"),
        ("CreateMultipartUpload", BY_POLICY, "an encryption header, set s3_encryption"),
        ("GetObject", BY_POLICY, "need permission for GetObject"),
        ("PutObject", "no identity-based policy allows it", "need permission for PutObject"),
        ("GetObject", "not authorized to perform: kms:Decrypt on resource: k", "kms:Decrypt on"),
    ],
)
async def test_required_encryption_is_named(operation, message, words, clock):
    denied = refusal(403, "AccessDenied").replace("No &amp; no", message)
    with pytest.raises(ServiceError, match=words):
        await World(PermissionDeniedError(denied)).get(operation)


async def test_long_retries_are_logged(clock, caplog):
    heard = []
    world = World(GenericError("error sending request"))
    with error_translation.listening(heard.append), pytest.raises(ServiceError):
        await asyncio.gather(world.get(), world.get())
    assert 2 <= len(caplog.records) <= 3  # per minute, however many requests there are
    message = caplog.records[0].getMessage()
    assert message.startswith("GetObject of s3://b/k failed: error sending request; retrying for")
    assert len(heard) == len(world.asked)


REDIRECTS = (
    "Generic S3 error: Received redirect without LOCATION, this normally indicates",
    "status 301: ",
)


@pytest.mark.parametrize("text", REDIRECTS)
async def test_bucket_elsewhere_is_reopened_once(text, clock):
    located = []

    async def locate(_):
        located.append(None)
        return True

    world = World(GenericError(text), "value")
    world.locate = locate
    assert await world.get() == "value"
    assert (world.asked, len(located)) == ([0, 1], 1)
    lost = World(GenericError(text))
    lost.locate = locate
    with pytest.raises(ServiceError, match="in another region: set region"):
        await lost.get()
    assert (len(lost.asked), len(located)) == (2, 2)


async def test_missing_bucket_names_option(clock):
    with pytest.raises(SettingsError) as caught:
        await World(FileNotFoundError(refusal(404, "NoSuchBucket"))).get()
    assert caught.value.option == "s3_bucket_name"


async def test_missing_object_is_no_failure(clock):
    with pytest.raises(FileNotFoundError):
        await World(FileNotFoundError("Object at location k not found")).get()
