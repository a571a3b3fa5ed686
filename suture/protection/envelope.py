"""The envelope: named arrays as bytes, so that what crosses the wall can be counted and checked.

Layout: ``SUT1``, the header's length (4 bytes, little endian), a JSON header that lists name, dtype and shape, then the
raw little-endian arrays one after another. Nothing is pickled: opening an envelope never runs code.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from suture.errors import RunError

Payload = Mapping[str, NDArray[np.generic]]

_MAGIC = b"SUT1"
_DTYPES = {"<f4", "<f8", "<i4", "<i8", "|u1", "|i1", "|b1"}


def seal(payload: Payload) -> bytes:
    """Named arrays to bytes.

    >>> import numpy as np
    >>> sealed = seal({"delta": np.ones(3, np.float32)})
    >>> len(sealed), unseal(sealed)["delta"].tolist()
    (41, [1.0, 1.0, 1.0])
    """
    header, body = [], []
    for name in sorted(payload):
        array = np.asarray(payload[name], order="C")
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        if array.dtype.str not in _DTYPES:
            raise RunError(f"payload {name!r} has type {array.dtype}, which an envelope does not carry")
        header.append([name, array.dtype.str, list(array.shape)])
        body.append(array.tobytes())
    text = json.dumps(header, separators=(",", ":")).encode()
    return b"".join([_MAGIC, struct.pack("<I", len(text)), text, *body])


def unseal(data: bytes) -> dict[str, NDArray[np.generic]]:
    """Bytes back to named arrays; anything malformed is refused."""
    try:
        if data[:4] != _MAGIC:
            raise ValueError("it does not start as an envelope does")
        (length,) = struct.unpack("<I", data[4:8])
        header = json.loads(data[8 : 8 + length])
        offset, payload = 8 + length, {}
        for name, code, shape in header:
            if code not in _DTYPES or any(int(n) < 0 for n in shape):
                raise ValueError(f"array {name!r} has an unexpected type or shape")
            dtype = np.dtype(code)
            count = math.prod(shape)
            payload[str(name)] = np.frombuffer(data, dtype, count, offset).reshape(shape)
            offset += count * dtype.itemsize
        if offset != len(data):
            raise ValueError(f"expected {offset} bytes, found {len(data)}")
    except (ValueError, TypeError, struct.error, json.JSONDecodeError) as error:
        raise RunError(f"a message could not be opened: {error}") from None
    return payload
