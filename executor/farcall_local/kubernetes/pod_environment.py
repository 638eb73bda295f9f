"""Environment and words of a pod's container, as a kubelet makes them of its document.

Names that a headless Service would give to pods are replaced by this machine's address: there is
no DNS of a cluster here, and all pods share this machine's network.

Sources:
    https://kubernetes.io/docs/tasks/inject-data-application/
    https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#environment-variables
    https://github.com/kubernetes/kubernetes/blob/v1.36.2/third_party/forked/golang/expansion/expand.go
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import Any

from farcall_local import names
from farcall_local.kubernetes import nodes
from farcall_local.kubernetes.kinds import CONFIG_MAP, SECRET, Kind
from farcall_local.kubernetes.store import Store

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\)|)")
_OF_MAP = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


class ConfigError(Exception):
    """A container cannot be made as its pod wants it: CreateContainerConfigError."""


class Container:
    """A pod's container as it is to be run.

    Attributes:
        environment: Its variables.
        entrypoint: What takes the place of the image's; empty for that.
        command: Its arguments.

    Raises:
        ConfigError: Something that it names is not there.
    """

    def __init__(self, store: Store, pod: dict[str, Any]) -> None:
        document = pod["spec"]["containers"][0]
        self._store = store
        self._pod = pod
        named = _names(pod)
        self.environment = self._variables(document)
        self.entrypoint = tuple(
            named(expanded(word, self.environment)) for word in document.get("command") or ()
        )
        self.command = tuple(
            named(expanded(word, self.environment)) for word in document.get("args") or ()
        )
        self.environment = {name: named(value) for name, value in self.environment.items()}

    def _variables(self, container: dict[str, Any]) -> dict[str, str]:
        meta = self._pod["metadata"]
        found = {"HOSTNAME": self._pod["spec"].get("hostname") or meta["name"]}
        for source in container.get("envFrom") or ():
            for key, ref in (("secretRef", SECRET), ("configMapRef", CONFIG_MAP)):
                if key in source:
                    values = self._values(ref, source[key]) or {}
                    prefix = source.get("prefix", "")
                    found.update({f"{prefix}{name}": text for name, text in values.items()})
        for variable in container.get("env") or ():
            value = variable.get("value", "")
            if "valueFrom" in variable:
                value = self._value(variable["valueFrom"], container)
            if value is not None:
                # Of those before it alone, as the kubelet has it.
                text = expanded(value, found) if "value" in variable else value
                found[variable["name"]] = text
        return found

    def _value(self, source: dict[str, Any], container: dict[str, Any]) -> str | None:
        if "fieldRef" in source:
            return self._field(source["fieldRef"]["fieldPath"])
        if "resourceFieldRef" in source:
            return _resource(source["resourceFieldRef"], container)
        for key, kind in (("secretKeyRef", SECRET), ("configMapKeyRef", CONFIG_MAP)):
            if key in source:
                return self._key(kind, source[key])
        return ""

    def _key(self, kind: Kind, ref: dict[str, Any]) -> str | None:
        values = self._values(kind, ref)
        if values is not None and ref["key"] in values:
            return values[ref["key"]]
        if ref.get("optional"):
            return None
        where = f"{self._pod['metadata']['namespace']}/{ref['name']}"
        raise ConfigError(f"couldn't find key {ref['key']} in {kind.kind} {where}")

    def _values(self, kind: Kind, ref: dict[str, Any]) -> dict[str, str] | None:
        found = self._store.get(kind, self._pod["metadata"]["namespace"], ref["name"])
        if found is not None:
            return {name: each.decode(errors="replace") for name, each in contents(found).items()}
        if ref.get("optional"):
            return None
        raise ConfigError(f'{kind.singular} "{ref["name"]}" not found')

    def _field(self, path: str) -> str:
        meta, spec = self._pod["metadata"], self._pod["spec"]
        match = _OF_MAP.fullmatch(path)
        if match:
            return str((meta.get(match[1]) or {}).get(match[2], ""))
        address = names.NODE_ADDRESS
        fields = {
            "metadata.name": meta["name"],
            "metadata.namespace": meta["namespace"],
            "metadata.uid": meta["uid"],
            "spec.nodeName": spec.get("nodeName", ""),
            "spec.serviceAccountName": spec.get("serviceAccountName", ""),
            **{f"status.{each}": address for each in ("hostIP", "hostIPs", "podIP", "podIPs")},
        }
        if path not in fields:
            raise ConfigError(f"unsupported fieldPath: {path}")
        return str(fields[path])


def contents(document: dict[str, Any]) -> dict[str, bytes]:
    """Return what a Secret or ConfigMap holds, by key."""
    data = document.get("data") or {}
    if document["kind"] == SECRET.kind:
        return {name: base64.b64decode(value or "") for name, value in data.items()}
    binary = document.get("binaryData") or {}
    return {name: str(value).encode() for name, value in data.items()} | {
        name: base64.b64decode(value) for name, value in binary.items()
    }


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Replace each ``$(NAME)`` whose variable there is, and ``$$`` by one dollar."""

    def replaced(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        name = match[1]
        return match[0] if name is None else variables.get(name, match[0])

    return _REFERENCE.sub(replaced, text)


def _names(pod: dict[str, Any]) -> Callable[[str], str]:
    """Return what replaces the names of a pod's fellows by this machine's address."""
    subdomain = pod["spec"].get("subdomain")
    if not subdomain:
        return lambda text: text
    namespace = re.escape(pod["metadata"]["namespace"])
    rest = rf"(?:\.{namespace}(?:\.svc(?:\.cluster\.local)?)?)?"
    pattern = re.compile(rf"(?<![\w.-])[a-z0-9-]+\.{re.escape(subdomain)}{rest}(?![\w-]|\.\w)")
    return lambda text: pattern.sub(names.NODE_ADDRESS, text)


def _resource(ref: dict[str, Any], container: dict[str, Any]) -> str:
    which, _, resource = ref["resource"].partition(".")
    resources = container.get("resources") or {}
    quantity = (resources.get(which) or resources.get("limits") or {}).get(resource, "0")
    divisor = nodes.parse(ref.get("divisor") or "1") or nodes.parse("1")
    return str(-(-nodes.parse(quantity) // divisor))
