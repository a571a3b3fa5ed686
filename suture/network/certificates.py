"""Keys and certificates of a federation: an authority, the hub's certificate, and one key per site.

Everything is made with `cryptography`: ECDSA on P-256, which Flower's node authentication takes
like any NIST curve and which signs every request of a site in a tenth of P-384's time. The
authority signs only hubs; sites are known by their public keys, which the hub's operator enrols.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from suture.errors import RunError

AUTHORITY_DAYS, SERVER_DAYS = 3650, 398


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def write_secret(path: Path, content: bytes) -> None:
    """A file that only its owner may read; never over an old one."""
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
    except FileExistsError:
        raise RunError(
            f"{path} is there already; move it away first if it is to be replaced"
        ) from None
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error}") from None


def key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A private key as PEM, unencrypted: the file's mode protects it."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def write_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Make a key and write it to a file of its own."""
    key = new_key()
    write_secret(path, key_bytes(key))
    return key


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"the key {path} cannot be read: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise RunError(f"{path} holds a key of another kind; expected ECDSA")
    return key


def public_pem(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def trusting(authority: str) -> ssl.SSLContext:
    """TLS that trusts the federation's own authority (PEM) and nobody else."""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(cadata=authority)
    except (ValueError, ssl.SSLError) as error:
        raise RunError(f"the authority's certificate cannot be read: {error}") from None
    return context


def new_authority(name: str) -> tuple[bytes, bytes]:
    key = new_key()
    subject = _name(f"{name} authority")
    basic = x509.BasicConstraints(ca=True, path_length=0)
    made = _certificate(subject, subject, key, AUTHORITY_DAYS, basic)
    return made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM), key_bytes(key)


def new_server(authority: bytes, authority_key: bytes, hosts: Sequence[str]) -> tuple[bytes, bytes]:
    """A hub's certificate for its names and addresses, signed by the authority: certificate and
    key, as PEM.

    >>> ca, ca_key = new_authority("demo")
    >>> certificate, key = new_server(ca, ca_key, ["localhost", "127.0.0.1"])
    >>> certificate.startswith(b"-----BEGIN CERTIFICATE-----")
    True
    """
    root = x509.load_pem_x509_certificate(authority)
    signer = load_pem_private_key(authority_key, None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey) or not hosts:
        raise RunError(
            "a server's certificate needs the authority's key and at least one host name"
        )
    key = new_key()
    basic = x509.BasicConstraints(ca=False, path_length=None)
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    made = (
        _certificate(_name(hosts[0]), root.subject, key, SERVER_DAYS, basic)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(signed_by, critical=False)
    )
    return made.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM), key_bytes(key)


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    days: int,
    basic: x509.BasicConstraints,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    usage = x509.KeyUsage(
        digital_signature=not basic.ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=basic.ca,
        crl_sign=basic.ca,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(basic, critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
