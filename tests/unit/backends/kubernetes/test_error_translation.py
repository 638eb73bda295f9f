"""Errors of requests, with remedies."""

import pytest

from farcall.backends.kubernetes.error_translation import KubeError
from tests.unit.backends.kubernetes.api_server import give, kubeconfig, opened, refuse
from tests.unit.backends.kubernetes.test_client import JOBS


async def test_forbidden_request_names_permission(kube, server):
    server.answers = [refuse(403, "Forbidden", 'User "me" cannot create resource "jobs"')]
    with pytest.raises(KubeError) as caught:
        await kube.request("POST", JOBS, body={}, retry_s=0)
    text = str(caught.value)
    assert "kubectl create role farcall-jobs --verb=create --resource=jobs.batch -n ml" in text
    assert "kubectl create rolebinding farcall-jobs --role=farcall-jobs" in text


async def test_missing_namespace_is_named(kube, server):
    server.answers = [refuse(404, "NotFound", details={"kind": "namespaces", "name": "ml"})]
    with pytest.raises(KubeError, match="set namespace to one that"):
        await kube.request("POST", JOBS, body={})


async def test_rejected_credentials_are_reported(kube, server):
    server.answers = [refuse(401, "Unauthorized")]
    with pytest.raises(KubeError, match=r"context here of .*renew its token or certificate"):
        await kube.request("GET", JOBS, retry_s=0)


async def test_unreachable_server_error_names_context(server, tmp_path):
    await server.stop()
    path = kubeconfig(tmp_path / "config", server.url)
    kube = opened(path)
    with pytest.raises(KubeError) as caught:
        await kube.request("GET", JOBS, retry_s=0)
    await kube.close()
    assert not caught.value.sent
    for expected in (server.url, "context here", str(path), "kubectl config get-contexts"):
        assert expected in str(caught.value)
    await server.start()


async def test_web_page_is_no_response(kube, server):
    server.answers = [give("<html>", 200)]
    with pytest.raises(KubeError, match="not a response of Kubernetes"):
        await kube.request("GET", JOBS, retry_s=0)


async def test_control_characters_are_escaped(kube, server):
    server.answers = [refuse(400, "BadRequest", "\x1b[31mred")]
    with pytest.raises(KubeError) as caught:
        await kube.request("GET", JOBS)
    assert "\x1b" not in str(caught.value)
