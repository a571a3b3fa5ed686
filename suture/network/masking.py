"""Sums under masks between machines: the five exchanges of `protection/masked.py`, at the site and
at the coordinator.

A site takes part only with identities that it holds itself (``peers`` in its settings), trains and
pays at the stage `mask`, and masks words once. The keys that a site advertises are new for every
sum and part of the release's context (`suture/privacy/door.py`): another sum is another release,
with its own noise and its own charge, whatever the server calls it. Otherwise the same words in two
sums with different survivors would give the server one site's words. What a sum needs between its
stages stays in memory; a site that is restarted in between has dropped out of it.

With ``keys = "study"`` keys are advertised once for a training, and the stage `mask` is all of a sum.
The digest of a sum (its question, attempt and list of sites) and the site's key are then the
release's context: another list is another release. A sum that a site leaves is never opened; the
next attempt agrees on new keys with those who are there.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from suture.engine.gather import Gathered, check_sum, grid_of, opened, question, words_of
from suture.errors import PrivacyError, Reason, Refused, RunError
from suture.methods.base import Answer, Method, State
from suture.network.settings import SiteSettings
from suture.network.wire import Header, Request, Training
from suture.network.witnesses import public_identity, read_identity
from suture.privacy.canonical import digest
from suture.privacy.noise.source import Arrays, derive, secure_key
from suture.protection.envelope import seal, unseal
from suture.protection.masked import Collector, Sender, Standing, play, roster_of, standing_sum
from suture.protection.terms import STAGES, ProtectionSpec, Stage, Terms, threshold_of


@dataclass
class SiteSum:
    """One sum at one site, between its stages."""

    training: tuple[object, ...]
    """Study, seed, fold, method and round."""
    message: bytes
    sender: Sender
    sizes: Mapping[str, int]
    session: bytes
    """The sum's terms and the keys that this site has made for it: no other sum has them."""
    answered: dict[str, tuple[bytes, Header, bytes]] = field(default_factory=dict)
    """For each stage: the digest of the request, and the answer, for repeats."""


class SiteSums:
    """The sum that a site is in, if any; a new one begins with `advertise`."""

    def __init__(self, settings: SiteSettings, home: Path) -> None:
        self._settings, self._home = settings, home
        self._current: SiteSum | None = None
        self._standing: tuple[object, Standing] | None = None
        self._last: tuple[bytes, tuple[Header, bytes]] | None = None
        """With standing keys: the digest of the last request, and its answer, for repeats."""

    def begin(
        self,
        method: Method,
        protection: ProtectionSpec,
        sizes: Mapping[str, int],
        body: Arrays,
        given: Request,
    ) -> Arrays:
        """`advertise`: the site makes the terms, from the study, held identities, the message."""
        check_sum(method, protection, tuple(sizes))
        message, session = body["message"].tobytes(), body["session"].tobytes()
        identity = read_identity(self._home, self._settings)
        peers = self._peers(sizes)
        asked = dict.fromkeys(sizes, message)
        about = context(protection, sizes, given["round"], given)
        terms = terms_of(session, sizes, peers, protection, question(method, asked, *about))
        sender = Sender(terms, self._settings.name, identity, secure_key())
        advertised = sender.answer("advertise", {})
        session = derive(terms.digest, "site's sum", advertised["keys"].tobytes())
        self._current = SiteSum(_training(given), message, sender, dict(sizes), session)
        return advertised

    def _peers(self, sizes: Mapping[str, int]) -> dict[str, str]:
        """The identities of a sum's sites, as this site holds them."""
        mine = public_identity(self._home, self._settings)
        peers = {**self._settings.peers, self._settings.name: mine}
        unknown = ", ".join(site for site in sizes if site not in peers)
        if unknown:
            raise Refused(
                f"this site holds no identity of {unknown[:200]} ([peers] in site.toml)",
                Reason.PEERS,
            )
        return peers

    def advertise(
        self, protection: ProtectionSpec, sizes: Mapping[str, int], session: bytes, given: Request
    ) -> Arrays:
        """Standing keys: new ones for this training, whatever was there before."""
        names = _training(given)[:-1]
        terms = terms_of(session, sizes, self._peers(sizes), protection, digest(names))
        identity = read_identity(self._home, self._settings)
        standing = Standing(terms, self._settings.name, identity, secure_key())
        self._standing, self._last = ((names, tuple(sizes)), standing), None
        return standing.advertise()

    def mask(
        self,
        method: Method,
        protection: ProtectionSpec,
        sizes: Mapping[str, int],
        body: bytes,
        given: Request,
        release: Callable[[bytes, bytes], bytes],
    ) -> tuple[Header, bytes]:
        """Standing keys: all of a sum. ``release`` trains and pays, after every check."""
        check_sum(method, protection, tuple(sizes))
        request = hashlib.sha256(body + str(_training(given)).encode()).digest()
        if self._last is not None and self._last[0] == request:
            return self._last[1]
        if self._standing is None or self._standing[0] != (_training(given)[:-1], tuple(sizes)):
            raise Refused("this site has no keys for this training", Reason.SESSION)
        standing, found = self._standing[1], unseal(body)
        if "keys" in found:
            standing.agree(found)
        message = found["message"].tobytes()
        about = context(protection, sizes, given["round"], given)
        asked = question(method, dict.fromkeys(sizes, message), *about)
        sum_, present = standing.begin(asked, found)
        session = derive(sum_, "site's sum", standing.public)
        payload, header = unseal(release(message, session)), Header()
        if payload:
            grid = grid_of(method, protection, len(sizes))
            words = words_of(method, grid, sizes, self._settings.name, payload)
            header, answer = {"nothing": False}, seal(standing.mask(sum_, present, words))
        else:  # a round in which sites keep what they learn
            header, answer = {"nothing": True}, seal({})
        self._last = (request, (header, answer))
        return header, answer

    def go_on(
        self,
        given: Request,
        method: Method,
        protection: ProtectionSpec,
        body: bytes,
        release: Callable[[bytes, bytes], bytes],
    ) -> tuple[Header, bytes]:
        """Any later stage. ``release`` trains and pays, once, at the stage `mask`."""
        now, asked = self._current, hashlib.sha256(body).digest()
        stage = next((known for known in STAGES[1:] if known == given["stage"]), None)
        if now is None or now.training != _training(given) or stage is None:
            self._current = None
            raise Refused(
                f"this site is in no sum of round {given['round']} that could go on with stage "
                f"{given['stage'][:20]!r}",
                Reason.SESSION,
            )
        known = now.answered.get(stage)
        if known is not None and known[0] == asked:
            return known[1], known[2]
        # Before anything is paid: each stage is answered once, in order.
        if stage != STAGES[1 + len(now.answered)]:
            self._current = None
            raise Refused(f"stage {stage!r} is not the next of this sum", Reason.SESSION)
        words: State | None = None
        if stage == "mask":
            payload = unseal(release(now.message, now.session))
            if not payload:  # a round in which sites keep what they learn
                self._current = None
                return {"nothing": True}, seal({})
            grid = grid_of(method, protection, len(now.sizes))
            words = words_of(method, grid, now.sizes, self._settings.name, payload)
        header: Header = {"nothing": False}
        answer = seal(now.sender.answer(stage, unseal(body), words))
        now.answered[stage] = (asked, header, answer)
        return header, answer


def _training(given: Request) -> tuple[object, ...]:
    """What a sum is of: later stages must name the same training."""
    return given["study"], given["seed"], given["fold"], given["method"], given["round"]


def terms_of(
    session: bytes,
    sizes: Mapping[str, int],
    identities: Mapping[str, str],
    protection: ProtectionSpec,
    asked: bytes,
) -> Terms:
    """The terms of a sum between the sites of ``sizes``, by their public identities."""
    keys = tuple(bytes.fromhex(identities[site]) for site in sizes)
    threshold = threshold_of(len(sizes), protection.threshold)
    return Terms(session, tuple(sizes), keys, threshold, asked)


def context(
    protection: ProtectionSpec, sizes: Mapping[str, int], round_: int, training: Training
) -> tuple[object, ...]:
    """All that decides what a site adds, besides the message: whatever is left out here, a server
    could tell each site differently. The study's digest covers the method and every setting."""
    names = (training["study"], training["seed"], training["fold"], training["method"])
    return protection.model_dump(), dict(sizes), round_, names


def sums_of(method: Method, sites: Sequence[str], round_: int) -> list[tuple[str, ...]]:
    """The sites of each sum of a round: one sum, unless the method has teams."""
    return list(method.sums(round_, sites) or [tuple(sites)])


@dataclass
class Asked:
    """One stage's answers at the coordinator: by site, and why the others sent none."""

    answers: dict[str, tuple[Header, bytes]]
    absent: dict[str, str]


def summed(
    method: Method,
    protection: ProtectionSpec,
    sizes: Mapping[str, int],
    identities: Mapping[str, str],
    messages: Mapping[str, bytes],
    round_: int,
    training: Training,
    ask: Callable[[Stage, Mapping[str, bytes]], Asked],
) -> tuple[Gathered, dict[str, str]]:
    """A round under masks at the coordinator: what the method sees, who dropped out."""
    about = context(protection, sizes, round_, training)
    asked = question(method, messages, *about)
    terms = terms_of(secure_key(), sizes, identities, protection, asked)
    collector, begun = Collector(terms), time.perf_counter()
    absent: dict[str, str] = {}
    nothing: list[str] = []
    up = down = 0
    paid = False
    session = np.frombuffer(terms.session, np.uint8)

    def carry(stage: Stage, given: Mapping[str, Arrays]) -> dict[str, Arrays]:
        nonlocal up, down, paid
        paid = paid or stage == "mask"
        bodies = {}
        for site, message in given.items():
            first = {"session": session, "message": np.frombuffer(messages[site], np.uint8)}
            bodies[site] = seal({**message, **first} if stage == "advertise" else message)
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
                "in this round some sites have something to add and others do not; nothing was "
                "opened"
            ) from None
        empty = [Answer(site, sizes[site], {}) for site in nothing]
        return Gathered(empty, up=up, down=down), absent
    except (PrivacyError, RunError) as error:
        reasons = "; ".join(f"{site}: {why}" for site, why in absent.items())
        kind = NotOpened if paid else RunError
        raise kind(f"the sum under masks was not opened: {error} ({reasons})") from None
    grid = grid_of(method, protection, len(sizes))
    answer, rounding = opened(method, grid, sizes, collector.survivors, total)
    seconds = time.perf_counter() - begun
    gone = [site for site in sizes if site not in collector.survivors]
    found = Gathered([answer], up=up, down=down, error=rounding, seconds=seconds)
    return found, {site: absent.get(site, "it dropped out of the sum") for site in gone}


@dataclass
class Agreed:
    """Standing keys at the coordinator: the terms, every site's signed key, and who has them all."""

    terms: Terms
    keys: Mapping[int, Arrays]
    told: set[str] = field(default_factory=set)
    attempts: int = 0


@dataclass
class Standings:
    """By training and sites: keys, and who was silent when the last ones were given up."""

    agreed: dict[tuple[object, ...], Agreed] = field(default_factory=dict)
    silent: dict[tuple[object, ...], set[str]] = field(default_factory=dict)


def summed_once(
    method: Method,
    protection: ProtectionSpec,
    sizes: Mapping[str, int],
    identities: Mapping[str, str],
    messages: Mapping[str, bytes],
    round_: int,
    training: Training,
    ask: Callable[[Stage, Mapping[str, bytes]], Asked],
    standings: Standings,
) -> tuple[Gathered, dict[str, str]]:
    """A round with standing keys: one exchange. Where a site falls silent nothing is opened, and
    keys are agreed on anew, without it if enough others are there, before the next attempt."""
    question(method, messages)  # one message for all
    key, begun, absent = (*training.values(), tuple(sizes)), time.perf_counter(), dict[str, str]()
    up = down = 0
    if key not in standings.agreed:
        terms = terms_of(
            secure_key(), sizes, identities, protection, digest(_training_of(training))
        )
        body = seal({"session": np.frombuffer(terms.session, np.uint8)})
        silent = standings.silent.pop(key, set())
        wanted = [site for site in sizes if site not in silent]
        wanted = wanted if len(wanted) >= terms.threshold else list(sizes)
        found = ask("advertise", dict.fromkeys(wanted, body))
        down += len(body) * len(wanted)
        up += sum(len(body) for _, body in found.answers.values())
        keys = {terms.parties.index(s): unseal(body) for s, (_, body) in found.answers.items()}
        absent.update(found.absent)
        if len(keys) < terms.threshold:
            raise RunError(
                f"only {len(keys)} of {len(sizes)} sites advertised keys, {terms.threshold} are "
                f"needed ({'; '.join(f'{site}: {why}' for site, why in absent.items())})"
            )
        standings.agreed[key] = Agreed(terms, keys)
    now = standings.agreed[key]
    now.attempts += 1
    roster, names = roster_of(now.keys), [now.terms.parties[party] for party in sorted(now.keys)]
    about = {"present": roster["parties"], "attempt": np.array([now.attempts], np.int32)}
    bodies = {
        site: seal(
            {
                "message": np.frombuffer(messages[site], np.uint8),
                **about,
                **({} if site in now.told else roster),
            }
        )
        for site in names
    }
    found = ask("mask", bodies)
    now.told |= set(found.answers)
    absent |= found.absent
    down += sum(map(len, bodies.values())) - sum(len(messages[site]) for site in names)
    up += sum(len(body) for _, body in found.answers.values())
    nothing = [site for site, (header, _) in found.answers.items() if header.get("nothing")]
    if nothing and set(nothing) == set(found.answers):
        return Gathered([Answer(s, sizes[s], {}) for s in nothing], up=up, down=down), absent
    try:
        total = standing_sum({s: unseal(body) for s, (_, body) in found.answers.items()}, names)
    except RunError as error:
        del standings.agreed[key]
        standings.silent[key] = set(names) - set(found.answers)
        reasons = "; ".join(f"{site}: {why}" for site, why in absent.items())
        raise NotOpened(f"the sum under masks was not opened: {error} ({reasons})") from None
    grid = grid_of(method, protection, len(sizes))
    answer, rounding = opened(method, grid, sizes, tuple(names), total)
    seconds = time.perf_counter() - begun
    gone = {
        site: absent.get(site, "it was left out of the sum, and has no keys")
        for site in sizes
        if site not in names
    }
    return Gathered([answer], up=up, down=down, error=rounding, seconds=seconds), gone


def _training_of(training: Training) -> tuple[object, ...]:
    return training["study"], training["seed"], training["fold"], training["method"]


class NotOpened(RunError):
    """A sum that broke off after sites paid: a spare round makes up for it."""


class _Nothing(Exception):
    pass
