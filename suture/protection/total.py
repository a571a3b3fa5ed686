"""The secure sum in one process: every site's side and the server's side of `masked.py`, played through, with its cost.

The embedded engine uses it where a study says ``sum = "masked"``, so that cost and rounding are visible there. All secrets
live in this one process, so it hides nothing from whoever runs it: it shows what the protocol does and what it costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from suture.errors import PrivacyError
from suture.privacy.mechanisms import derive, secure_key
from suture.protection.collector import Collector, play
from suture.protection.envelope import seal, unseal
from suture.protection.masked import Sender
from suture.protection.terms import THRESHOLD, Arrays, Stage, Terms, threshold_of


@dataclass
class Cost:
    """What one sum cost: bytes by site each way (sealed, without the network's own overhead) and processor seconds."""

    up: dict[str, int] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)
    site_seconds: dict[str, float] = field(default_factory=dict)
    server_seconds: float = 0.0


@dataclass(frozen=True)
class Total:
    """The sum, whose words are in it, what was rejected, and the cost."""

    words: dict[str, NDArray[Any]]
    survivors: tuple[str, ...]
    rejected: tuple[tuple[str, Stage, str], ...]
    cost: Cost


def secure_total(
    words: Mapping[str, Arrays],
    *,
    threshold: float = THRESHOLD,
    asked: bytes = bytes(32),
    key: bytes | None = None,
    leave: Mapping[Stage, Collection[str]] | None = None,
    threads: int = 1,
) -> Total:
    """The sum of every site's words by the whole protocol. ``leave`` says who does not answer which stage (for tests).

    ``threshold`` is the share of sites of which more must stay; ``key`` replaces the operating system's randomness.

    >>> import numpy as np
    >>> total = secure_total({site: {"x": np.array([i, -1])} for i, site in enumerate("abc")})
    >>> total.words["x"].tolist(), total.survivors
    ([3, -3], ('a', 'b', 'c'))
    """
    key = key or secure_key()
    parties, cost = tuple(words), Cost()
    identities = {site: Ed25519PrivateKey.from_private_bytes(derive(key, "identity", site)) for site in parties}
    public = tuple(identity.public_key().public_bytes_raw() for identity in identities.values())
    terms = Terms(derive(key, "session"), parties, public, threshold_of(len(parties), threshold), asked)
    senders = {site: Sender(terms, site, identities[site], derive(key, "secret", site)) for site in parties}
    refused: list[tuple[str, Stage, str]] = []
    collector, begun = Collector(terms), time.thread_time()

    def answer(stage: Stage, site: str, message: bytes) -> bytes | None:
        started = time.thread_time()
        try:
            found = seal(senders[site].answer(stage, unseal(message), words[site] if stage == "mask" else None))
        except PrivacyError as error:
            refused.append((site, stage, str(error)))
            return None
        finally:
            cost.site_seconds[site] = cost.site_seconds.get(site, 0.0) + time.thread_time() - started
        return found

    def carry(stage: Stage, messages: Mapping[str, Arrays]) -> dict[str, Arrays]:
        nonlocal begun
        sealed = _sealed(messages)
        cost.server_seconds += time.thread_time() - begun
        asked_now = [site for site in messages if site not in (leave or {}).get(stage, ())]
        for site in messages:
            cost.down[site] = cost.down.get(site, 0) + len(sealed[site])
        found = _map(lambda site: answer(stage, site, sealed[site]), asked_now, threads)
        begun = time.thread_time()
        for site, data in found:
            cost.up[site] = cost.up.get(site, 0) + len(data or b"")
        return {site: unseal(data) for site, data in found if data is not None}

    total = play(collector, carry)
    cost.server_seconds += time.thread_time() - begun
    return Total(total, collector.survivors, tuple(collector.rejected + refused), cost)


def _sealed(messages: Mapping[str, Arrays]) -> dict[str, bytes]:
    """Every site's message as bytes; one that is the same object for all is sealed once."""
    known: dict[int, bytes] = {}
    for message in messages.values():
        if id(message) not in known:
            known[id(message)] = seal(message)
    return {site: known[id(message)] for site, message in messages.items()}


def _map(function: Callable[[str], bytes | None], sites: Iterable[str], threads: int) -> list[tuple[str, bytes | None]]:
    items = list(sites)
    if threads == 1:
        return [(site, function(site)) for site in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(zip(items, pool.map(function, items), strict=True))
