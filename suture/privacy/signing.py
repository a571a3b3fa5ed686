"""Ed25519 keys of an ethics board, a hub or a site, and signatures over canonical JSON (RFC 8032).

Keys are plain PEM files (PKCS #8 and SubjectPublicKeyInfo), so that OpenSSL and hardware tokens can
make and read them too. What is signed is not a file's bytes but the canonical JSON of its content,
after a line that names its kind: a signature on a charter cannot pass as one on something else.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from suture.errors import CharterError
from suture.privacy.canonical import json_text

_END = "-----END PUBLIC KEY-----"
_MAKE = "Make a pair with: suture charter keygen board"


def sign(kind: str, content: Mapping[str, object], key: Ed25519PrivateKey) -> str:
    """The signature, as hexadecimal text.

    >>> key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    >>> signature = sign("charter", {"study": "cardio"}, key)
    >>> [verifies(k, {"study": "cardio"}, signature, key.public_key()) for k in ("charter", "ledger head")]
    [True, False]
    """
    return key.sign(_message(kind, content)).hex()


def verifies(
    kind: str, content: Mapping[str, object], signature: str, key: Ed25519PublicKey
) -> bool:
    """Whether the signature is this key's, over this content of this kind."""
    try:
        key.verify(bytes.fromhex(signature), _message(kind, content))
    except (InvalidSignature, ValueError):
        return False
    return True


def key_id(key: Ed25519PublicKey) -> str:
    """A short name for a public key: 16 hexadecimal digits of its SHA-256.

    >>> key_id(Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key())
    '139e3940e64b5491'
    """
    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return hashlib.sha256(raw).hexdigest()[:16]


def new_keys(private: Path, public: Path) -> str:
    """Write a new key pair, the private file readable by its owner only; returns the key's name."""
    for path in (private, public):
        if path.exists():
            raise CharterError(f"{path} exists and is never overwritten; give another name")
    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    shared = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    try:
        handle = os.open(private, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(secret)
        public.write_bytes(shared)
    except OSError as error:
        raise CharterError(f"the keys cannot be written: {error}") from None
    return key_id(key.public_key())


def read_private(path: Path) -> Ed25519PrivateKey:
    """The private key in a PEM file without a password."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except OSError as error:
        raise CharterError(f"the private key {path} cannot be read: {error}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise CharterError(
            f"{path} is not a private key in PEM without a password. {_MAKE}"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise CharterError(f"{path} holds a key of another kind; expected Ed25519. {_MAKE}")
    return key


def read_public(path: Path) -> tuple[Ed25519PublicKey, ...]:
    """All public keys of a trust file: one PEM block per key."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CharterError(f"the trusted keys {path} cannot be read: {error}") from None
    found = []
    for block in text.split(_END)[:-1]:
        try:
            key = serialization.load_pem_public_key((block + _END).strip().encode())
        except (ValueError, UnsupportedAlgorithm):
            raise CharterError(f"{path} holds an unreadable public key. {_MAKE}") from None
        if not isinstance(key, Ed25519PublicKey):
            raise CharterError(f"{path} holds a key of another kind; expected Ed25519. {_MAKE}")
        found.append(key)
    if not found:
        raise CharterError(
            f"{path} holds no public key in PEM; give the board's .pub file. {_MAKE}"
        )
    return tuple(found)


def _message(kind: str, content: Mapping[str, object]) -> bytes:
    return f"suture {kind} 1\n".encode() + json_text(content).encode()
