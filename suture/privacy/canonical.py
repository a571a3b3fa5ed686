"""One value, one text: the bytes that stand for a value wherever a key, a charge or a digest is
made from it.

`canonical` writes every value with its type and its length, so that two different values never give
the same bytes. What has no rule here is refused: a ``repr`` that leaves something out would let two
different releases share their noise. `json_text` is for what people and other programs read: rows
of a ledger, and what is signed.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from suture.errors import PrivacyError

json_text = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode
"""One JSON text for one content: sorted keys, no spaces, floats that read back bit for bit."""


def canonical(value: object) -> bytes:
    """The bytes of a value: None, truth values, numbers, texts, bytes, arrays, and sequences,
    mappings and frozen dataclasses of these. A dataclass is its class's name and all of its fields.

    >>> canonical(1) == canonical(1.0), canonical((1, 2)) == canonical((1, (2,)))
    (False, False)
    >>> canonical({"a": 1, "b": 2}) == canonical({"b": 2, "a": 1})
    True
    """
    out: list[bytes] = []
    _write(value, out)
    return b"".join(out)


def digest(value: object) -> bytes:
    """SHA-256 of `canonical`."""
    return hashlib.sha256(canonical(value)).digest()


def _write(value: object, out: list[bytes]) -> None:
    if value is None:
        out.append(b"n")
    elif isinstance(value, str):
        _sized(b"s", value.encode(errors="surrogatepass"), out)
    elif isinstance(value, bool | np.bool_):
        out.append(b"t" if value else b"f")
    elif isinstance(value, int | np.integer):
        _sized(b"i", str(int(value)).encode(), out)
    elif isinstance(value, float | np.float32 | np.float16):
        out.append(b"d" + struct.pack("<d", float(value)))
    elif isinstance(value, bytes):
        _sized(b"b", value, out)
    elif isinstance(value, np.ndarray):
        _array(value, out)
    elif isinstance(value, tuple | list):
        out.append(b"l" + len(value).to_bytes(8, "little"))
        for item in value:
            _write(item, out)
    elif isinstance(value, Mapping):
        # In the order of the keys' own bytes, so that keys of several kinds have an order too.
        keyed = sorted(((canonical(name), name) for name in value), key=itemgetter(0))
        out.append(b"m" + len(keyed).to_bytes(8, "little"))
        for written, name in keyed:
            out.append(written)
            _write(value[name], out)
    elif is_dataclass(value) and not isinstance(value, type):
        head, names = _layout(type(value))
        out.append(head)
        for name, written in names:
            out.append(written)
            _write(object.__getattribute__(value, name), out)
    else:
        kind = type(value).__name__
        raise PrivacyError(f"a {kind} has no canonical bytes, so nothing can be keyed by it")


def _array(value: NDArray[np.generic], out: list[bytes]) -> None:
    if value.dtype.kind not in "fiub":
        raise PrivacyError(
            f"an array of {value.dtype} has no canonical bytes, so nothing can be keyed by it"
        )
    little = value.dtype.newbyteorder("<")
    _sized(b"a", little.str.encode(), out)
    _write(value.shape, out)
    out.append(np.asarray(value, little, order="C").tobytes())


@cache
def _layout(kind: type) -> tuple[bytes, tuple[tuple[str, bytes], ...]]:
    """A dataclass's name with its number of fields; the fields' names, plain and as written."""
    names = tuple((field.name, canonical(field.name)) for field in fields(kind))
    head: list[bytes] = []
    _sized(b"c", kind.__name__.encode(), head)
    return head[0] + len(names).to_bytes(8, "little"), names


def _sized(kind: bytes, content: bytes, out: list[bytes]) -> None:
    out.append(kind + len(content).to_bytes(8, "little") + content)
