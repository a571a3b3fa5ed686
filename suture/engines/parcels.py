"""Bytes as Flower messages, and back. A parcel is one `RecordDict` of `ConfigRecord`s, each with a piece of the bytes.

Flower stores a message as a tree of objects that are pushed and pulled one by one, so one small record is the cheapest
shape; pieces keep any single object far below what a server must hold in memory at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.app import ConfigRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from suture.errors import Refused

PIECE = 8 << 20
OBJECT_MOST = PIECE + (1 << 16)
"""The largest object that is ever pushed: a piece and what Flower wraps around it."""


def parcel(data: bytes) -> RecordDict:
    """Bytes as records.

    >>> unwrapped(parcel(b"x" * 20))
    b'xxxxxxxxxxxxxxxxxxxx'
    """
    pieces = [data[i : i + PIECE] for i in range(0, len(data), PIECE)] or [b""]
    return RecordDict({f"suture-{i:05d}": ConfigRecord({"piece": piece}) for i, piece in enumerate(pieces)})


def unwrapped(content: RecordDict) -> bytes:
    """The bytes of a parcel; anything else is refused."""
    pieces = []
    for i, name in enumerate(sorted(content)):
        record = content[name]
        if name != f"suture-{i:05d}" or not isinstance(record, ConfigRecord) or set(record) != {"piece"}:
            raise Refused("a message that is not a Suture parcel")
        piece = record["piece"]
        if not isinstance(piece, bytes):
            raise Refused("a message that is not a Suture parcel")
        pieces.append(piece)
    return b"".join(pieces)


def pull(tree: Any, message_id: str, fetch: Callable[[str], bytes], most: int) -> Any:
    """The message of an object tree, its objects fetched one by one until ``most`` bytes; then `Refused`."""
    contents: dict[str, bytes] = {}
    total = 0
    for node in iterate_object_tree(tree):
        if node.object_id in contents:
            continue
        content = fetch(node.object_id)
        total += len(content)
        if total > most:
            raise Refused(f"a message of more than {most} bytes; the rest was not fetched")
        contents[node.object_id] = content
    message: Any = inflate_object_from_contents(message_id, contents)
    message.metadata.__dict__["_message_id"] = message_id
    return message
