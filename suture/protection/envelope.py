"""The envelope: named arrays as bytes, so that what crosses the wall can be counted and checked.

Layout: ``S2``, the number of arrays, then for each array its name (length, UTF-8), one byte for
dtype and number of dimensions, and its shape; then the raw little-endian arrays one after another.
Numbers are varints (seven bits per byte, the lowest first). A small array costs nine bytes more
than its content. Nothing is pickled: opening an envelope never runs code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from suture.errors import RunError

Payload = Mapping[str, NDArray[np.generic]]

_MAGIC = b"S2"
_DTYPES = ("<f4", "<f8", "<i4", "<i8", "|u1", "|i1", "|b1", "<i2", "<f2")
_MOST = 2**62
"""Larger numbers are refused: no array is as large."""


def layout(payload: Payload) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    """Names, types and shapes of a payload's arrays."""
    return tuple((name, payload[name].dtype.str, payload[name].shape) for name in sorted(payload))


def seal(payload: Payload) -> bytes:
    """Named arrays to bytes.

    >>> import numpy as np
    >>> sealed = seal({"delta": np.ones(3, np.float32)})
    >>> len(sealed), unseal(sealed)["delta"].tolist()
    (23, [1.0, 1.0, 1.0])
    """
    header, body = [_MAGIC, _varint(len(payload))], []
    for name in sorted(payload):
        array = np.asarray(payload[name], order="C")
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        if array.dtype.str not in _DTYPES:
            raise RunError(f"payload {name!r} has type {array.dtype}, which no envelope carries")
        if array.ndim > 15:
            raise RunError(f"payload {name!r} has {array.ndim} dimensions; at most 15 are carried")
        text = name.encode()
        code = _DTYPES.index(array.dtype.str) << 4 | array.ndim
        header += [_varint(len(text)), text, bytes([code]), *map(_varint, array.shape)]
        body.append(array.tobytes())
    return b"".join([*header, *body])


def unseal(data: bytes) -> dict[str, NDArray[np.generic]]:
    """Bytes back to named arrays; anything malformed is refused."""
    try:
        if data[:2] != _MAGIC:
            raise ValueError("it does not start as an envelope does")
        count, at = _read(data, 2)
        listed, payload = [], dict[str, NDArray[np.generic]]()
        for _ in range(count):
            length, at = _read(data, at)
            name, code = data[at : at + length].decode(), data[at + length]
            at += length + 1
            shape = []
            for _ in range(code & 15):
                size, at = _read(data, at)
                shape.append(size)
            listed.append((name, np.dtype(_DTYPES[code >> 4]), shape))
        for name, dtype, shape in listed:
            if payload and name <= next(reversed(payload)):
                raise ValueError(f"array {name!r} is in it twice, or not in the order of names")
            size = math.prod(shape)
            payload[name] = np.frombuffer(data, dtype, size, at).reshape(shape)
            at += size * dtype.itemsize
        if at != len(data):
            raise ValueError(f"expected {at} bytes, found {len(data)}")
    except (ValueError, IndexError, OverflowError) as error:
        raise RunError(f"a message could not be opened: {error}") from None
    return payload


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def _read(data: bytes, at: int) -> tuple[int, int]:
    """A varint, and where the next byte is. Only the shortest form is accepted: one payload, one
    envelope."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        shift += 7
        if number >= _MOST or shift > 63:
            raise ValueError("a number in its header is too large")
        if byte < 128:
            if byte == 0 and shift > 7:
                raise ValueError("a number in its header is longer than it must be")
            return number, at
