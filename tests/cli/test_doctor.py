"""``farcall doctor`` on accounts with real defects.

Starts the local AWS emulator, because each check reads the account.
"""

from __future__ import annotations

import json

import boto3
import pytest

from farcall.operations import doctor
from farcall.operations.doctor import FAILED, NOT_CHECKED, OK, WARNING, Finding
from tests import emulators
from tests.support import iam
from tests.support.proxy import Proxy

BUCKET = "doctors-own"
PUBLIC = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": "*",
                "Action": "s3:GetObject",
                "Resource": f"arn:aws:s3:::{BUCKET}/*",
            }
        ],
    }
)


async def examine() -> dict[str, Finding]:
    return {finding.check: finding for finding in await doctor.examine()}


def bad(found: dict[str, Finding]) -> dict[str, str]:
    return {name: finding.verdict for name, finding in found.items() if finding.verdict != OK}


@pytest.fixture(scope="module")
def embedded():
    with emulators.start() as aws:
        yield aws


@pytest.fixture
def bucket(aws, monkeypatch):
    """Configure farcall to use a bucket with default settings; return an S3 client."""
    client = boto3.client("s3")
    client.create_bucket(Bucket=BUCKET)
    monkeypatch.setenv("FARCALL_S3_BUCKET_NAME", BUCKET)
    yield client
    client.delete_bucket(Bucket=BUCKET)


async def test_emulator_passes_all_checks(installed_command, aws):
    before = boto3.client("s3").list_objects_v2(Bucket="farcall-local")["KeyCount"]

    done = await installed_command("doctor", "--json")

    found = json.loads(done.stdout)
    assert (0, True) == (done.returncode, found["ok"]), done.stdout
    assert {OK} == {each["verdict"] for each in found["checks"]}
    checked = {each["check"]: each["found"] for each in found["checks"]}
    assert "farcall's local AWS emulator" in checked["region"]
    assert len(checked) >= 15
    after = boto3.client("s3").list_objects_v2(Bucket="farcall-local")["KeyCount"]
    assert before == after


async def test_missing_resource_names_option_source(farcall_command, aws, tmp_path):
    (tmp_path / "farcall.toml").write_text(
        '[executors.awsbatch]\nbatch_job_definition_name = "not-there"\n'
    )
    options = ("S3_BUCKET_NAME", "QUEUE", "BATCH_JOB_ROLE_NAME", "BATCH_JOB_LOG_GROUP_NAME")
    missing = {f"FARCALL_{name}": "not-there" for name in options}

    done = await farcall_command("doctor", **missing, FARCALL_IMAGE="")

    assert 1 == done.returncode
    assert f"{len(options)} failed" in done.stderr
    lines = done.stdout.splitlines()
    for name in options:
        (at,) = (n for n, line in enumerate(lines) if f"{name.lower()} is 'not-there'" in line)
        assert lines[at].startswith(FAILED)
        assert f"({name.lower()} comes from FARCALL_{name})" in lines[at + 1]
    (image,) = (line for line in lines if "job definition 'not-there' does not exist" in line)
    assert image.startswith(WARNING)  # jobs run in the stock image


async def test_invalid_option_fails(aws, monkeypatch):
    monkeypatch.setenv("FARCALL_VCPU", "many")

    found = await examine()

    assert {"options": FAILED} == bad(found)
    assert "vcpu is 'many'" in found["options"].found


async def test_public_bucket_fails(bucket):
    bucket.put_bucket_policy(Bucket=BUCKET, Policy=PUBLIC)
    by_policy = await examine()
    bucket.delete_bucket_policy(Bucket=BUCKET)
    bucket.put_bucket_acl(Bucket=BUCKET, ACL="public-read")
    by_acl = await examine()

    assert ("its policy", FAILED) == start(by_policy["public access"])
    assert ("its ACL gr", FAILED) == start(by_acl["public access"])


def start(finding: Finding) -> tuple[str, str]:
    return finding.found[:10], finding.verdict


@pytest.mark.parametrize(
    ("rule", "verdict"),
    [
        ({"Filter": {"Prefix": "farcall/"}, "Expiration": {"Days": 30}}, OK),
        ({"Filter": {"Prefix": "farcall/"}, "Expiration": {"Days": 1}}, WARNING),
        ({"Filter": {"Prefix": "others/"}, "Expiration": {"Days": 30}}, WARNING),
        ({"Filter": {"Tag": {"Key": "a", "Value": "b"}}, "Expiration": {"Days": 30}}, WARNING),
    ],
)
async def test_lifecycle_rule_must_cover_prefix(bucket, rule, verdict):
    bucket.put_bucket_lifecycle_configuration(
        Bucket=BUCKET,
        LifecycleConfiguration={"Rules": [{"ID": "r", "Status": "Enabled", **rule}]},
    )

    assert verdict == (await examine())["lifecycle"].verdict


async def test_unusable_queue_or_compute_environment_fails(aws, monkeypatch):
    batch = boto3.client("batch")
    resources = {"type": "FARGATE", "maxvCpus": 1, "subnets": ["s"], "securityGroupIds": ["g"]}
    for name, state in (("serverless", "ENABLED"), ("off", "DISABLED")):
        batch.create_compute_environment(
            computeEnvironmentName=name, type="MANAGED", state=state, computeResources=resources
        )
        batch.create_job_queue(
            jobQueueName=name,
            priority=1,
            computeEnvironmentOrder=[{"order": 1, "computeEnvironment": name}],
        )
    batch.create_job_queue(
        jobQueueName="disabled",
        state="DISABLED",
        priority=1,
        computeEnvironmentOrder=[{"order": 1, "computeEnvironment": "farcall-local"}],
    )

    async def of(queue: str, check: str, **options: str) -> str:
        monkeypatch.setenv("FARCALL_QUEUE", queue)
        for name, value in options.items():
            monkeypatch.setenv(f"FARCALL_{name}", value)
        finding = (await examine())[check]
        assert FAILED == finding.verdict
        return finding.found

    assert "is DISABLED and VALID" in await of("disabled", "queue")
    assert "it accepts no jobs" in await of("off", "compute environment")
    assert "only runs jobs on Fargate" in await of("serverless", "compute environment")
    on_fargate = {"JOB_DEFINITION_EXTRA": '{"platformCapabilities": ["FARGATE"]}'}
    small = await of("serverless", "compute environment", **on_fargate)
    assert "vcpu is 2, but it has at most 1 vCPUs" in small
    assert "vcpu=3 is not supported" in await of("serverless", "resources", **on_fargate, VCPU="3")


async def test_image_missing_from_registry_fails(aws, monkeypatch):
    uri = "123456789012.dkr.ecr.us-east-1.amazonaws.com/jobs:new"
    monkeypatch.setenv("FARCALL_IMAGE", uri)
    boto3.client("ecr").create_repository(repositoryName="jobs")

    missing = await examine()
    kind = "application/vnd.docker.distribution.manifest.v2+json"
    manifest = {"schemaVersion": 2, "mediaType": kind, "config": {"digest": "sha256:0"}}
    boto3.client("ecr").put_image(
        repositoryName="jobs",
        imageManifest=json.dumps({**manifest, "layers": []}),
        imageTag="new",
    )

    assert {"image": FAILED} == bad(missing)
    assert "which does not exist" in missing["image"].found
    assert not bad(await examine())


async def test_role_without_ecs_trust_fails(aws):
    client = boto3.client("iam")
    trust = json.dumps(iam.policy("trust")).replace("ecs-tasks", "ec2")
    client.update_assume_role_policy(RoleName="farcall-local-job", PolicyDocument=trust)
    try:
        found = await examine()
    finally:
        trust = json.dumps(iam.policy("trust"))
        client.update_assume_role_policy(RoleName="farcall-local-job", PolicyDocument=trust)

    assert {"job role": FAILED} == bad(found)
    assert "update-assume-role-policy --role-name farcall-local-job" in found["job role"].remedy


async def test_hanging_service_fails_only_its_check(aws, monkeypatch):
    with Proxy(aws.endpoint_url) as proxy:
        proxy.lasting["s3 *"] = "hang"
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.url)
        found = {finding.check: finding for finding in await doctor.examine(time_limit_s=5)}

    assert {"bucket": FAILED} == bad(found)
    assert "no response within 5 s" in found["bucket"].found


async def test_missing_credentials_fail(aws, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")

    found = await examine()

    assert {"credentials": FAILED} == bad(found)
    assert "aws configure" in found["credentials"].remedy


async def test_denied_action_is_named(client):
    found = await examine()

    assert {NOT_CHECKED} == set(bad(found).values())
    assert {
        "public access": "s3:GetBucketPublicAccessBlock is denied",
        "lifecycle": "s3:GetLifecycleConfiguration is denied",
        "versions": "s3:GetBucketVersioning is denied",
    }.items() <= {name: finding.found for name, finding in found.items()}.items()
    assert OK == found["bucket access"].verdict == found["queue"].verdict


@pytest.fixture(scope="module")
def enforced():
    with emulators.start(enforce_iam=True) as aws:
        yield iam.Enforced(aws)


@pytest.fixture
def client(enforced, monkeypatch):
    """Use the credentials of a user with the documented policy; IAM is enforced."""
    enforced.use(monkeypatch)
    return enforced


async def test_invalid_credentials_fail(client, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")

    found = await examine()

    assert {"credentials": FAILED, "everything else": NOT_CHECKED} == bad(found)
    assert "aws sts get-caller-identity" in found["credentials"].remedy


async def test_run_reports_steps_and_deletes_objects(installed_command, aws):
    done = await installed_command("doctor", "--run", "--json", FARCALL_VCPU_HOUR_PRICE="0.04")

    found = json.loads(done.stdout)
    assert (0, True) == (done.returncode, found["ok"]), done.stdout + done.stderr
    steps = {each["check"]: each["verdict"] for each in found["run"]["steps"]}
    expected = ["call", "array", "failing call", "cancel", "packages", "clean-up"]
    assert dict.fromkeys(expected, OK) == steps
    assert "array | task 3" in done.stderr
    assert found["run"]["vcpu_seconds"] > 0 < found["run"]["dollars"]
    listed = boto3.client("s3").list_objects_v2(Bucket="farcall-local")["Contents"]
    assert all("/v1/packages/" in each["Key"] for each in listed)


async def test_failed_check_runs_no_job(farcall_command, aws):
    done = await farcall_command("doctor", "--run", "--json", FARCALL_QUEUE="not-there")

    assert (1, False) == (done.returncode, "run" in json.loads(done.stdout))
    assert "no jobs were run" in done.stderr
