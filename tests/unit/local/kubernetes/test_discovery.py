"""What clients learn of the API by discovery."""

from __future__ import annotations

import pytest

from farcall.local.kubernetes import discovery
from farcall.local.kubernetes.kinds import KINDS


def test_every_kind_is_found_from_the_root():
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


def test_a_group_prefers_its_first_version():
    group = discovery.answer("/apis/batch")
    assert (group["kind"], group["name"]) == ("APIGroup", "batch")
    assert group["preferredVersion"] == {"groupVersion": "batch/v1", "version": "v1"}


def test_resources_and_what_lies_below_them():
    pods = {one["name"]: one for one in discovery.answer("/api/v1")["resources"]}
    assert pods["pods"]["shortNames"] == ["po"]
    assert pods["pods"]["categories"] == ["all"]
    assert pods["pods/log"]["verbs"] == ["get"]
    assert (pods["pods/eviction"]["group"], pods["pods/eviction"]["kind"]) == (
        "policy",
        "Eviction",
    )
    assert pods["nodes"]["namespaced"] is False
    assert discovery.answer("/api/v1")["groupVersion"] == "v1"


def test_reviews_can_only_be_asked():
    [one, _] = discovery.answer("/apis/authorization.k8s.io/v1")["resources"]
    assert (one["kind"], one["verbs"]) == ("SelfSubjectAccessReview", ["create"])


def test_version():
    version = discovery.answer("/version")
    assert f"v{version['major']}.{version['minor']}." in version["gitVersion"]


@pytest.mark.parametrize(
    "path",
    ["/", "/api/v2", "/apis/batch/v2", "/apis/none", "/apis/none/v1", "/apis/batch/v1/jobs", "/x"],
)
def test_paths_that_are_none(path):
    assert discovery.answer(path) is None
