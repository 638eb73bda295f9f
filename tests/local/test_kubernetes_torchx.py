"""TorchX's own scheduler ``kubernetes`` as a judge: its Volcano jobs on the embedded Volcano.

It is the scheduler that comes with TorchX, with the official client below it, as people use it
with a real Volcano. Nothing of farcall's plugin is in here.
"""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torchx.schedulers.kubernetes_scheduler")

from torchx.schedulers import kubernetes_scheduler
from torchx.specs import AppDef, AppState, Resource, Role, macros

SMALL = Resource(cpu=1, gpu=0, memMB=2048)


@pytest.fixture
def scheduler(cluster):
    return kubernetes_scheduler.KubernetesScheduler("tests", client=cluster.api)


@pytest.fixture
def submit(cluster, scheduler):
    """Submit an app of shell scripts by role, one for each replica; return its ID."""

    def submit_app(_replicas=1, _retries=0, **scripts):
        roles = [
            Role(
                name=name,
                image=cluster.image,
                entrypoint="sh",
                args=["-c", script],
                num_replicas=_replicas,
                max_retries=_retries,
                resource=SMALL,
            )
            for name, script in scripts.items()
        ]
        config = {"queue": "default", "namespace": cluster.namespace}
        return scheduler.submit(AppDef(name="trial", roles=roles), config)

    return submit_app


@pytest.fixture
def wait(cluster, scheduler):
    """Wait until an app is in a state, and return what there is to be said of it."""

    def until(app_id, *states):
        def there():
            found = scheduler.describe(app_id)
            return [found] if found is not None and found.state in states else []

        return cluster.until(there)[0]

    return until


def test_an_app_runs_to_its_end(cluster, scheduler, submit, wait):
    app_id = submit(trainer="echo hello; echo world")
    assert re.fullmatch(rf"{cluster.namespace}:trial-[a-z0-9]+", app_id)
    ended = wait(app_id, AppState.SUCCEEDED)
    assert [(role.name, role.num_replicas) for role in ended.roles] == [("trainer", 1)]
    [status] = ended.roles_statuses
    assert [replica.state for replica in status.replicas] == [AppState.SUCCEEDED]
    lines = list(scheduler.log_iter(app_id, "trainer", 0))
    assert [line.split()[-1] for line in lines] == ["hello", "world"]
    assert app_id in {app.app_id for app in scheduler.list({"namespace": cluster.namespace})}
    native = scheduler.describe_native(app_id)
    assert native.request.resource["spec"]["schedulerName"] == "volcano"


def test_an_app_fails(submit, wait):
    ended = wait(submit(trainer="exit 3"), AppState.FAILED)
    assert ended.state is AppState.FAILED


def test_replicas_know_each_other(cluster, scheduler, submit, wait):
    """Macros give ranks and the address of the first replica, by Volcano's svc plugin."""
    script = f"echo rank {macros.replica_id} at ${{{macros.rank0_env}:=$TORCHX_RANK0_HOST}}"
    app_id = submit(2, trainer=script)
    wait(app_id, AppState.SUCCEEDED)
    said = [next(iter(scheduler.log_iter(app_id, "trainer", rank))) for rank in range(2)]
    assert "rank 0 at localhost" in said[0]
    assert re.search(r"rank 1 at \S+", said[1])


def test_several_roles(cluster, scheduler, submit, wait):
    app_id = submit(reader="echo read", trainer="echo train")
    wait(app_id, AppState.SUCCEEDED)
    assert "read" in next(iter(scheduler.log_iter(app_id, "reader", 0)))
    assert "train" in next(iter(scheduler.log_iter(app_id, "trainer", 0)))


def test_a_log_is_followed(scheduler, cluster, submit, wait, gate):
    app_id = submit(trainer=f"echo first; {gate[0]}; echo last")
    wait(app_id, AppState.RUNNING)
    name = app_id.split(":")[1]
    cluster.until(
        lambda: (
            cluster.ask("GET", cluster.path("pods", f"{name}-trainer-0-0", "log")).status == 200
        )
    )
    lines = scheduler.log_iter(app_id, "trainer", 0, should_tail=True)
    assert "first" in next(lines)
    gate[1]()
    assert "last" in next(lines)


def test_an_app_is_cancelled_and_deleted(scheduler, cluster, submit, wait, gate):
    app_id = submit(trainer=gate[0])
    wait(app_id, AppState.RUNNING)
    scheduler.cancel(app_id)
    assert wait(app_id, AppState.CANCELLED).state is AppState.CANCELLED
    assert scheduler.describe_native(app_id) is not None
    scheduler.delete(app_id)
    cluster.until(lambda: scheduler.describe(app_id) is None)


def test_a_document_is_checked_before_it_is_sent(scheduler, cluster):
    """Dry runs ask the server, which has Volcano's own schema."""
    role = Role(name="trainer", image=cluster.image, entrypoint="true", resource=SMALL)
    app = AppDef(name="trial", roles=[role])
    config = {"queue": "default", "namespace": cluster.namespace}
    info = scheduler.submit_dryrun(app, config)
    name = info.request.resource["metadata"]["name"]
    assert scheduler.describe(f"{cluster.namespace}:{name}") is None
