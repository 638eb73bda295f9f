"""Kinds of objects in the local Kubernetes emulator: names, groups, versions, scope."""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """One kind of object.

    Attributes:
        group: API group, empty for the core's.
        version: Such as ``v1``.
        kind: As documents say it, such as ``Job``.
        plural: As paths say it, such as ``jobs``.
        namespaced: Whether its objects lie in namespaces.
        short: Other names that kubectl takes.
        has_status: Whether it has the subresource ``status``.
        has_generation: Whether `metadata.generation` counts the changes of what is asked for.
        categories: Such as ``all``, for ``kubectl get all``.
    """

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    has_status: bool = False
    has_generation: bool = False
    categories: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        """Group and version as documents say them."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """Plural and group as messages say them: ``jobs.batch``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def singular(self) -> str:
        """The kind in lower case."""
        return self.kind.lower()


_RBAC = "rbac.authorization.k8s.io"

NAMESPACE = Kind("", "v1", "Namespace", "namespaces", False, ("ns",), has_status=True)
NODE = Kind("", "v1", "Node", "nodes", False, ("no",), has_status=True)
POD = Kind("", "v1", "Pod", "pods", True, ("po",), True, True, ("all",))
EVENT = Kind("", "v1", "Event", "events", True, ("ev",))
SERVICE = Kind("", "v1", "Service", "services", True, ("svc",), True, categories=("all",))
SECRET = Kind("", "v1", "Secret", "secrets")
CONFIG_MAP = Kind("", "v1", "ConfigMap", "configmaps", True, ("cm",))
SERVICE_ACCOUNT = Kind("", "v1", "ServiceAccount", "serviceaccounts", True, ("sa",))
RESOURCE_QUOTA = Kind("", "v1", "ResourceQuota", "resourcequotas", True, ("quota",), True)
PERSISTENT_VOLUME_CLAIM = Kind(
    "", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", True, ("pvc",), True
)
JOB = Kind("batch", "v1", "Job", "jobs", True, (), True, True, ("all",))
PRIORITY_CLASS = Kind(
    "scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", False, ("pc",), False, True
)
LEASE = Kind("coordination.k8s.io", "v1", "Lease", "leases")
ROLE = Kind(_RBAC, "v1", "Role", "roles")
ROLE_BINDING = Kind(_RBAC, "v1", "RoleBinding", "rolebindings")

#: All kinds; those of one group and version follow one another.
KINDS: tuple[Kind, ...] = (
    NAMESPACE,
    NODE,
    POD,
    EVENT,
    SERVICE,
    SECRET,
    CONFIG_MAP,
    SERVICE_ACCOUNT,
    RESOURCE_QUOTA,
    PERSISTENT_VOLUME_CLAIM,
    JOB,
    PRIORITY_CLASS,
    LEASE,
    ROLE,
    ROLE_BINDING,
)


def find(group: str, version: str, plural: str) -> Kind | None:
    """Return the kind that a path names, None if there is none."""
    return _BY_PATH.get((group, version, plural))


_BY_PATH = {(kind.group, kind.version, kind.plural): kind for kind in KINDS}
