"""API discovery of the local Kubernetes emulator."""

from __future__ import annotations

import pytest

from farcall_local.kubernetes import discovery
from farcall_local.kubernetes.kinds import KINDS


def test_discovery_finds_every_kind():
    core = [f"/api/{version}" for version in discovery.answer("/api")["versions"]]
    groups = discovery.answer("/apis")["groups"]
    assert "" not in {group["name"] for group in groups}
    others = [f"/apis/{one['groupVersion']}" for group in groups for one in group["versions"]]
    found = {
        (path, resource["name"], resource["kind"])
        for path in core + others
        for resource in discovery.answer(path)["resources"]
    }
    for kind in KINDS:
        root = "/apis" if kind.group else "/api"
        assert (f"{root}/{kind.api_version}", kind.plural, kind.kind) in found


@pytest.mark.parametrize(
    "path",
    ["/", "/api/v2", "/apis/batch/v2", "/apis/none/v1", "/apis/batch/v1/jobs", "/x"],
)
def test_unknown_paths_are_none(path):
    assert discovery.answer(path) is None
