"""Endpoint of the Kubernetes emulator: port, certificate, tokens and kubeconfig.

The certificate is self-signed, and a new one is created at each start.
"""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import secrets
import socket
import ssl
import tempfile
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from farcall_local import names
from tests.emulators.kubernetes.access import ADMINISTRATOR, RESTRICTED

#: Names of cluster and context in the kubeconfig file.
CLUSTER = "farcall-local"
NAMESPACE = "default"
S3_SECRET = "farcall-s3"

_LIFETIME = dt.timedelta(days=30)


class ClusterEndpoint:
    """Port, with the credentials that clients need.

    Attributes:
        listener: The open socket.
        url: URL of the API.
        tokens: Token to user name.
        environment: Variables that configure farcall and Kubernetes clients for the emulator.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.listener = names.listen(host)
        self.address = self.listener.getsockname()[:2]
        self.url = f"https://{host}:{self.address[1]}"
        self.tokens = {secrets.token_urlsafe(32): user for user in (ADMINISTRATOR, RESTRICTED)}
        self._folder = tempfile.TemporaryDirectory(prefix="farcall-kubernetes-")
        folder = Path(self._folder.name)  # of mode 0700
        certificate = _certify(folder, host)
        self._certificate = folder / "server.pem"
        self._file = folder / "kubeconfig"
        self._file.write_text(yaml.safe_dump(self._kubeconfig(certificate)))
        self._file.chmod(0o600)
        self.environment = {
            "KUBECONFIG": str(self._file),
            "FARCALL_BACKEND": "kubernetes",
            "FARCALL_QUEUE": "",
            "FARCALL_NAMESPACE": NAMESPACE,
            "FARCALL_S3_SECRET": S3_SECRET,
        }

    def tls(self) -> ssl.SSLContext:
        """Return the server's TLS context."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._certificate)
        context.set_alpn_protocols(["http/1.1"])
        return context

    def reopen(self) -> socket.socket:
        """Listen on the same port again, and return the socket."""
        self.listener = names.listen(*self.address)
        return self.listener

    def close(self) -> None:
        """Close the port and delete the files."""
        self.listener.close()
        self._folder.cleanup()

    def _kubeconfig(self, certificate: str) -> dict[str, object]:
        cluster = {"server": self.url, "certificate-authority-data": certificate}
        administrator, restricted = self.tokens
        users = {CLUSTER: administrator, RESTRICTED: restricted}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": CLUSTER, "cluster": cluster}],
            "users": [{"name": name, "user": {"token": token}} for name, token in users.items()],
            "contexts": [
                {
                    "name": name,
                    "context": {"cluster": CLUSTER, "user": name, "namespace": NAMESPACE},
                }
                for name in users
            ],
            "current-context": CLUSTER,
        }


def _certify(folder: Path, host: str) -> str:
    """Write a server's key and certificate; return the certificate as base64."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, CLUSTER)])
    hosts = [x509.IPAddress(ipaddress.ip_address(host)), x509.DNSName("localhost")]
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))  # clocks may differ
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = folder / "server.pem"
    file.touch(0o600)
    file.write_bytes(secret + certificate.public_bytes(pem))
    return base64.b64encode(certificate.public_bytes(pem)).decode()
