"""Private files: keys and credentials, which are sent only if an option says so. No I/O."""

from __future__ import annotations

import fnmatch
import functools
import re

_PATTERNS = (
    # keys
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*.pem", "*.key", "*.ppk", "*.p8"),
    *("*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.keytab", "*keytab", "krb5cc*"),
    # credentials
    *("credentials", "credentials.*", "credentials*.json", "client_secret*.json"),
    *("service-account*.json", "service_account*.json", "secrets.*", "kubeconfig*"),
    *("*.kubeconfig", "netrc", "_netrc", "*.tfstate", "*.tfstate.*", "*.env"),
    # names with a dot, which only workspaces send otherwise
    *(".env", ".env.*", ".netrc", ".pgpass", ".pypirc", ".git-credentials", ".htpasswd"),
    *(".aws", ".azure", ".docker", ".git", ".gnupg", ".kube", ".ssh"),
)
_NAMES = re.compile("|".join(fnmatch.translate(each) for each in _PATTERNS), re.IGNORECASE)
_IDENTITY = re.compile(r"id_[^.]*")
"""Usual name of an SSH key; a file such as ``id_map.csv`` has a suffix."""

_CODE = (".py", ".pyi", ".so", ".pyd", ".pub")
_HEADS = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY|PuTTY-User-Key-File|openssh-key-v1")
_HEAD_BYTES = 128

PRIVATE = "it looks like a key or credentials"
"""Why a private file is not sent."""


@functools.lru_cache(4096)
def is_private(name: str) -> bool:
    """Return whether the name of a file or folder suggests a key or credentials."""
    if name.endswith(_CODE):
        return False
    return bool(_NAMES.match(name) or _IDENTITY.fullmatch(name))


def holds_private_key(content: bytes) -> bool:
    """Return whether a file begins with a private key."""
    return _HEADS.search(content, 0, _HEAD_BYTES) is not None
