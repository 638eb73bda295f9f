"""TorchX apps for tests."""

from __future__ import annotations

from typing import Any

from torchx.specs import AppDef, Resource, Role

ITYPE = "node.kubernetes.io/instance-type"


def sized(cpu: float = 1, gpu: float = 0, mib: float = 128, **more: Any) -> Resource:
    """Return a resource, small by default."""
    return Resource(cpu=cpu, gpu=gpu, memMB=mib, **more)


def role(name: str = "trainer", **fields: Any) -> Role:
    """Return a role, small by default."""
    usual = {
        "image": "alpine:3",
        "entrypoint": "sh",
        "args": ["-c", "echo hi"],
        "resource": sized(),
    }
    return Role(name, **{**usual, **fields})


def app(*roles: Role, name: str = "hello", **fields: Any) -> AppDef:
    """Return an app, with one role by default."""
    return AppDef(name, list(roles) or [role()], **fields)
