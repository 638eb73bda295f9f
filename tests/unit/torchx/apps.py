"""TorchX apps for tests."""

from __future__ import annotations

from typing import Any

from torchx.specs import AppDef, Resource, Role


def role(name: str = "trainer", **fields: Any) -> Role:
    """Return a role, small by default."""
    usual = {
        "image": "alpine:3",
        "entrypoint": "sh",
        "args": ["-c", "echo hi"],
        "resource": Resource(cpu=1, gpu=0, memMB=128),
    }
    return Role(name, **{**usual, **fields})


def app(*roles: Role, name: str = "hello", **fields: Any) -> AppDef:
    """Return an app, with one role by default."""
    return AppDef(name, list(roles) or [role()], **fields)
