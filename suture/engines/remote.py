"""The coordinator's side of a federation whose sites are elsewhere. The transport is an argument with one method.

The coordinator opens the study at every site, tells all of them the public sizes, and then drives the same rounds, with
the same method objects, as the embedded engine. It holds no row, no ledger and no site's state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from suture import world
from suture.engines import wire
from suture.engines.masking import Asked, summed, sums_of
from suture.errors import BudgetExhausted, RunError, StudyError, SutureError, TooFewSites
from suture.federation import Returned
from suture.gathering import SUM_OF_ALL, Gathered, is_reference
from suture.methods.base import Method
from suture.privacy.planner import SitePlan
from suture.protection.envelope import seal, unseal
from suture.protection.settings import ProtectionSpec
from suture.protection.terms import Stage
from suture.site.hospital import refusal
from suture.study import Study
from suture.world import Told, World


class Carrier(Protocol):
    """Carries requests to sites and answers back."""

    def start(self, study: Study, base: Path, folder: Path | None) -> None:
        """Be connected to the study's sites; calling it again changes nothing."""

    def exchange(self, requests: Mapping[str, bytes], seconds: float) -> dict[str, bytes | SutureError]:
        """Each site's answer to its request, or why there is none; never later than ``seconds`` from now."""

    def close(self) -> None:
        """Let go; whatever it started has ended when this returns."""


@dataclass
class RemoteMember:
    """A site's part in one training, as the coordinator knows it."""

    site: str
    patients: int
    names: dict[str, Any]
    """Which training: the keys of a request that say so."""
    exact: str
    deadline: float
    noise: float | None = None
    own: dict[str, NDArray[Any]] = field(default_factory=dict)
    new_charges: int = 0
    epsilon: float = 0.0
    pays: bool = True
    """False: the site has said that its ledger would not pay for the next round."""
    before: bool = False
    """Whether the site's ledger had paid for rounds before this run."""
    groups: dict[str, NDArray[np.str_]] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)

    def spent(self) -> float:
        """Epsilon, as the site's ledger said with its last answer."""
        return self.epsilon

    def charged(self) -> bool:
        """Whether the site's ledger has ever paid for a round of this training."""
        return self.before or self.new_charges > 0


class Remote:
    """The engine of a federation behind a `Carrier`. Use as a context manager."""

    checkpoint_seconds = 0.0
    """After every round: a site answers a round's message again, but not another one for the same round."""

    name = "flower"

    def __init__(self, carrier: Carrier, recorded: Mapping[str, str] | None = None) -> None:
        self.recorded = dict(recorded or {"engine": self.name})
        self._carrier = carrier
        self._texts: dict[int, str] = {}
        self._exact: dict[str, str] = {}
        self._accounts: dict[str, dict[str, dict[str, Any]]] = {}
        self._identities: dict[str, str] = {}

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_: object) -> None:
        self._carrier.close()

    def gather(self, study: Study, base: Path, folder: Path | None, seed: int) -> World:
        """Open the study at every site, tell all the sizes, and let every site make its promise."""
        if "pooled" in study.methods:
            raise StudyError("method 'pooled' moves rows to one place, which no federation does; use --engine embedded")
        self._carrier.start(study, base, folder)
        here = world.survey(study.public(), base, seed, only="")
        text = study.public().to_toml()
        opened = self._all(here.names, wire.request("open", study=text, seed=seed), study.federation.gathering)
        here.sizes = {site: int(found["patients"]) for site, found in opened.items()}
        digest = wire.digest(text)
        joining = wire.request("join", study=digest, seed=seed, sites=here.sizes)
        joined = self._all(here.names, joining, study.federation.deadline)
        for site, found in opened.items():
            told = joined[site]
            here.told[site] = Told(
                here.sizes[site],
                str(found["region"]),
                bool(found["generated"]),
                found["charter"],
                found["exact"] != "none",
                dict(told["described"]),
                tuple(map(str, told["warnings"])),
            )
            if told["identity"] is not None:
                self._identities[site] = str(told["identity"])
            self._exact[site], self._accounts[site] = str(found["exact"]), dict(told["accounts"])
        self._texts[seed] = digest
        return here

    def _all(self, names: tuple[str, ...], message: wire.Message, seconds: float) -> dict[str, dict[str, Any]]:
        """The same request to all; a refusal is raised, because nothing has been trained yet and sizes are needed."""
        answers = self._carrier.exchange(dict.fromkeys(names, wire.pack(message)), seconds)
        found, silent = {}, []
        for site in names:
            data = answers[site]
            if isinstance(data, SutureError):
                silent.append(str(data))
            else:
                found[site] = wire.answer(wire.unpack(data), site).header
        if silent:
            raise TooFewSites(f"a study starts with every site: {'; '.join(silent)}")
        return found

    def members(
        self, study: Study, here: World, method: Method, plans: Mapping[str, SitePlan], account: str, seed: int
    ) -> tuple[dict[str, RemoteMember], dict[str, RemoteMember]]:
        """Who trains and who is measured; with folds the hospitals held out are measured."""
        text = self._texts.get(seed) or next(iter(self._texts.values()))
        names = {"study": text, "seed": seed, "fold": here.fold or 0, "method": _spelled(study, method)}
        trainers = {}
        for site, patients in here.sizes.items():
            member = RemoteMember(site, patients, names, self._exact[site], study.federation.deadline)
            planned = plans.get(site)
            member.noise = planned.noise_multiplier if planned else None
            known = self._accounts[site].get(f"{names['fold']}/{names['method']}")
            if (
                known is not None
            ):  # a run that is resumed may have nothing left to ask, and must still say what was spent
                member.pays, member.epsilon, member.before = known["pays"], float(known["spent"]), known["charged"]
            trainers[site] = member
        if not here.fold:
            return trainers, trainers
        out = [site for site in here.told if site not in here.sizes]
        readers = {site: RemoteMember(site, 0, names, self._exact[site], study.federation.deadline) for site in out}
        return trainers, readers

    def ask(
        self,
        members: Mapping[str, RemoteMember],
        method: Any,
        messages: Mapping[str, bytes],
        round_: int,
        least: int,
    ) -> Returned:
        """One step at every site that has a message. Sites that refuse or are late are absent, with their reason."""
        unable = [site for site in messages if not members[site].pays]
        if unable and len(messages) - len(unable) < max(1, least):
            raise refusal(unable[0], round_)  # nobody is asked, so nobody is charged for a round that cannot be used
        requests = {
            site: wire.pack(wire.request("step", body, round=round_, **members[site].names))
            for site, body in messages.items()
            if site not in unable
        }
        seconds = max(members[site].deadline for site in messages)
        answers = self._carrier.exchange(requests, seconds)
        found = Returned({}, {site: str(refusal(site, round_)) for site in unable})
        errors: list[SutureError] = []
        for site in requests:
            try:
                found.sealed[site] = self._step_of(members[site], answers[site], round_)
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
        members: Mapping[str, RemoteMember],
        method: Any,
        protection: ProtectionSpec,
        messages: Mapping[str, bytes],
        round_: int,
        least: int,
    ) -> tuple[Returned, Gathered] | None:
        """A round under masks: five exchanges, of which only the sum is seen. None where nothing is to be summed."""
        if protection.sum != "masked" or is_reference(method):
            return None
        unable = [site for site in messages if not members[site].pays]
        if unable:
            raise refusal(unable[0], round_)

        def ask(stage: Stage, bodies: Mapping[str, bytes]) -> Asked:
            requests = {
                site: wire.pack(wire.request("stage", body, round=round_, stage=stage, **members[site].names))
                for site, body in bodies.items()
            }
            answers = self._carrier.exchange(requests, max(members[site].deadline for site in bodies))
            found = Asked({}, {})
            for site in bodies:
                try:
                    data = answers[site]
                    if isinstance(data, SutureError):
                        raise data
                    message = wire.answer(wire.unpack(data), site)
                    if stage == "mask":
                        self._note(members[site], message.header, round_)
                    found.answers[site] = (message.header, message.body)
                except SutureError as error:
                    found.absent[site] = str(error)
            return found

        whole, absent = Gathered([], up=0), {}  # type: Gathered, dict[str, str]
        groups = sums_of(method, list(messages), round_)
        for number, group in enumerate(groups, 1):
            sizes = {site: members[site].patients for site in group}
            inside, names = {s: messages[s] for s in group}, members[group[0]].names
            one, gone = summed(method, protection, sizes, self._identities, inside, round_, names, ask)
            name = SUM_OF_ALL if len(group) == len(messages) else f"sum {number} of {len(groups)}"
            whole.answers += [replace(a, site=name) if a.site == SUM_OF_ALL else a for a in one.answers]
            whole.up, whole.down = (whole.up or 0) + (one.up or 0), whole.down + one.down
            whole.error, whole.seconds = max(whole.error, one.error), whole.seconds + one.seconds
            absent |= gone
        return Returned({site: b"" for site in messages if site not in absent}, absent), whole

    def _step_of(self, member: RemoteMember, data: bytes | SutureError, round_: int) -> bytes:
        if isinstance(data, SutureError):
            raise data
        message = wire.answer(wire.unpack(data), member.site)
        unseal(message.body)
        self._note(member, message.header, round_)
        return message.body

    def _note(self, member: RemoteMember, header: Mapping[str, Any], round_: int) -> None:
        """What a site says about a release: for which round, at which noise, and what its ledger has paid so far."""
        if header.get("round") != round_:
            raise RunError(f"site {member.site!r} answered round {header.get('round')!r} instead of {round_}; rejected")
        member.noise = header["noise"]
        member.new_charges += int(header["new"])
        member.pays = bool(header["pays"])
        member.epsilon = float(header["spent"] or 0.0)

    def scores(
        self, members: Mapping[str, RemoteMember], method: Any, state: dict[str, NDArray[Any]]
    ) -> dict[str, tuple[NDArray[np.int32], NDArray[np.float32]]]:
        """Labels and risks of the test patients of every site that lets them leave; nothing for the others."""
        empty = (np.zeros(0, np.int32), np.zeros(0, np.float32))
        split = wire.split(state)
        body = seal(split.arrays)
        asked = {
            site: wire.pack(wire.request("score", body, groups=not m.groups, texts=split.texts, **m.names))
            for site, m in members.items()
            if m.exact != "none"
        }
        if not asked:
            return dict.fromkeys(members, empty)
        answers = self._carrier.exchange(asked, max(members[site].deadline for site in asked))
        found = dict.fromkeys(members, empty)
        for site in asked:
            data = answers[site]
            if isinstance(data, SutureError):
                continue  # a site that is away is not measured; the round itself says that it is away
            message = wire.answer(wire.unpack(data), site)
            if "figures" in message.header:
                members[site].figures = dict(message.header["figures"])
                continue
            arrays = unseal(message.body)
            found[site] = (arrays["y"].astype(np.int32), arrays["p"].astype(np.float32))
            for name, labels in message.header["groups"].items():
                members[site].groups[name] = np.array(labels, np.str_)[arrays[f"group/{name}"].astype(np.int64)]
        return found

    def figures(self, members: Mapping[str, RemoteMember]) -> dict[str, dict[str, float | None]]:
        """The metrics of sites that let their own figures leave, but no patient's label and risk."""
        return {site: member.figures for site, member in members.items() if member.figures}

    def groups(self, members: Mapping[str, RemoteMember], here: World) -> dict[str, dict[str, NDArray[np.str_]]]:
        """The groups that came with the last scores."""
        return {site: member.groups for site, member in members.items() if member.groups} if not here.fold else {}


def _spelled(study: Study, method: Method) -> str:
    """The method's name as the study spells it."""
    return method.name if method.name in study.methods else study.method.name
