"""The coordinator's side of a federation whose sites are elsewhere. The transport is an argument
with one method.

The coordinator opens the study at every site, tells all of them the public sizes, and then drives
the same rounds, with the same method objects, as the embedded engine. It holds no row, no ledger
and no site's state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from suture.engine import federation
from suture.engine.gather import SUM_OF_ALL, Gathered
from suture.engine.plan import Plan, RemoteSite, World
from suture.engine.round import Returned
from suture.errors import (
    BudgetExhausted,
    Reason,
    Refused,
    RunError,
    StudyError,
    SutureError,
    TooFewSites,
)
from suture.methods.base import Method, State
from suture.methods.registry import declared
from suture.network import wire
from suture.network.masking import Asked, NotOpened, Standings, summed, summed_once, sums_of
from suture.protection.envelope import seal, unseal
from suture.protection.terms import ProtectionSpec, Stage
from suture.site.hospital import refusal
from suture.study import Study

Scores = tuple[NDArray[np.int32], NDArray[np.float32]]
Answers = dict[str, bytes | SutureError]
"""Each site's answer to its request, or why there is none."""


class Carrier(Protocol):
    """Carries requests to sites and answers back."""

    def start(self, study: Study, base: Path, folder: Path | None) -> None:
        """Connect to the study's sites; calling it again changes nothing."""

    def exchange(self, requests: Mapping[str, bytes], seconds: float) -> Answers:
        """Ask the sites; return within ``seconds``, whatever happens."""

    def close(self) -> None:
        """Disconnect; whatever the carrier started has ended when this returns."""


@dataclass
class RemoteMember:
    """A site's part in one training, as the coordinator knows it."""

    site: str
    patients: int
    names: wire.Training
    exact: str
    noise: float | None = None
    own: State = field(default_factory=dict)
    new_charges: int = 0
    epsilon: float = 0.0
    pays: bool = True
    """False: the site has said that its ledger would not pay for the next round."""
    before: bool = False
    """Whether the site's ledger had paid for rounds before this run."""
    groups: dict[str, NDArray[np.str_]] = field(default_factory=dict)
    figures: dict[str, float | None] = field(default_factory=dict)

    def spent(self) -> float:
        """Epsilon, as the site's ledger said with its last answer."""
        return self.epsilon

    def charged(self) -> bool:
        """Whether the site's ledger has ever paid for a round of this training."""
        return self.before or self.new_charges > 0

    def paid(self, header: wire.Header, round_: int) -> None:
        """Take in what the site says about a release: its round, noise and payments."""
        found = header.get("round")
        if found != round_:
            raise RunError(f"site {self.site!r} answered round {found!r} instead of {round_}")
        self.noise = header["noise"]
        self.new_charges += int(header["new"])
        self.pays = bool(header["pays"])
        self.epsilon = float(header["spent"] or 0.0)

    def scored(self, header: wire.Header, body: bytes) -> Scores | None:
        """Take in figures about test patients; return labels and risks if they may leave."""
        arrays = unseal(body)
        if "figures" in header:
            self.figures = dict(header["figures"])
            return None
        for name, labels in header["groups"].items():
            codes = arrays[f"group/{name}"].astype(np.int64)
            self.groups[name] = np.array(labels, np.str_)[codes]
        return arrays["y"].astype(np.int32), arrays["p"].astype(np.float32)


Members = Mapping[str, RemoteMember]


@dataclass(frozen=True)
class _Opening:
    seed: int
    digest: str
    text: str
    sizes: dict[str, int]
    deadline: float


class Remote:
    """The engine of a federation behind a `Carrier`. Use as a context manager."""

    checkpoint_seconds = 0.0
    threads = 1
    """After every round: a site repeats an answer, but never answers a round's other message."""

    name = "flower"

    def __init__(self, carrier: Carrier, recorded: Mapping[str, str] | None = None) -> None:
        self.recorded = dict(recorded or {"engine": self.name})
        self._carrier = carrier
        self._opened: dict[int, _Opening] = {}
        self._heads: dict[str, Mapping[str, object]] = {}
        self._vouched: dict[str, dict[str, object]] = {}
        self._exact: dict[str, str] = {}
        self._accounts: dict[str, dict[str, wire.Paid]] = {}
        self._identities: dict[str, str] = {}
        self._spares: dict[tuple[object, ...], int] = {}
        self._standings = Standings()
        """Spare rounds used up, by training."""

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_: object) -> None:
        self._carrier.close()

    def gather(self, study: Study, base: Path, folder: Path | None, seed: int) -> World:
        """Open the study at every site, tell all the sizes, and let every site make its promise."""
        one_machine = "stays on one machine: use --engine embedded"
        if any(declared(name).moves_rows for name in study.methods):
            raise StudyError(f"method 'pooled' moves rows to one place and {one_machine}")
        if study.simulation:
            raise StudyError(f"a simulation (simulation = true) {one_machine}")
        if study.link_people:
            raise StudyError(
                "link_people = true tells every hospital which of its people attend another one, "
                f"and {one_machine}. Between machines people are counted, not linked: suture overlap"
            )
        here, opened = self.begin(study, base, folder, seed)
        opening = self._opened[seed]
        for site, found in opened.items():
            joined = self._join(site, opening)
            if study.sites:
                here.hear_ready(site, found["ready"])
            here.remote[site] = RemoteSite(
                here.sizes[site],
                str(found["region"]),
                bool(found["generated"]),
                found["charter"],
                found["exact"] != "none",
                dict(joined["described"]),
                tuple(map(str, joined["warnings"])),
            )
            self._exact[site], self._accounts[site] = str(found["exact"]), dict(joined["accounts"])
        # Peers follow a chain once its site has checked it against what they remember.
        self._vouch(opening)
        return here

    def begin(
        self, study: Study, base: Path, folder: Path | None, seed: int
    ) -> tuple[World, dict[str, wire.Header]]:
        """Open the study at every site, and let peers vouch for the ledgers; nothing is promised."""
        self._carrier.start(study, base, folder)
        here = federation.survey(study.public(), base, seed, only="")
        text, deadline = study.public().to_toml(), study.federation.deadline
        asked = wire.request("open", study=text, seed=seed)
        opened = self._all(here.names, asked, study.federation.gathering)
        here.sizes = {site: int(found["patients"]) for site, found in opened.items()}
        opening = _Opening(seed, study.digest, text, here.sizes, deadline)
        self._opened[seed] = opening
        self._heads |= {site: found["head"] for site, found in opened.items() if found["head"]}
        self._vouch(opening)
        return here, opened

    def people(
        self, site: str, peer: str, stage: str, body: bytes = b""
    ) -> tuple[wire.Header, bytes]:
        """One exchange of a comparison of two sites, carried from one to the other."""
        (opening,) = self._opened.values()
        heads = {name: head for name, head in self._heads.items() if name != site}
        witnessed = {"heads": heads, "vouched": self._vouched.get(site, {})}
        names = {"study": opening.digest, "seed": opening.seed, "stage": stage, "peer": peer}
        asked = wire.pack(wire.request("people", body, **names, **witnessed))
        answers = self._carrier.exchange({site: asked}, opening.deadline)
        header, found = wire.answer(answers[site], site)
        self._follow(site, header)
        self._vouch(opening)
        return header, found

    def _vouch(self, opening: _Opening) -> None:
        """Show every site the ends of all ledgers, and bring back what each remembers of them."""
        if self._heads:
            asked = _witness(opening, self._heads)
            for peer, found in self._all(tuple(opening.sizes), asked, opening.deadline).items():
                self._carry(peer, found["vouched"])

    def _show(self, heads: Mapping[str, Mapping[str, object]], opening: _Opening) -> None:
        """Show the ends of some ledgers to all other sites; those that are away say nothing."""
        asked = wire.pack(_witness(opening, heads))
        peers = [name for name in opening.sizes if list(heads) != [name]]
        found = self._carrier.exchange(dict.fromkeys(peers, asked), opening.deadline)
        for peer, data in found.items():
            with contextlib.suppress(SutureError):
                self._carry(peer, wire.answer(data, peer)[0]["vouched"])

    def _carry(self, peer: str, vouched: wire.Words) -> None:
        """Keep what one site says of the others' ledgers until each of them is asked again."""
        for site, said in vouched.items():
            self._vouched.setdefault(site, {})[peer] = said

    def _join(self, site: str, opening: _Opening) -> wire.Header:
        digest, seed, sizes = opening.digest, opening.seed, opening.sizes
        vouched = self._vouched.get(site, {})
        asked = wire.request("join", study=digest, seed=seed, sites=sizes, vouched=vouched)
        found = self._all((site,), asked, opening.deadline)[site]
        if found["identity"] is not None:
            self._identities[site] = str(found["identity"])
        self._follow(site, found)
        return found

    def _follow(self, site: str, header: wire.Header) -> None:
        if header.get("head"):
            self._heads[site] = header["head"]
        self._carry(site, header.get("vouched") or {})

    def _ask(
        self, op: str, members: Members, bodies: Mapping[str, bytes], **first: object
    ) -> Answers:
        """Ask sites about a training, with the others' ledger ends and their word on the site's."""
        requests = {}
        for site, body in bodies.items():
            heads = {name: head for name, head in self._heads.items() if name != site}
            witnessed = {"heads": heads, "vouched": self._vouched.get(site, {})}
            message = wire.request(op, body, **first, **members[site].names, **witnessed)
            requests[site] = wire.pack(message)
        return self._exchange(requests, self._opening(members))

    def _exchange(self, requests: Mapping[str, bytes], opening: _Opening) -> Answers:
        """Ask. Where a restarted site has closed the study, open it there and ask again."""
        answers = self._carrier.exchange(requests, opening.deadline)
        again = {}
        for site in [site for site, data in answers.items() if wire.not_open(data)]:
            try:
                self._open_again(site, opening)
                again[site] = requests[site]
            except SutureError as error:
                answers[site] = error
        return {**answers, **(self._carrier.exchange(again, opening.deadline) if again else {})}

    def _open_again(self, site: str, opening: _Opening) -> None:
        asked = wire.request("open", study=opening.text, seed=opening.seed)
        head = self._all((site,), asked, opening.deadline)[site]["head"]
        if head:
            self._heads[site] = head
            self._show({site: head}, opening)
        self._join(site, opening)
        if head:
            self._show({site: self._heads[site]}, opening)

    def _opening(self, members: Members) -> _Opening:
        """The opening of a training; real patients are opened once for all seeds."""
        seed = next(iter(members.values())).names["seed"]
        return self._opened.get(seed) or next(iter(self._opened.values()))

    def _all(
        self, names: tuple[str, ...], message: wire.Message, seconds: float
    ) -> dict[str, wire.Header]:
        """Send one request to all; a refusal is raised, because nothing is trained yet."""
        answers = self._carrier.exchange(dict.fromkeys(names, wire.pack(message)), seconds)
        silent = [str(answers[site]) for site in names if isinstance(answers[site], SutureError)]
        found = {
            site: wire.answer(answers[site], site)[0]
            for site in names
            if not isinstance(answers[site], SutureError)
        }
        if silent:
            raise TooFewSites(f"a study starts with every site: {'; '.join(silent)}")
        return found

    def members(
        self,
        study: Study,
        here: World,
        plan: Plan,
        seed: int,
    ) -> tuple[dict[str, RemoteMember], dict[str, RemoteMember]]:
        """Who trains and who is measured; with folds the hospitals held out are measured."""
        fold = here.fold or 0
        names = wire.Training(study=study.digest, seed=seed, fold=fold, method=plan.name)

        def member(site: str, patients: int) -> RemoteMember:
            return RemoteMember(site, patients, names, self._exact[site])

        sizes = here.held if plan.method.tests and here.held else here.sizes
        trainers = {site: member(site, patients) for site, patients in sizes.items()}
        for site, found in trainers.items():
            planned = plan.sites.get(site)
            found.noise = planned.noise_multiplier if planned else None
            known = self._accounts[site].get(f"{fold}/{plan.name}")
            # A run that is resumed may have nothing left to ask, and must still say what was spent.
            if known is not None:
                found.pays, found.before = known["pays"], known["charged"]
                found.epsilon = float(known["spent"])
        if not here.fold:
            return trainers, trainers
        return trainers, {site: member(site, 0) for site in here.remote if site not in here.sizes}

    def ask(
        self,
        members: Members,
        method: Method,
        messages: Mapping[str, bytes],
        round_: int,
        least: int,
    ) -> Returned:
        """One step at every site that has a message; who refuses or is late is absent."""
        unable = [site for site in messages if not members[site].pays]
        if unable and len(messages) - len(unable) < max(1, least):
            # Nobody is asked, so nobody is charged for a round that cannot be used.
            raise refusal(unable[0], round_)
        asked = {site: body for site, body in messages.items() if site not in unable}
        answers = self._ask("step", members, asked, round=round_)
        found = Returned({}, {site: str(refusal(site, round_)) for site in unable})
        errors: list[SutureError] = []
        for site in asked:
            try:
                header, body = wire.answer(answers[site], site)
                unseal(body)
                self._follow(site, header)
                members[site].paid(header, round_)
                found.sealed[site] = body
            except SutureError as error:
                found.absent[site] = str(error)
                errors.append(error)
        if len(found.sealed) < max(1, least):
            unpaid = [problem for problem in errors if isinstance(problem, BudgetExhausted)]
            others = [problem for problem in errors if not isinstance(problem, TooFewSites)]
            if unpaid or others:
                raise (unpaid or others)[0]
        return found

    def summed(
        self,
        members: Members,
        method: Method,
        protection: ProtectionSpec,
        messages: Mapping[str, bytes],
        round_: int,
        least: int,
    ) -> tuple[Returned, Gathered] | None:
        """A round under masks, of which only the sum is seen; None where nothing is summed."""
        if protection.sum != "masked" or method.reference:
            return None
        unable = [site for site in messages if not members[site].pays]
        if unable:
            raise refusal(unable[0], round_)

        def ask(stage: Stage, bodies: Mapping[str, bytes]) -> Asked:
            answers = self._ask("stage", members, bodies, round=round_, stage=stage)
            found = Asked({}, {})
            for site in bodies:
                try:
                    header, body = wire.answer(answers[site], site)
                    self._follow(site, header)
                    if stage == "mask":
                        members[site].paid(header, round_)
                    found.answers[site] = (header, body)
                except SutureError as error:
                    found.absent[site] = str(error)
            return found

        whole, absent = Gathered([], up=0), dict[str, str]()
        groups = sums_of(method, list(messages), round_)
        for number, group in enumerate(groups, 1):
            sizes = {site: members[site].patients for site in group}
            inside, names = {s: messages[s] for s in group}, members[group[0]].names
            while True:
                try:
                    given = (
                        method,
                        protection,
                        sizes,
                        self._identities,
                        inside,
                        round_,
                        names,
                        ask,
                    )
                    one, gone = (
                        summed_once(*given, self._standings)
                        if protection.keys == "study"
                        else summed(*given)
                    )
                    break
                # Tried again as a new sum, which is a new release: planned for, and never more
                # often.
                except NotOpened:
                    training = tuple(names.values())
                    if self._spares.get(training, 0) >= protection.spare_rounds:
                        raise
                    self._spares[training] = self._spares.get(training, 0) + 1
                    whole.spare += 1
            name = SUM_OF_ALL if len(group) == len(messages) else f"sum {number} of {len(groups)}"
            whole.answers += [
                replace(a, site=name) if a.site == SUM_OF_ALL else a for a in one.answers
            ]
            whole.up, whole.down = (whole.up or 0) + (one.up or 0), whole.down + one.down
            whole.error, whole.seconds = max(whole.error, one.error), whole.seconds + one.seconds
            absent |= gone
        return Returned({site: b"" for site in messages if site not in absent}, absent), whole

    def scores(
        self, members: Members, method: Method, state: State, round_: int
    ) -> dict[str, Scores]:
        """Labels and risks of test patients, from sites that let them leave; else nothing."""
        arrays, texts = wire.split(state)
        found = dict.fromkeys(members, (np.zeros(0, np.int32), np.zeros(0, np.float32)))
        sent = seal(arrays)
        asked = {site: sent for site, m in members.items() if m.exact != "none"}
        if not asked:
            return found
        answers = self._ask("score", members, asked, round=round_, groups=True, texts=texts)
        for site in asked:
            data = answers[site]
            if isinstance(data, SutureError):
                continue  # a site that is away is not measured; the round says that it is away
            try:
                header, body = wire.answer(data, site)
            except Refused as error:
                if error.reason is not Reason.TURN:
                    raise
                continue  # it has had no part in the training yet, so it has no model to score
            self._follow(site, header)
            found[site] = members[site].scored(header, body) or found[site]
        return found

    def figures(self, members: Members) -> dict[str, dict[str, float | None]]:
        """The metrics of sites that let figures leave, but no patient's label and risk."""
        return {site: member.figures for site, member in members.items() if member.figures}

    def groups(self, members: Members, here: World) -> dict[str, dict[str, NDArray[np.str_]]]:
        if here.fold:
            return {}
        return {site: member.groups for site, member in members.items() if member.groups}


def _witness(opening: _Opening, heads: Mapping[str, Mapping[str, object]]) -> wire.Message:
    return wire.request("witness", study=opening.digest, seed=opening.seed, heads=dict(heads))
