"""URLs of the AWS console."""

import pytest

from farcall.aws import console_urls
from farcall.model.jobs import JobDetail, JobStatus

QUEUE = "arn:aws:batch:eu-west-1:123456789012:job-queue/q"
PLAIN = JobDetail(
    "6f1c",
    "n",
    JobStatus.FAILED,
    log_group="/aws/batch/job",
    log_stream="d/default/a1",
    queue_arn=QUEUE,
)
HOSTS = [
    ("eu-west-1.console.aws.amazon.com", "eu-west-1"),
    ("console.amazonaws.cn", "cn-north-1"),
    ("console.amazonaws-us-gov.com", "us-gov-west-1"),
    ("eusc-de-east-1.console.amazonaws-eusc.eu", "eusc-de-east-1"),
]


@pytest.mark.parametrize(("host", "region"), HOSTS)
def test_pages_use_host_of_partition(host, region):
    batch = f"https://{host}/batch/home?region={region}"
    assert console_urls.job_url(region, PLAIN) == f"{batch}#jobs/detail/6f1c"
    assert console_urls.queue_url(region, PLAIN) == f"{batch}#queues/detail/{QUEUE}"
    assert console_urls.log_url(region, PLAIN) == (
        f"https://{host}/cloudwatch/home?region={region}"
        "#logsV2:log-groups/log-group/$252Faws$252Fbatch$252Fjob/log-events/d$252Fdefault$252Fa1"
    )
    assert console_urls.bucket_url(region, "bucket", "farcall/v1/mary jane/") == (
        f"https://{host}/s3/buckets/bucket?region={region}&prefix=farcall%2Fv1%2Fmary%20jane%2F"
    )


@pytest.mark.parametrize("region", ["us-iso-east-1", "us-isob-east-1", "eu-isoe-west-1"])
def test_unknown_partition_has_no_pages(region):
    assert console_urls.job_url(region, PLAIN) == ""
    assert console_urls.queue_url(region, PLAIN) == ""
    assert console_urls.log_url(region, PLAIN) == ""
    assert console_urls.bucket_url(region, "bucket") == ""


def test_access_point_has_no_bucket_page():
    arn = "arn:aws:s3:eu-west-1:123456789012:accesspoint:mine"
    assert console_urls.bucket_url("eu-west-1", arn) == ""


def test_array_and_task_have_own_pages():
    array = JobDetail("6f1c", "n", JobStatus.PENDING, array_size=2)
    assert console_urls.job_url("eu-west-1", array).endswith("#jobs/array-job/6f1c")
    child = JobDetail("6f1c:1", "n", JobStatus.RUNNING)
    assert console_urls.job_url("eu-west-1", child).endswith("#jobs/detail/6f1c:1")


def test_missing_resources_have_no_page():
    never = JobDetail("6f1c", "n", JobStatus.FAILED)
    assert console_urls.log_url("eu-west-1", never) == ""
    assert console_urls.queue_url("eu-west-1", never).endswith("#queues")


def test_names_are_escaped_in_urls():
    hostile = JobDetail('a?b#c/../"><script>', "n", JobStatus.FAILED)
    assert console_urls.job_url("eu-west-1", hostile).endswith(
        "#jobs/detail/a%3Fb%23c%2F..%2F%22%3E%3Cscript%3E"
    )
