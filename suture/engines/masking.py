"""Sums under masks between machines: the five exchanges of `protection/masked.py`, at the site and at the coordinator.

A site takes part only with identities that it holds itself (``peers`` in its settings), trains and pays at the stage
`mask`, and masks a release once: a round that is asked again, in a new session, is a new release with new noise and a
new charge, because the same words in two sums could be told apart. What a sum needs between its stages stays in memory; a
site that is restarted in between has dropped out of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from suture.engines.certificates import write_secret
from suture.engines.settings import SiteSettings
from suture.errors import PrivacyError, Refused, RunError
from suture.gathering import Gathered, check_sum, grid_of, opened, question, words_of
from suture.methods.base import Answer, Grouped, Method
from suture.privacy.mechanisms import secure_key
from suture.protection.collector import Collector, play
from suture.protection.envelope import seal, unseal
from suture.protection.masked import Sender
from suture.protection.settings import ProtectionSpec
from suture.protection.terms import STAGES, Arrays, Stage, Terms, threshold_of

Words = dict[str, NDArray[Any]]


def read_identity(home: Path, settings: SiteSettings) -> Ed25519PrivateKey:
    """The site's own signing key for sums."""
    try:
        raw = (home / settings.identity).read_bytes()
        return Ed25519PrivateKey.from_private_bytes(raw)
    except (OSError, ValueError) as error:
        raise Refused(
            f"this site has no identity for sums under masks ({settings.identity}: {type(error).__name__})"
        ) from None


def new_identity(path: Path) -> str:
    """Make a site's identity for sums, and return its public half as other sites write it down."""
    key = Ed25519PrivateKey.generate()
    write_secret(path, key.private_bytes_raw())
    return key.public_key().public_bytes_raw().hex()


@dataclass
class SiteSum:
    """One sum at one site, between its stages."""

    round: int
    message: bytes
    sender: Sender
    sizes: Mapping[str, int]


class SiteSums:
    """The sum that a site is in, if any; a new one begins with `advertise`."""

    def __init__(self, settings: SiteSettings, home: Path) -> None:
        self._settings, self._home = settings, home
        self._current: SiteSum | None = None

    def begin(
        self,
        method: Method,
        protection: ProtectionSpec,
        sizes: Mapping[str, int],
        round_: int,
        body: Arrays,
        training: Mapping[str, Any],
    ) -> dict[str, NDArray[Any]]:
        """`advertise`: the terms are made here, from the study, from held identities, and from the message itself.

        ``training`` names the study by its text's digest, and the seed, fold and method.
        """
        check_sum(method, protection, tuple(sizes))
        message, session = body["message"].tobytes(), body["session"].tobytes()
        identity = read_identity(self._home, self._settings)
        mine = identity.public_key().public_bytes_raw().hex()
        peers = {**self._settings.peers, self._settings.name: mine}
        unknown = [site for site in sizes if site not in peers]
        if unknown:
            raise Refused(f"this site holds no identity of {', '.join(unknown)[:200]} ([peers] in site.toml)")
        terms = Terms(
            session,
            tuple(sizes),
            tuple(bytes.fromhex(peers[site]) for site in sizes),
            threshold_of(len(sizes), protection.threshold),
            question(method, dict.fromkeys(sizes, message), *context(protection, sizes, round_, training)),
        )
        sender = Sender(terms, self._settings.name, identity, secure_key())
        self._current = SiteSum(round_, message, sender, dict(sizes))
        return sender.answer("advertise", {})

    def go_on(
        self,
        stage: str,
        method: Method,
        protection: ProtectionSpec,
        round_: int,
        body: Arrays,
        release: Callable[[bytes], bytes],
    ) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Any later stage. ``release`` trains and pays; it is called once, for `mask`."""
        now = self._current
        if now is None or now.round != round_ or stage not in STAGES[1:]:
            self._current = None
            raise Refused(f"this site is in no sum of round {round_} that stage {stage[:20]!r} could go on with")
        words: Words | None = None
        if stage == "mask":
            payload = unseal(release(now.message))
            if not payload:  # a round in which sites keep what they learn
                self._current = None
                return {"nothing": True}, {}
            grid = grid_of(method, protection, len(now.sizes))
            words = words_of(method, grid, now.sizes, self._settings.name, payload)
        return {"nothing": False}, now.sender.answer(stage, body, words)


def context(
    protection: ProtectionSpec, sizes: Mapping[str, int], round_: int, training: Mapping[str, Any]
) -> tuple[object, ...]:
    """All that decides what a site adds besides method and message: what is left out could be told each site differently."""
    names = tuple(training[name] for name in ("study", "seed", "fold", "method"))
    return protection, dict(sizes), round_, names


def sums_of(method: Method, sites: Sequence[str], round_: int) -> list[tuple[str, ...]]:
    """The sites of each sum of a round, from the public schedule: all in one, unless the method has teams."""
    if isinstance(method, Grouped):
        return [tuple(group) for group in method.groups({"t": np.array([round_ - 1])}, sites)]
    return [tuple(sites)]


@dataclass
class Asked:
    """One stage's answers at the coordinator: by site, and why the others sent none."""

    answers: dict[str, tuple[dict[str, Any], bytes]]
    absent: dict[str, str]


def summed(
    method: Method,
    protection: ProtectionSpec,
    sizes: Mapping[str, int],
    identities: Mapping[str, str],
    messages: Mapping[str, bytes],
    round_: int,
    training: Mapping[str, Any],
    ask: Callable[[Stage, Mapping[str, bytes]], Asked],
) -> tuple[Gathered, dict[str, str]]:
    """The coordinator's side of one round under masks: what the method's step sees, and who dropped out."""
    terms = Terms(
        secure_key(),
        tuple(sizes),
        tuple(bytes.fromhex(identities[site]) for site in sizes),
        threshold_of(len(sizes), protection.threshold),
        question(method, messages, *context(protection, sizes, round_, training)),
    )
    collector, absent, begun = Collector(terms), {}, time.perf_counter()  # type: Collector, dict[str, str], float
    up = down = 0
    nothing: list[str] = []
    session = np.frombuffer(terms.session, np.uint8)

    def carry(stage: Stage, given: Mapping[str, Arrays]) -> dict[str, Arrays]:
        nonlocal up, down
        bodies = {}
        for site, message in given.items():
            extra = (
                {"session": session, "message": np.frombuffer(messages[site], np.uint8)} if stage == "advertise" else {}
            )
            bodies[site] = seal({**message, **extra})
        found = ask(stage, bodies)
        absent.update(found.absent)
        down += sum(map(len, bodies.values()))
        up += sum(len(body) for _, body in found.answers.values())
        nothing.extend(site for site, (header, _) in found.answers.items() if header.get("nothing"))
        if nothing:
            raise _Nothing
        return {site: unseal(body) for site, (_, body) in found.answers.items()}

    try:
        total = play(collector, carry)
    except _Nothing:
        if set(nothing) != set(sizes) - set(absent):
            raise RunError(
                "some sites have something to add up in this round and others have not; nothing was opened"
            ) from None
        return Gathered([Answer(site, sizes[site], {}) for site in nothing], up=up, down=down), absent
    except PrivacyError as error:
        reasons = "; ".join(f"{site}: {why}" for site, why in absent.items())
        raise RunError(f"the sum under masks was not opened: {error} ({reasons})") from None
    grid = grid_of(method, protection, len(sizes))
    answer, rounding = opened(method, grid, sizes, collector.survivors, total)
    found = Gathered([answer], up=up, down=down, error=rounding, seconds=time.perf_counter() - begun)
    return found, {
        site: absent.get(site, "it dropped out of the sum") for site in sizes if site not in collector.survivors
    }


class _Nothing(Exception):
    """A round in which sites keep what they learn."""
