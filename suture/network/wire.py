"""What the coordinator and a site say to each other: a JSON header with known keys, and an envelope
of arrays.

Layout: ``SUTQ``, the header's length (4 bytes, little endian), the header, then the body (an
envelope, or nothing). A header has exactly the keys that its operation has, each of the right type;
there is none for noise, a privacy event, a path or code, so none can be sent. Whatever does not
look like this is refused before anything else happens.

| operation | the coordinator gives | the site answers |
|---|---|---|
| `open`    | the study's text, a seed | the terms on which it takes part, and the signed end of its ledger |
| `witness` | other sites' ledger ends | what it remembers of them, signed |
| `join`    | every site's size, what peers remember of this one | what its ledger has paid so far; the promise is in it now |
| `step`    | method, round, its message, ledger ends and peers' words | its release of this round, paid for |
| `stage`   | as `step`, and the name of one exchange of several | the outcome of that exchange |
| `score`   | as `step`, with the model | what may leave about its test patients |
| `people`  | another site, and what that one sent | blinded points for it, or a noisy count |

A site that refuses says one `Reason` out of a public list and nothing else.

Flower ties a run to an app by its hash, and its stock SuperNode would install and run that app. A
Suture site never does: the hash of `application` only says which version of Suture the coordinator
runs, and the site answers with its own installed code.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from typing_extensions import TypedDict

from suture.errors import (
    BudgetExhausted,
    CharterError,
    LedgerError,
    NotReady,
    Reason,
    Refused,
    RunError,
    SutureError,
)
from suture.privacy.software import VERSION

if TYPE_CHECKING:
    from suture.methods.base import Arrays, State

FORMAT = 3
_MAGIC = b"SUTQ"
_HEADER_MOST = 8 << 20
_REQUEST_MOST = 1 << 20
"""Bytes of a request's header, but for `open`, which holds the study's text."""
_HEADS_MOST = 10_000

_TRAINING = {"study": str, "seed": int, "fold": int, "method": str}
_WITNESSED = {"heads": dict, "vouched": dict}
OPERATIONS: dict[str, dict[str, type]] = {
    "open": {"study": str, "seed": int},
    "witness": {"study": str, "seed": int, "heads": dict},
    "join": {"study": str, "seed": int, "sites": dict, "vouched": dict},
    "step": {**_TRAINING, "round": int, **_WITNESSED},
    "stage": {**_TRAINING, "round": int, "stage": str, **_WITNESSED},
    "score": {**_TRAINING, "round": int, "groups": bool, "texts": dict, **_WITNESSED},
    "people": {"study": str, "seed": int, "stage": str, "peer": str, **_WITNESSED},
}
"""The keys of each operation besides ``op``, ``format`` and ``suture``. ``fold`` is 0 where no
hospitals are held out."""


class Training(TypedDict):
    study: str
    """The digest of the study's text."""
    seed: int
    fold: int
    method: str


Words = Mapping[str, object]
"""Signed statements by site, as they arrive: `suture.network.witnesses` says what they hold."""


class Request(Training, total=False):
    """A request's header once it is `checked`: it has the keys of its operation."""

    op: str
    round: int
    stage: str
    peer: str
    groups: bool
    texts: dict[str, object]
    sites: dict[str, int]
    heads: Words
    vouched: Words


class Paid(TypedDict):
    """What a site's ledger has paid for one training, and whether it pays for a first round."""

    pays: bool
    spent: float
    charged: bool


class Header(TypedDict, total=False):
    """A site's answer, without its arrays: each operation has some of these keys."""

    ok: bool
    site: str
    reason: str
    patients: int
    region: str
    generated: bool
    charter: str | None
    ready: Mapping[str, object] | None
    exact: str
    head: Mapping[str, object]
    vouched: Words
    described: Mapping[str, object]
    accounts: dict[str, Paid]
    identity: str | None
    warnings: list[str]
    round: int
    noise: float | None
    new: int
    pays: bool
    spent: float | None
    nothing: bool
    figures: dict[str, float | None]
    groups: dict[str, list[str]]
    people: int


@dataclass(frozen=True)
class Message:
    header: Mapping[str, object]
    body: bytes = b""


def pack(message: Message) -> bytes:
    """A message as bytes.

    >>> unpack(pack(Message({"op": "open"}, b"x"))).body
    b'x'
    """
    header = json.dumps(message.header, separators=(",", ":"), allow_nan=False).encode()
    return b"".join([_MAGIC, struct.pack("<I", len(header)), header, message.body])


def unpack(data: bytes, *, request: bool = False) -> Message:
    """Bytes back to a message; malformed ones, and requests with long headers, are refused."""
    try:
        if data[:4] != _MAGIC:
            raise ValueError("it does not start as a message does")
        (length,) = struct.unpack("<I", data[4:8])
        most = _REQUEST_MOST if request and not opens(data) else _HEADER_MOST
        if length > most or len(data) < 8 + length:
            raise ValueError(f"a header of {length} bytes in a message of {len(data)}")
        text = data[8 : 8 + length].decode()
        header = json.loads(
            text,
            parse_int=_whole,
            parse_float=_number,
            parse_constant=_number,
            object_pairs_hook=_once,
        )
        if "\\ud" in text.lower():  # half a character, which nothing could write down
            json.dumps(header, ensure_ascii=False).encode()
        if not isinstance(header, dict):
            raise ValueError("its header is not an object")
    except (ValueError, struct.error, RecursionError) as error:
        raise Refused(f"a message could not be read: {error}") from None
    return Message(header, bytes(data[8 + length :]))


def opens(data: bytes) -> bool:
    """Whether a request says that it opens a study, before it is read: `pack` writes the operation
    first.

    >>> opens(pack(request("open", study="...", seed=1))), opens(pack(request("join", study="...", seed=1)))
    (True, False)
    """
    return data[8:20] == b'{"op":"open"'


def _whole(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
        raise ValueError("a whole number in its header is beyond 64 bits")
    return int(text)


def _number(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise ValueError("a number in its header is not finite")
    return found


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is in its header twice")
    return found


def request(op: str, body: bytes = b"", **given: object) -> Message:
    return Message({"op": op, "format": FORMAT, "suture": VERSION, **given}, body)


def checked(message: Message) -> Request:
    """A request's header, if it is one that this version knows; else `Refused`.

    >>> checked(request("open", study="...", seed=1))["op"]
    'open'
    >>> checked(request("open", study="...", seed=1, noise_multiplier=0.1))
    Traceback (most recent call last):
    suture.errors.Refused: operation 'open' takes seed, study; found noise_multiplier besides
    """
    header = dict(message.header)
    op, form, version = (header.pop(key, None) for key in ("op", "format", "suture"))
    if not isinstance(op, str) or op not in OPERATIONS:
        raise Refused(f"operation {str(op)[:40]!r} is not one of {', '.join(OPERATIONS)}")
    if form != FORMAT or version != VERSION:
        raise Refused(
            f"this site runs suture {VERSION} (message format {FORMAT}) and answers no other; found "
            f"{str(version)[:20]!r} (format {str(form)[:20]}). Install the same version on both "
            "sides"
        )
    keys = OPERATIONS[op]
    takes = f"operation {op!r} takes {', '.join(sorted(keys))}"
    for name in sorted(set(keys) - set(header)):
        raise Refused(f"{takes}; {name} is missing")
    for name in sorted(set(header) - set(keys)):
        raise Refused(f"{takes}; found {name[:40]} besides")
    for name, kind in keys.items():
        value = header[name]
        if type(value) is not kind:
            found = type(value).__name__
            raise Refused(f"operation {op!r}: {name} must be {kind.__name__}, found {found}")
        if isinstance(value, dict) and len(value) > _HEADS_MOST:
            raise Refused(
                f"operation {op!r}: {name} has {len(value)} entries; at most {_HEADS_MOST} are read"
            )
    return cast("Request", {"op": op, **header})


def refusal(site: str, reason: Reason) -> Message:
    """What a site says instead of an answer: a name out of a public list."""
    return Message({"ok": False, "site": site, "reason": reason.name})


_KINDS: dict[Reason, type[SutureError]] = {
    Reason.BUDGET: BudgetExhausted,
    Reason.CHARTER: CharterError,
    Reason.READY: NotReady,
    Reason.LEDGER: LedgerError,
    Reason.WITNESS: LedgerError,
    Reason.FAULT: RunError,
}


def answer(data: bytes | SutureError, site: str) -> tuple[Header, bytes]:
    """A site's answer, header and body; raises the error that it sent or that came instead."""
    if isinstance(data, SutureError):
        raise data
    message = unpack(data)
    header = cast("Header", message.header)
    if header.get("site") != site:
        said = str(header.get("site"))[:80]
        raise RunError(f"an answer said to be by {said!r} came from site {site!r}; rejected")
    if header.get("ok") is True:
        return header, message.body
    reason = Reason.__members__.get(str(header.get("reason")), Reason.FAULT)
    text = f"site {site!r} refused: {reason.value}"
    raise _KINDS[reason](text) if reason in _KINDS else Refused(text, reason)


def not_open(data: bytes | SutureError) -> bool:
    """Whether a site says that the study is not open there."""
    try:
        return not isinstance(data, SutureError) and (
            unpack(data).header.get("reason") == Reason.NOT_OPEN.name
        )
    except Refused:
        return False


def split(state: State) -> tuple[State, dict[str, list[str]]]:
    """Arrays for an envelope, and texts, which it does not carry, for the header."""
    texts = {name: array.tolist() for name, array in state.items() if array.dtype.kind == "U"}
    return {name: array for name, array in state.items() if name not in texts}, texts


def joined(arrays: Arrays, texts: Mapping[str, object]) -> State:
    """The state that was split."""
    state = dict(arrays)
    for name, values in texts.items():
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise Refused(f"{str(name)[:40]!r} must be a list of texts")
        state[str(name)] = np.array(values, np.str_)
    return state


_CODE = '''"""Not to be run: sites answer with their own installed Suture."""

raise RuntimeError("this app is a name, not code; start the site with: suture site start")
'''


@cache
def application() -> bytes:
    """The app that a run names, the same byte for byte everywhere. Its code, if anybody ran it,
    would refuse."""
    project = Path(__file__).with_name("app.toml").read_text("utf-8").replace("VERSION", VERSION)
    files = {"pyproject.toml": project.encode(), "suture_app.py": _CODE.encode()}
    listing = "".join(
        f"{name},{hashlib.sha256(content).hexdigest()},{len(content) * 8}\n"
        for name, content in sorted(files.items())
    )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted({**files, ".info/CONTENT": listing.encode()}.items()):
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)
    return buffer.getvalue()


@cache
def application_hash() -> str:
    """The app's SHA-256, as Flower writes it."""
    return hashlib.sha256(application()).hexdigest()
