"""Facts in a job's documents, and their explanation."""

from farcall.backends.base import Runtime
from farcall.backends.kubernetes import describe
from tests.unit.backends.kubernetes.objects import BUNDLE, IMAGE, NAME, job, pod


def test_job_description_has_its_options():
    runtime = Runtime("https://b.s3.r.amazonaws.com", "b", "r", "p/0", "x86_64", "3.11")
    options = {"tags": {"a/b/c": "1"}, "instance_type": "m7i", "num_gpus": 1, "vcpu": 0.5}
    found = describe.Description(job(runtime=runtime, options=options)).whole(())
    assert (found.job_id, found.name, found.log_group) == (NAME, NAME, "sim")
    assert (found.image, found.runtime, found.command) == (IMAGE, "b/p/0", ())
    assert (found.vcpu, found.memory_mib, found.gpus) == (0.5, 3840, 1)
    assert (found.time_limit_s, found.attempts_allowed) == (300, 3)
    assert found.instance_type == "m7i"
    assert found.tags == {"a/b/c": "1"}
    assert found.environment["FARCALL_BUNDLE"] == BUNDLE
    assert found.created_at is not None
    assert not found.is_command
    assert found.platform == "Kubernetes"


def test_likely_cause_is_clusters():
    """The words of Batch do not apply to a cluster."""
    held, new = job(4, suspend=True), job(4)
    assert "suspended" in describe.Description(held).whole(()).likely_cause
    assert "kube-controller-manager" in describe.Description(new).whole(()).likely_cause
    full = describe.Description(job(active=1)).whole((pod("Pending", placed=False),))
    assert "capacity" in full.likely_cause
