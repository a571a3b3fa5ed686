"""What the coordinator and a site say to each other: a JSON header with known keys, and an envelope of arrays.

Layout: ``SUTQ``, the header's length (4 bytes, little endian), the header, then the body (an envelope, or nothing).
A header has exactly the keys that its operation has, each of the right type; there is none for noise, a privacy event,
a path or code, so none can be sent. Whatever does not look like this is refused before anything else happens.

| operation | the coordinator gives | the site answers |
|---|---|---|
| `open`  | the study's text, a seed | its public number of training patients, and the terms on which it takes part |
| `join`  | every site's public size | the noise it will add; from now on its ledger holds the promise |
| `step`  | method, round, the round's message | its release of this round, paid for |
| `stage` | as `step`, and the name of one exchange of several | what that exchange gives |
| `score` | method, the model | labels and risks of its test patients, if exact figures may leave it |
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture import __version__, errors
from suture.errors import Refused, RunError, SutureError

FORMAT = 2
_MAGIC = b"SUTQ"
_HEADER_MOST = 8 << 20

_TRAINING = {"study": str, "seed": int, "fold": int, "method": str}
OPERATIONS: dict[str, dict[str, type]] = {
    "open": {"study": str, "seed": int},
    "join": {"study": str, "seed": int, "sites": dict},
    "step": {**_TRAINING, "round": int},
    "stage": {**_TRAINING, "round": int, "stage": str},
    "score": {**_TRAINING, "groups": bool, "texts": dict},
}
"""The keys of each operation besides ``op``, ``format`` and ``suture``. ``fold`` is 0 where no hospitals are held out."""


@dataclass(frozen=True)
class Message:
    """A header and a body."""

    header: dict[str, Any]
    body: bytes = b""


def digest(text: str) -> str:
    """How a study is called after it was opened.

    >>> digest("[study]")[:8]
    '01f9b198'
    """
    return hashlib.sha256(text.encode()).hexdigest()


def pack(message: Message) -> bytes:
    """A message as bytes.

    >>> unpack(pack(Message({"op": "open"}, b"x"))).body
    b'x'
    """
    header = json.dumps(message.header, separators=(",", ":"), allow_nan=False).encode()
    return b"".join([_MAGIC, struct.pack("<I", len(header)), header, message.body])


def unpack(data: bytes) -> Message:
    """Bytes back to a message; anything malformed is refused."""
    try:
        if data[:4] != _MAGIC:
            raise ValueError("it does not start as a message does")
        (length,) = struct.unpack("<I", data[4:8])
        if length > _HEADER_MOST or len(data) < 8 + length:
            raise ValueError(f"a header of {length} bytes in a message of {len(data)}")
        header = json.loads(data[8 : 8 + length])
        if not isinstance(header, dict):
            raise ValueError("its header is not an object")
    except (ValueError, struct.error, RecursionError) as error:
        raise Refused(f"a message could not be read: {error}") from None
    return Message(header, bytes(data[8 + length :]))


def request(op: str, body: bytes = b"", **given: Any) -> Message:
    """A request by this version of Suture."""
    return Message({"op": op, "format": FORMAT, "suture": __version__, **given}, body)


def checked(message: Message) -> dict[str, Any]:
    """A request's header, if it is one that this version knows; else `Refused`.

    >>> checked(request("open", study="...", seed=1))["op"]
    'open'
    >>> checked(request("open", study="...", seed=1, noise_multiplier=0.1))
    Traceback (most recent call last):
    suture.errors.Refused: operation 'open' takes seed, study; found noise_multiplier besides
    """
    header = dict(message.header)
    op, form, version = header.pop("op", None), header.pop("format", None), header.pop("suture", None)
    if not isinstance(op, str) or op not in OPERATIONS:
        raise Refused(f"operation {str(op)[:40]!r} is not one of {', '.join(OPERATIONS)}")
    if form != FORMAT or version != __version__:
        raise Refused(
            f"this site runs suture {__version__} (message format {FORMAT}) and answers only the same; found "
            f"{str(version)[:20]!r} (format {str(form)[:20]}). Install the same version on both sides"
        )
    keys = OPERATIONS[op]
    for name in sorted(set(keys) - set(header)):
        raise Refused(f"operation {op!r} takes {', '.join(sorted(keys))}; {name} is missing")
    for name in sorted(set(header) - set(keys)):
        raise Refused(f"operation {op!r} takes {', '.join(sorted(keys))}; found {name[:40]} besides")
    for name, kind in keys.items():
        if type(header[name]) is not kind:
            raise Refused(f"operation {op!r}: {name} must be {kind.__name__}, found {type(header[name]).__name__}")
    return {"op": op, **header}


def refusal(site: str, error: SutureError) -> Message:
    """What a site says instead of an answer."""
    return Message({"ok": False, "site": site, "kind": type(error).__name__, "why": str(error)})


def answer(message: Message, site: str) -> Message:
    """A site's answer, or the error that it sent instead, under its own name."""
    header = message.header
    if header.get("site") != site:
        raise RunError(f"an answer said to be by {str(header.get('site'))[:80]!r} came from site {site!r}; rejected")
    if header.get("ok") is True:
        return message
    kind = getattr(errors, str(header.get("kind")), None)
    known = kind if isinstance(kind, type) and issubclass(kind, SutureError) else Refused
    why = str(header.get("why"))[:4000]
    raise known(why if repr(site) in why else f"site {site!r}: {why}")


@dataclass
class Split:
    """A state as it travels: arrays for an envelope, and texts (which an envelope does not carry) for the header."""

    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    texts: dict[str, list[str]] = field(default_factory=dict)


def split(state: dict[str, NDArray[Any]]) -> Split:
    """Arrays of texts apart from arrays of numbers."""
    found = Split()
    for name, array in state.items():
        if array.dtype.kind == "U":
            found.texts[name] = array.tolist()
        else:
            found.arrays[name] = array
    return found


def joined(arrays: dict[str, Any], texts: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """The state that was split.

    >>> joined({}, {"sites": ["a", "b"]})["sites"].tolist()
    ['a', 'b']
    """
    state = dict(arrays)
    for name, values in texts.items():
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise Refused(f"{str(name)[:40]!r} must be a list of texts")
        state[str(name)] = np.array(values, np.str_)
    return state
