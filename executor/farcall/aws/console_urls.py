"""URLs of pages in the AWS console, if jobs run on AWS itself. No I/O.

AWS documents only the console's hosts; the paths are those shown in a browser. If the host is
unknown, as in isolated regions, all functions return an empty string.

Sources:
    https://docs.aws.amazon.com/general/latest/gr/aws-general.html
    https://docs.aws.eu/esc/latest/userguide/endpoints.html
    https://docs.aws.amazon.com/amazonconsole/latest/devguide/urls.html
"""

from __future__ import annotations

from urllib.parse import quote

from farcall.model.jobs import JobDetail


def job_url(region: str, detail: JobDetail) -> str:
    """Return the page of a job, an array task, or an array job with its tasks."""
    kind = "array-job" if detail.array_size else "detail"
    return _batch(region, f"jobs/{kind}/{quote(detail.job_id, safe=':')}")


def queue_url(region: str, detail: JobDetail) -> str:
    """Return the page of a job's queue; the list of queues if its ARN is unknown."""
    if not detail.queue_arn:
        return _batch(region, "queues")
    return _batch(region, f"queues/detail/{quote(detail.queue_arn, safe=':/')}")


def log_url(region: str, detail: JobDetail) -> str:
    """Return the page of a job's log in CloudWatch; empty if there is no log."""
    if not detail.log_stream:
        return ""
    group, stream = (
        quote(quote(name, safe=""), safe="").replace("%", "$")
        for name in (detail.log_group, detail.log_stream)
    )
    page = f"#logsV2:log-groups/log-group/{group}/log-events/{stream}"
    return _page(region, f"cloudwatch/home?region={region}{page}")


def bucket_url(region: str, bucket: str, prefix: str = "") -> str:
    """Return the page of a bucket or prefix; empty for access points."""
    if bucket.startswith("arn:"):
        return ""
    below = f"&prefix={quote(prefix, safe='')}" if prefix else ""
    return _page(region, f"s3/buckets/{bucket}?region={region}{below}")


def _batch(region: str, page: str) -> str:
    return _page(region, f"batch/home?region={region}#{page}")


def _page(region: str, page: str) -> str:
    host = _host(region)
    return f"https://{host}/{page}" if host else ""


def _host(region: str) -> str:
    if region.startswith("cn-"):
        return "console.amazonaws.cn"
    if region.startswith("us-gov-"):
        return "console.amazonaws-us-gov.com"
    if region.startswith("eusc-"):
        return f"{region}.console.amazonaws-eusc.eu"
    if region.startswith(("us-iso", "eu-iso")):
        return ""
    return f"{region}.console.aws.amazon.com"
