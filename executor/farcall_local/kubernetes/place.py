"""Where the local Kubernetes emulator is: its port, its certificate, tokens and kubeconfig file.

The authority that signs the certificate is made for this one start and forgotten: nobody can
sign another with it.
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
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from farcall_local import names

#: Names of cluster and context in the kubeconfig file.
CLUSTER = "farcall-local"
NAMESPACE = "default"
#: The user, and context, that has no rights but those of Roles bound to it.
RESTRICTED = "restricted"
S3_SECRET = "farcall-s3"  # noqa: S105 - its name

_LIFETIME = dt.timedelta(days=30)


class Place:
    """A port and what a client needs to come there.

    Attributes:
        listener: The open socket.
        url: Of the API.
        administrator: Token of who may do everything.
        restricted: Token of `RESTRICTED`.
        environment: Variables that point farcall and Kubernetes' clients here.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.listener = names.listen(host)
        self.address = self.listener.getsockname()[:2]
        self.url = f"https://{host}:{self.address[1]}"
        self.administrator = secrets.token_urlsafe(32)
        self.restricted = secrets.token_urlsafe(32)
        self._folder = tempfile.TemporaryDirectory(prefix="farcall-kubernetes-")
        folder = Path(self._folder.name)  # of mode 0700
        authority = _certify(folder, host)
        self._certificate = folder / "server.pem"
        self._file = folder / "kubeconfig"
        self._file.write_text(yaml.safe_dump(self._kubeconfig(authority)))
        self._file.chmod(0o600)
        self.environment = {
            "KUBECONFIG": str(self._file),
            "FARCALL_BACKEND": "kubernetes",
            "FARCALL_QUEUE": "",
            "FARCALL_NAMESPACE": NAMESPACE,
            "FARCALL_S3_SECRET": S3_SECRET,
        }

    def tls(self) -> ssl.SSLContext:
        """Return what a server shows its clients."""
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

    def _kubeconfig(self, authority: str) -> dict[str, object]:
        cluster = {"server": self.url, "certificate-authority-data": authority}
        users = {CLUSTER: self.administrator, RESTRICTED: self.restricted}
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
    """Write key and certificate of a server; return its authority's, in base64."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{CLUSTER} authority")])
    basic = x509.BasicConstraints(ca=True, path_length=0)
    authority = (
        _builder(authority_name, authority_name, authority_key)
        .add_extension(basic, critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, CLUSTER)])
    certificate = (
        _builder(name, authority_name, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(_hosts(host)), critical=False)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = folder / "server.pem"
    file.touch(0o600)
    file.write_bytes(secret + certificate.public_bytes(pem))
    return base64.b64encode(authority.public_bytes(pem)).decode()


def _builder(
    name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))  # clocks may differ
        .not_valid_after(now + _LIFETIME)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _hosts(host: str) -> list[x509.GeneralName]:
    try:
        return [x509.IPAddress(ipaddress.ip_address(host)), x509.DNSName("localhost")]
    except ValueError:
        return [x509.DNSName(host), x509.DNSName("localhost")]
