"""A local or real Kubernetes cluster, used with other clients than farcall's.

Requests use the connections and credentials of the official client, but not its models, so that
the tests check the API itself; `Cluster.kubectl` runs the real command.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest
from kubernetes import config

from tests.support.patience import PATIENCE_S

JOB_NAME = "batch.kubernetes.io/job-name"
INDEX = "batch.kubernetes.io/job-completion-index"
MERGE = "application/merge-patch+json"

Document = dict[str, Any]


class Answer(NamedTuple):
    """Response of the API server.

    Attributes:
        status: HTTP status code.
        body: Parsed JSON, or the text if it is not JSON.
    """

    status: int
    body: Any

    def fields(self) -> set[str]:
        """Return the fields that an error response names."""
        return {cause["field"] for cause in self.body["details"]["causes"]}


class Cluster:
    """A namespace of a cluster, and common steps of the tests.

    Args:
        kubeconfig: Path of the kubeconfig file.
        local: The local emulator, for its hooks; None for a real cluster.
    """

    def __init__(self, kubeconfig: str | Path, local: Any = None) -> None:
        self.kubeconfig = str(kubeconfig)
        self.local = local
        self.image = os.environ.get("FARCALL_TEST_KUBERNETES_IMAGE", "busybox:stable")
        self.patience_s = PATIENCE_S if local else 900
        self.api = config.new_client_from_config(self.kubeconfig, persist_config=False)
        _, current = config.list_kube_config_contexts(self.kubeconfig)
        self.namespace = current["context"].get("namespace") or "default"
        self._made: list[str] = []

    # --- requests ---------------------------------------------------------------------------

    def path(self, plural: str, name: str = "", *parts: str) -> str:
        """Return the path of a resource of the namespace: jobs, pods, secrets, ..."""
        group = {"jobs": "/apis/batch/v1"}.get(plural, "/api/v1")
        return "/".join(filter(None, (group, "namespaces", self.namespace, plural, name, *parts)))

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
        **query: Any,
    ) -> Answer:
        """Send one request, without retries."""
        response = self._open(method, path, body, content_type, accept, query)
        data = response.data.decode()
        with contextlib.suppress(ValueError):
            data = json.loads(data) if response.status >= 400 or "json" in accept else data
        return Answer(response.status, data)

    def _open(self, method, path, body, content_type, accept, query, timeout_s=60.0):
        headers = {"Accept": accept}
        if body is not None:
            headers["Content-Type"] = content_type
        self.api.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        query = {k: str(v).lower() if isinstance(v, bool) else v for k, v in query.items()}
        return self.api.rest_client.pool_manager.request(
            method,
            f"{self.api.configuration.host}{path}" + (f"?{urlencode(query)}" if query else ""),
            body=None if body is None else json.dumps(body),
            headers=headers,
            preload_content=not query.get("watch") and not query.get("follow"),
            timeout=timeout_s,
            retries=False,
        )

    def open(self, path: str, **query: Any) -> Any:
        """Open a streaming response: a watch or a followed log."""
        response = self._open("GET", path, None, "", "*/*", query, self.patience_s)
        assert response.status == 200, response.data
        return response

    def events(self, path: str, **query: Any) -> Iterator[Document]:
        """Yield the events of a watch until the server ends it."""
        response = self.open(path, watch=True, **query)
        try:
            rest = b""
            for piece in response.stream(65536):
                *lines, rest = (rest + piece).split(b"\n")
                yield from map(json.loads, lines)
            assert not rest, "the last event is incomplete"
        finally:
            response.close()

    def kubectl(self, *arguments: object, answer: str = "", ok: bool = True) -> Run:
        """Run kubectl; assert that it exits with 0 unless ``ok`` is false."""
        ended = subprocess.run(
            [kubectl(), *self._connection, *map(str, arguments)],
            input=answer,
            capture_output=True,
            text=True,
            env=self._environment,
            timeout=self.patience_s,
            check=False,
        )
        assert not ok or ended.returncode == 0, ended.stderr
        return Run(ended.returncode, ended.stdout, ended.stderr)

    def start_kubectl(self, *arguments: object) -> subprocess.Popen[str]:
        """Start kubectl in the background, to watch or follow; its output is piped."""
        return subprocess.Popen(
            [kubectl(), *self._connection, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._environment,
        )

    @property
    def _connection(self) -> list[str]:
        return ["--kubeconfig", self.kubeconfig, "--namespace", self.namespace]

    @property
    def _environment(self) -> dict[str, str]:
        return {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}

    # --- jobs -------------------------------------------------------------------------------

    def job(
        self,
        script: str,
        *,
        name: str = "",
        pod: Document | None = None,
        container: Document | None = None,
        template: Document | None = None,
        **spec: Any,
    ) -> Document:
        """Return the document of a Job that runs a shell script, by default with a unique name."""
        task = {
            "name": "task",
            "image": self.image,
            "command": ["sh", "-c", script],
            "resources": {"limits": {"cpu": "100m", "memory": "32Mi"}},
            **(container or {}),
        }
        # A shell as PID 1 ignores SIGTERM, and would be killed only after half a minute.
        podspec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, **(pod or {})}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name or unique()},
            "spec": {
                **spec,
                "template": {"spec": {**podspec, "containers": [task]}, **(template or {})},
            },
        }

    def indexed(self, script: str, size: int, **more: Any) -> Document:
        """Return the document of an Indexed Job that runs all indexes in parallel."""
        return self.job(
            script,
            **{"completionMode": "Indexed", "completions": size, "parallelism": size, **more},
        )

    def create(self, document: Document) -> str:
        """Create a Job and return its name."""
        answer = self.ask("POST", self.path("jobs"), document)
        assert answer.status == 201, answer.body
        name = answer.body["metadata"]["name"]
        self._made.append(name)
        return str(name)

    def refused(self, document: Document, **query: Any) -> Answer:
        """Create a Job that is rejected; return the response."""
        answer = self.ask("POST", self.path("jobs"), document, **query)
        assert answer.status >= 400, answer.body
        return answer

    def get(self, plural: str, name: str) -> Document:
        """Return an existing object."""
        answer = self.ask("GET", self.path(plural, name))
        assert answer.status == 200, answer.body
        return dict(answer.body)

    def patch(self, name: str, body: Document, plural: str = "jobs") -> Document:
        """Apply a merge patch to an object; return the object."""
        answer = self.ask("PATCH", self.path(plural, name), body, content_type=MERGE)
        assert answer.status == 200, answer.body
        return dict(answer.body)

    def pods(self, job: str, **labels: str) -> list[Document]:
        """Return the existing pods of a Job, sorted by index and age."""
        selector = ",".join(f"{k}={v}" for k, v in {JOB_NAME: job, **labels}.items())
        found = self.ask("GET", self.path("pods"), labelSelector=selector).body["items"]
        return sorted(found, key=lambda pod: (index(pod), pod["metadata"]["creationTimestamp"]))

    def log(self, pod: str, **query: Any) -> str:
        """Return a pod's log."""
        answer = self.ask("GET", self.path("pods", pod, "log"), accept="*/*", **query)
        assert answer.status == 200, answer.body
        return str(answer.body)

    def events_of(self, name: str, reason: str, kind: str = "Job") -> list[Document]:
        """Return an object's Events with one reason."""
        fields = f"involvedObject.kind={kind},involvedObject.name={name},reason={reason}"
        return list(self.ask("GET", self.path("events"), fieldSelector=fields).body["items"])

    def run(self, document: Document) -> Document:
        """Create a Job, wait until it finishes, and return it."""
        return self.ended(self.create(document))

    def ended(self, name: str) -> Document:
        """Wait until a Job finishes, and return it."""
        return self.until(
            lambda: [job for job in [self.get("jobs", name)] if ending(job)],
        )[0]

    def until(self, condition: Callable[[], Any]) -> Any:
        """Poll until a condition is true; return its value."""
        __tracebackhide__ = True
        deadline = time.monotonic() + self.patience_s
        while not (found := condition()):
            assert time.monotonic() < deadline, f"waited too long; last: {found!r}"
            time.sleep(0.03 if self.local else 1)
        return found

    def running(self, name: str, number: int = 1) -> list[Document]:
        """Wait until a number of a Job's pods are running, and return them."""

        def there() -> list[Document]:
            run = [pod for pod in self.pods(name) if pod["status"].get("phase") == "Running"]
            return run if len(run) >= number else []

        return list(self.until(there))

    def close(self) -> None:
        """Delete the created Jobs."""
        for name in self._made:
            self.ask("DELETE", self.path("jobs", name), propagationPolicy="Background")
        self.api.close()


class Run(NamedTuple):
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        """The words of each line, including the heading."""
        return [line.split() for line in self.out.splitlines()]


def kubectl() -> str:
    """Return the path of kubectl; skip the test if it is missing."""
    beside = Path(sys.executable).with_name("kubectl")
    found = str(beside) if beside.exists() else shutil.which("kubectl")
    if found is None:
        pytest.skip("kubectl is not here: its wheel is for Linux on x86-64 and arm64")
    return found


def unique() -> str:
    """Return a unique name."""
    return f"farcall-test-{uuid.uuid4().hex[:12]}"


def ending(job: Document) -> str:
    """Return the type of the condition that ended a Job; empty if it is unfinished."""
    for condition in job.get("status", {}).get("conditions", []):
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            return str(condition["type"])
    return ""


def condition(document: Document, kind: str) -> Document:
    """Return a condition of an object; empty if it has none of that type."""
    for found in document.get("status", {}).get("conditions", []):
        if found["type"] == kind:
            return dict(found)
    return {}


def index(pod: Document) -> int:
    """Return the completion index of a pod; -1 if it has none."""
    return int(pod["metadata"].get("annotations", {}).get(INDEX, -1))
