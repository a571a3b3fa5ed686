"""A site's side of a federation: every request is read, checked, answered or refused, and noted in
the site's log. Everything that decides is the site's own.

`Handler` knows no transport: bytes and the hash of the app that sent them go in, bytes come out.
Whatever goes wrong, an answer goes out. A refusal is one `Reason` out of a public list: no text,
count or line number leaves, because what went wrong may depend on a row. Answers leave on ticks: at
whole multiples of a time that follows from the declared size of the study that is open. Requests
that open a study, and those that cannot be read, are answered on ticks that are always the same.

`Participant` is one study at the site. It arrives as text and is compared, by its digest, with the
one that the site has pinned: in its signed charter, or among the studies that a person at the site
has accepted. The site builds the method from it with its own installed code, plans its own noise
from declared sizes, reserves the whole plan in its own ledger, reads its rows, and answers through
its door. What the coordinator sends is numbers, in the places that the wire has for them.

The methods, their noise and their accounts are planned once, when the site joins. What the site
keeps between rounds is on its disk, one file per training: the state before and after the last
round that it answered, and which message that was. A site that is killed goes on from there. The
same request again gives the same bytes and is charged once (docs/design.md, "The door").
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import math
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import numpy as np

from suture.engine import federation
from suture.engine.describe import counted, describes
from suture.engine.plan import participants, plan_of
from suture.errors import (
    BudgetExhausted,
    CharterError,
    DataError,
    LedgerError,
    NotReady,
    Reason,
    Refused,
    RunError,
    StudyError,
    SutureError,
)
from suture.evaluation.metrics import measure
from suture.methods.base import Arrays, Method, State
from suture.methods.registry import declared
from suture.network import wire
from suture.network.masking import SiteSums, sums_of
from suture.network.people import SitePeople
from suture.network.settings import STATUS, SiteSettings
from suture.network.wire import Header, Paid, Request, Words
from suture.network.witnesses import Witnesses, public_identity
from suture.privacy.door import Context, protected
from suture.privacy.files import write_whole
from suture.privacy.ledger.chain import RolledBack
from suture.privacy.ledger.ledger import Ledger
from suture.privacy.noise.source import secure_key
from suture.protection.envelope import seal, unseal
from suture.schema.message import check_message
from suture.site import gate
from suture.site.gate import accepted
from suture.site.hospital import Hospital, Member, fault, refusal
from suture.study import Study

log = logging.getLogger("suture.site")
TICK = 0.05
"""Seconds for every 1,000 declared patients."""


@dataclass
class Kept:
    """What a site keeps of one training: its last answered round, and its state."""

    round: int = 0
    message: str = ""
    before: State | None = None
    after: State | None = None
    scored: int = 0
    """After which round a model was scored here with exact figures, if any."""
    follows: str = ""
    """The message of the next round: the model that was scored is trained on."""


@dataclass(frozen=True)
class Plan:
    """One training of the study at this site, as planned when the site joined: a method in the
    whole federation or in one fold of it."""

    name: str
    fold: int
    sizes: dict[str, int]
    """The declared sizes of the sites that train; this one may be held out."""
    method: Method
    hospital: Hospital
    account: str
    noise: float | None
    rounds: int
    participation: float
    of: str = ""
    """For an evaluation: the method whose model it measures."""


@dataclass(frozen=True)
class Training:
    """One request about a training: what is asked, what was planned, and this site's part."""

    given: Request
    plan: Plan
    member: Member
    file: Path
    """Where the site keeps its state."""

    @property
    def round(self) -> int:
        return self.given["round"]


class Participant:
    """A study that was opened here; `join` makes the promise, reads the rows and plans."""

    def __init__(
        self, settings: SiteSettings, home: Path, text: str, seed: int, base: Path, ledgers: Path
    ) -> None:
        self.settings, self.home, self.seed, self._ledgers = settings, home, seed, ledgers
        asked = Study.from_text(text)
        self.digest = asked.digest
        self._check(asked)
        name = settings.name
        own = tuple(settings.site(site) if site.name == name else site for site in asked.sites)
        self.study = asked.model_copy(update={"sites": own})
        mine = next((site for site in own if site.name == name), None)
        place = None if mine is None else gate.place_of(mine, home)
        if place is not None:
            self._check_pinned(place)
        self.world = federation.survey(self.study, base, seed, only=name, place=place)
        if name not in self.world.sizes:
            raise Refused(f"study {asked.name!r} does not name this site ({name!r})", Reason.STUDY)
        federation.ask_ready(self.study, self.world, needed=settings.ready_needed)
        self._plans: dict[tuple[int, str], Plan] = {}
        """By fold and method; empty until the site has joined."""
        self._sums = SiteSums(settings, home)
        self._witnesses = Witnesses(settings, home, generated=self.world.generated)

    def _check(self, asked: Study) -> None:
        """The study is about this site's rows, with declared sizes, or generated patients."""
        name, seeds = self.settings.name, range(asked.seed, asked.seed + asked.evaluation.seeds)
        sizes, own = {s.name: s.patients for s in asked.sites}, not self.settings.cohort
        moved = any(declared(method).moves_rows for method in asked.methods)
        if asked.cohort is not None:
            problems = [
                (own, "on a built-in cohort; this site has rows of its own", Reason.STUDY),
                (self.seed not in seeds, f"without seed {self.seed}", Reason.TURN),
            ]
        else:
            problems = [
                (asked.simulation, "a simulation: nothing of it leaves a site", Reason.STUDY),
                (name not in sizes, f"not for this site ({name!r})", Reason.STUDY),
                (None in sizes.values(), "refused: it declares no size of a site", Reason.STUDY),
                (self.seed != asked.seed, f"opened with seed {asked.seed} only", Reason.TURN),
                (moved, "pooled; rows stay here", Reason.SETTINGS),
            ]
        for found, problem, reason in problems:
            if found:
                raise Refused(f"study {asked.name!r} is {problem}", reason)

    def _check_pinned(self, place: gate.Place) -> None:
        """The study is pinned by a charter, or was accepted by a person."""
        if place.papers.charter is not None or place.papers.trust is not None:
            return
        study = f"study {self.digest[:16]}"
        if self.settings.charter_needed:
            raise Refused(
                f"this site takes part under a signed charter only, and holds none for {study} "
                "(charter.toml in its home, see: suture charter new)",
                Reason.CHARTER,
            )
        if self.digest not in accepted(self.home) | set(self.settings.accepts):
            text = f"{study} was not accepted here: suture site accept {self.home} study.toml"
            raise Refused(text, Reason.STUDY)

    @property
    def exact(self) -> str:
        """What may leave about test patients: the site's setting, if its charter allows."""
        if self.world.generated:
            return "scores"
        if self.study.private:
            return "none"
        admission = self.world.admissions.get(self.settings.name)
        allowed = admission is None or admission.exact_metrics
        return self.settings.exact_metrics if allowed else "none"

    @property
    def _ledger(self) -> Ledger:
        return self.world.ledgers[self.settings.name]

    def opened(self) -> Header:
        """What the site says before it joins: its size, its terms, its ledger's end."""
        admission = self.world.admissions.get(self.settings.name)
        terms = admission.terms if admission else None
        if self.exact == "none" and (terms is None or "withheld" not in terms):
            terms = f"{terms or 'no charter'}, exact figures withheld"
        with gate.borrowed(self.world.places[0], self._ledgers) as ledger:
            head = self._witnesses.own(ledger.head())
        return {
            "patients": self.world.sizes[self.settings.name],
            "region": self.world.places[0].region,
            "generated": self.world.generated,
            "charter": terms,
            "ready": self.world.ready.get(self.settings.name),
            "exact": self.exact,
            "head": head,
        }

    def witness(self, heads: Words) -> Header:
        return {"vouched": self._witnesses.vouch(heads)}

    def join(self, sites: dict[str, int], vouched: Words) -> Header:
        """Promise, then read the rows. ``sites``: the declared (or counted) sizes of all."""
        name = self.settings.name
        declared = {site.name: int(site.patients or 0) for site in self.study.sites}
        sizes = declared or self._counted(sites)
        if sites != sizes:
            raise Refused("the sizes are not those that the study declares", Reason.STUDY)
        if not self._plans:
            self.world.sizes = sizes
            with gate.borrowed(self.world.places[0], self._ledgers) as ledger:
                self._witnesses.check(ledger, vouched)
            needed = self.settings.ready_needed
            federation.promise(self.study, self.world, self._ledgers, ready_needed=needed)
            federation.read_rows(self.study, self.world, strict=False)
            self.world.hospitals[name].keeps = True
            self._plans = self._planned()
        data = self.world.hospitals[name].data
        for problem in (*data.loaded.problems, *data.loaded.warnings):
            log.warning("%s", problem)
        masked = self.study.protection.sum == "masked"
        shown = describes(self.study, self.world) and self.exact != "none"
        return {
            "described": counted(data, self.world.target) if shown else {},
            "accounts": {
                f"{found.fold}/{found.name}": self._paid(found)
                for found in self._plans.values()
                if name in found.sizes
            },
            "identity": public_identity(self.home, self.settings) if masked else None,
            "warnings": list(data.loaded.warnings) if self.world.generated else [],
            "head": self._witnesses.own(self._ledger.head()),
        }

    def people(self, given: Request, body: bytes) -> tuple[Header, bytes]:
        """One exchange of a comparison with another site."""
        compared = SitePeople(self.study, self.digest, self.world, self.settings, self.home)
        return compared.answer(given, body, self._witnesses)

    def _counted(self, sites: dict[str, int]) -> dict[str, int]:
        """Sizes of generated sites, which are counted, in the study's order."""
        mine = self.settings.name
        fine = all(type(size) is int and size >= 0 for size in sites.values())
        if tuple(sites) != self.world.names or not fine:
            raise Refused("expected the size of every site, in the study's order", Reason.REQUEST)
        return {**sites, mine: self.world.sizes[mine]}

    def _planned(self) -> dict[tuple[int, str], Plan]:
        """Every training of the study, from its text, the public sizes and installed code alone."""
        site, found = self.settings.name, {}
        for part, name in product(federation.split(self.study, self.world), self.study.methods):
            trained = plan_of(self.study, part, name)
            for planned in (trained, trained.evaluation):
                if planned is None:
                    continue
                mine = planned.sites.get(site)
                found[part.fold or 0, planned.name] = Plan(
                    planned.name,
                    part.fold or 0,
                    part.sizes if planned is trained else part.held or part.sizes,
                    planned.method,
                    part.tested.get(site) or self.world.hospitals[site],
                    planned.account,
                    mine.noise_multiplier if mine else None,
                    planned.rounds,
                    planned.participation,
                    "" if planned is trained else name,
                )
        return found

    def close(self) -> None:
        for ledger in self.world.ledgers.values():
            ledger.close()

    def _member(self, found: Plan, seed: int) -> Member:
        hospital = found.hospital.serving(found.method)
        return Member(hospital, found.account, found.noise, seed, self.digest, found.fold)

    def _training(self, given: Request) -> Training:
        """What a request is about; refused unless it is a training of the study."""
        if not self._plans:
            raise Refused("the study was not joined here; join it first", Reason.NOT_OPEN)
        name, fold, seed = given["method"], given["fold"], given["seed"]
        if fold not in {known for known, _ in self._plans}:
            raise Refused(f"the study has no fold {fold}", Reason.TURN)
        found = self._plans.get((fold, name))
        if found is None:
            raise Refused(f"method {name[:40]!r} is not one of the study's", Reason.TURN)
        if seed not in range(self.study.seed, self.study.seed + self.study.evaluation.seeds):
            raise Refused(f"seed {seed} is not one of the study's", Reason.TURN)
        return Training(given, found, self._member(found, seed), self._file(name, seed, fold))

    def _file(self, name: str, seed: int, fold: int) -> Path:
        return self.home / "federation" / self.digest / f"{name}-{seed}-{fold}.npz"

    def step(self, given: Request, body: bytes) -> tuple[Header, bytes]:
        """One round: turn, message and budget are checked before anything is computed."""
        training = self._training(given)
        method = training.plan.method
        if self._hidden(method):
            raise Refused(f"{method.name!r} leaves this site under masks only", Reason.MASKED)
        vouched = self._witnesses.passed(self._ledger, given)
        header, sealed = self._release(training, body)
        return {**header, "vouched": vouched}, sealed

    def _hidden(self, method: Method) -> bool:
        """Whether the coordinator must see nothing but the sum. It is not trusted not to look."""
        if method.reference:
            return False
        # A sum that counts on the noise of one site alone may be looked at: each answer has it all.
        alone = method.needs != "secure sum" or method.honest_sites == 1
        return self.study.protection.sum == "masked" or not alone

    def stage(self, given: Request, body: bytes) -> tuple[Header, bytes]:
        """One exchange of a sum under masks; training and payment come with the stage `mask`."""
        training, protection = self._training(given), self.study.protection
        method = training.plan.method
        if not self._hidden(method) or protection.sum != "masked":
            raise Refused('the study does not say protection.sum = "masked"', Reason.MASKED)
        now = method.at_round(training.round, training.plan.rounds)
        if given["stage"] == "advertise":
            return self._advertise(training, now, body)
        said: Header = {}

        def release(message: bytes, session: bytes) -> bytes:
            training.member.session = session
            header, sealed = self._release(training, message)
            said.update(header)
            return sealed

        if protection.keys == "study":
            if given["stage"] != "mask":
                raise Refused("with standing keys a sum has one stage", Reason.SESSION)
            sizes = self._party(training, now, unseal(body))
            said["vouched"] = self._witnesses.passed(self._ledger, given)
            header, answer = self._sums.mask(now, protection, sizes, body, given, release)
        else:
            header, answer = self._sums.go_on(given, now, protection, body, release)
        return {**said, **header}, answer

    def _advertise(self, training: Training, now: Method, body: bytes) -> tuple[Header, bytes]:
        found, protection = dict(unseal(body)), self.study.protection
        standing = protection.keys == "study"
        if set(found) != ({"session"} if standing else {"session", "message"}):
            raise Refused("a sum begins with a session and the round's message", Reason.MESSAGE)
        sizes = self._party(training, now, found)
        vouched = self._witnesses.passed(self._ledger, training.given)
        if standing:
            session = found["session"].tobytes()
            begun = self._sums.advertise(protection, sizes, session, training.given)
        else:
            begun = self._sums.begin(now, protection, sizes, found, training.given)
        return {"vouched": vouched}, seal(begun)

    def _party(self, training: Training, now: Method, found: Arrays) -> dict[str, int]:
        """The sizes of the sites in this site's sum of the round, whose message is looked at first."""
        name, chosen = self.settings.name, self._turn(training)
        if "message" in found:
            message = unseal(found["message"].tobytes())
            check_message(message, now.expects(training.round, name))
        groups = sums_of(now, chosen, training.round)
        mine = next((group for group in groups if name in group), None)
        if mine is None:
            raise Refused(f"this site is in no sum of round {training.round}", Reason.TURN)
        return {site: training.plan.sizes[site] for site in mine}

    def _release(self, training: Training, body: bytes) -> tuple[Header, bytes]:
        round_, member = training.round, training.member
        self._turn(training)
        kept, mark = load_kept(training.file), hashlib.sha256(body).hexdigest()
        now = training.plan.method.at_round(round_, training.plan.rounds)
        if round_ < kept.round:
            # An earlier round's answer, if this very message had it; nothing is computed.
            known = None if member.session else member.repeated(now, body, round_)
            if known is None:
                raise Refused(f"round {round_} is over, for any other message", Reason.ANSWERED)
            return self._report(training), known
        if round_ == kept.round and mark != kept.message and not member.session:
            text = f"round {round_} was answered already, to another message"
            raise Refused(text, Reason.ANSWERED)
        if kept.follows and kept.scored == round_ - 1 and mark != kept.follows:
            text = f"round {round_} must go on from the model that was scored after {kept.scored}"
            raise Refused(text, Reason.ANSWERED)
        before = dict((kept.before if round_ == kept.round else kept.after) or {})
        if training.plan.of:
            # What scores is what was released: nothing that a site computed without noise.
            given, fold = training.given, training.plan.fold
            trained = load_kept(self._file(training.plan.of, given["seed"], fold))
            before = protected(trained.after or {})
        member.own = dict(before)
        if not member.can_pay(now, body, round_):
            raise refusal(self.settings.name, round_)
        sealed = member.step(now, body, round_)
        if member.session or (round_, mark) != (kept.round, kept.message):
            save_kept(training.file, Kept(round_, mark, before, member.own))
        return self._report(training), sealed

    def _report(self, training: Training) -> Header:
        """What goes with an answer: figures of plan and ledger, which no row changes."""
        member, round_ = training.member, training.round
        return {
            "round": round_,
            "noise": member.noise,
            "new": member.new_charges,
            "pays": not member.new_charges or self._affords(training.plan, member, round_ + 1),
            "spent": member.spent() if self.study.private else None,
            "head": self._witnesses.own(self._ledger.head()),
        }

    def _paid(self, found: Plan) -> Paid:
        """What the ledger has paid for a training so far, and whether it pays for a first round.

        Where rounds were paid before, they may be free again, so the site does not say no.
        """
        member = self._member(found, self.seed)
        charged = member.charged()
        spent = member.spent() if self.study.private and charged else 0.0
        pays = charged or self._affords(found, member, 1)
        return {"pays": pays, "spent": spent, "charged": charged}

    def _affords(self, found: Plan, member: Member, round_: int) -> bool:
        if round_ > found.rounds:
            return True
        name, ledgers = self.settings.name, member.hospital.ledgers
        event = found.method.round_event(round_, name, member.patients, member.noise)
        return all(ledger.can_pay(member.account, event, secure_key()) for ledger in ledgers)

    def _turn(self, training: Training) -> list[str]:
        """The sites of this round; refused if this site is not one of them."""
        plan, round_ = training.plan, training.round
        if not 1 <= round_ <= plan.rounds:
            raise Refused(f"the study has rounds 1 to {plan.rounds}, found {round_}", Reason.TURN)
        chosen = participants(list(plan.sizes), round_, plan.participation, self.study.seed)
        if self.settings.name not in chosen:
            raise Refused(f"it is not this site's turn in round {round_}", Reason.TURN)
        return chosen

    def score(self, given: Request, state: State) -> tuple[Header, bytes]:
        """Exact figures about test patients: generated ones, or where the study promises nothing and
        the site's own file says so.

        Each round is scored once, with one model: the answer is kept, and another model for the
        round is refused.
        """
        training = self._training(given)
        found, round_ = training.plan, training.round
        if self.exact == "none" or found.of:
            text = "exact figures do not leave this site (a promise, exact_metrics, or its charter)"
            raise Refused(text, Reason.EXACT)
        if not 1 <= round_ <= found.rounds:
            raise Refused("a model is scored after one of the study's rounds", Reason.TURN)
        context = Context(
            self.digest, self.settings.name, found.hospital.edition, found.account,
            f"score {found.name}", given["seed"], found.fold, round_, b"",
        )  # fmt: skip
        scored = seal({**wire_arrays(state), "groups": np.array(given["groups"])})
        model = hashlib.sha256(scored).digest()
        known = self._kept_score(context, model)
        return known or self._new_score(training, context, model, state)

    def _kept_score(self, context: Context, model: bytes) -> tuple[Header, bytes] | None:
        kept = self._ledger.kept(context.mark.hex())
        if kept is None:
            return None
        if kept[:32] != model:
            text = f"round {context.round} was scored already, with another model"
            raise Refused(text, Reason.ANSWERED)
        length = int.from_bytes(kept[32:36], "little")
        return json.loads(kept[36 : 36 + length]), kept[36 + length :]

    def _new_score(
        self, training: Training, context: Context, model: bytes, state: State
    ) -> tuple[Header, bytes]:
        found, member, kept = training.plan, training.member, load_kept(training.file)
        trains = self.settings.name in found.sizes
        if trains:
            own = dict(kept.after or {})
            member.own = protected(own) if self.study.private else own
        self._fits(training, state)
        exact = trains and not self.world.generated
        if exact and not 1 <= kept.round <= training.round:
            raise Refused("this site has no part in the model to score yet", Reason.TURN)
        header, arrays = self._scored(training, state)
        body, text = seal(arrays), json.dumps(header).encode()
        self._ledger.keep(context.mark.hex(), model + len(text).to_bytes(4, "little") + text + body)
        if exact:
            # What is scored is what the run goes on with: a model of the coordinator's own would be
            # trained on next.
            message = seal(found.method.broadcast(state, self.settings.name))
            follows = hashlib.sha256(message).hexdigest()
            save_kept(training.file, replace(kept, scored=training.round, follows=follows))
        return header, body

    def _fits(self, training: Training, state: State) -> None:
        """Refuse a model that does not score made-up rows: nothing is paid, no row touched."""
        member, method = training.member, training.plan.method
        for rows in (1, 2):
            x = np.zeros((rows, *member.hospital.data.train.x.shape[1:]), np.float32)
            try:
                with np.errstate(all="ignore"):
                    found = np.shape(method.predict(state, member.own, x, self.settings.name))
            except Exception as error:
                text = f"the model to score does not fit the method: {fault(error)}"
                raise Refused(text, Reason.MESSAGE) from None
            if found != (rows, *self.world.target.shape):
                raise Refused(f"the model to score gives {found} for {rows} rows", Reason.MESSAGE)

    def _scored(self, training: Training, state: State) -> tuple[Header, State]:
        data = training.member.hospital.data
        y, p = training.member.scores(training.plan.method, state)
        if self.exact == "figures":
            threshold = self.study.evaluation.threshold
            found = (
                measure(y, p, threshold, rows=len(y), target=self.world.target) if len(y) else {}
            )
            figures = {n: None if value is None else float(value) for n, value in found.items()}
            return {"figures": figures}, {}
        arrays: State = {"y": y, "p": p}
        groups: dict[str, list[str]] = {}
        if training.given["groups"] and data.test:
            for name, values in data.test_groups.items():
                labels, codes = np.unique(values, return_inverse=True)
                groups[name], arrays[f"group/{name}"] = labels.tolist(), codes.astype(np.int32)
        return {"groups": groups}, arrays


def wire_arrays(state: State) -> State:
    """The arrays of a state that an envelope carries; texts as their bytes."""
    found = dict(state)
    for name, array in state.items():
        if array.dtype.kind == "U":
            found[name] = np.frombuffer("\0".join(array.tolist()).encode(), np.uint8)
    return found


def load_kept(path: Path) -> Kept:
    """What was kept of a training; nothing if it never began."""
    if not path.exists():
        return Kept()
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        meta = json.loads(arrays.pop("meta").tobytes())
    except (OSError, ValueError, KeyError) as error:
        what = f"the site's state {path} cannot be read ({type(error).__name__})"
        raise RunError(f"{what}; delete it to start again") from None
    sides: dict[str, State] = {"before": {}, "after": {}}
    for name, array in arrays.items():
        side, rest = name.split("/", 1)
        sides[side][rest] = array
    return Kept(**{**meta, **sides})


def save_kept(path: Path, kept: Kept) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = vars(kept).copy()
    sides = {side: facts.pop(side) or {} for side in ("before", "after")}
    meta = json.dumps(facts).encode()
    arrays = {f"{side}/{name}": a for side, state in sides.items() for name, a in state.items()}
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, meta=np.frombuffer(meta, np.uint8), **arrays)
    write_whole(path, buffer.getvalue())


class Handler:
    """Answers one site's requests. ``home`` is the site's folder; a cohort's files and homes are
    relative to ``base``.

    Generated patients have their ledgers under ``ledgers`` (a run's folder), by default the home.
    """

    def __init__(
        self,
        settings: SiteSettings,
        home: Path,
        *,
        base: Path | None = None,
        ledgers: Path | None = None,
    ) -> None:
        self.settings, self.home = settings, home
        self._base, self._ledgers = base or home, ledgers or home
        self._studies: dict[tuple[str, int], Participant] = {}
        self._accepted = {wire.application_hash(), *settings.applications}
        self._counts = {"answered": 0, "refused": 0}
        self.status: dict[str, object] = {"site": settings.name, **self._counts, "last_error": None}
        (self._ledgers / "ledgers").mkdir(parents=True, exist_ok=True)

    def answer(self, data: bytes, app: str) -> bytes:
        """One request's answer, or the refusal; both are in the log, and both leave on a tick."""
        begun = time.monotonic()
        tick = self._tick(data)
        answered = self._answer(data, app)
        if tick:
            passed = time.monotonic() - begun
            time.sleep(max(0.0, math.ceil(passed / tick) * tick - passed))
        return answered

    def _tick(self, data: bytes) -> float:
        """Seconds between moments at which answers may leave, whatever the request holds."""
        if self.settings.tick is not None:
            return self.settings.tick
        if self.settings.cohort:
            return 0.0
        known = () if wire.opens(data) else self._studies.values()
        sizes = [found.world.sizes.get(self.settings.name, 1) for found in known]
        return TICK * math.ceil(max(sizes, default=1) / 1000)

    def _answer(self, data: bytes, app: str) -> bytes:
        what = "a request"
        try:
            if app not in self._accepted:
                raise Refused(
                    f"app {app[:16]} is not one that this site accepts; it runs none",
                    Reason.APPLICATION,
                )
            if len(data) > self.settings.largest_message:
                raise Refused(f"a message of {len(data)} bytes", Reason.TOO_LARGE)
            message = wire.unpack(data, request=True)
            given = wire.checked(message)
            what = _named(given)
            header, body = self._dispatch(given, message.body)
        except SutureError as error:
            return self._refuse(what, error)
        except Exception as error:
            # A fault must not leave the coordinator waiting; its words may hold a value.
            text = f"site {self.settings.name!r} failed: {fault(error)}"
            return self._refuse(what, RunError(text))
        log.info("%s: answered, %d bytes", what, len(body))
        self._counts["answered"] += 1
        self.note(
            **{key: given.get(key) for key in ("op", "method", "round", "seed") if key in given}
        )
        return wire.pack(wire.Message({"ok": True, "site": self.settings.name, **header}, body))

    def close(self) -> None:
        for participant in self._studies.values():
            participant.close()
        self._studies.clear()

    def _dispatch(self, given: wire.Request, body: bytes) -> tuple[wire.Header, bytes]:
        op = given["op"]
        if op == "open":
            return self._open(given["study"], given["seed"]).opened(), b""
        participant = self._participant(given)
        if op == "witness":
            return participant.witness(given["heads"]), b""
        if op == "join":
            return participant.join(given["sites"], given["vouched"]), b""
        if op == "people":
            return participant.people(given, body)
        arrays = _arrays(body)
        if op == "step":
            return participant.step(given, body)
        if op == "score":
            return participant.score(given, wire.joined(arrays, given["texts"]))
        return participant.stage(given, body)

    def _open(self, text: str, seed: int) -> Participant:
        made = Participant(self.settings, self.home, text, seed, self._base, self._ledgers)
        key = (made.digest, seed)
        if key not in self._studies:
            # One study at a time: the rows of the one before are dropped, its state is on disk.
            self.close()
            self._studies[key] = made
        return self._studies[key]

    def _participant(self, given: wire.Request) -> Participant:
        """A study that was opened since the site was last started; a coordinator opens it again
        after a restart. Generated patients are new for every seed; real ones are opened once for
        all seeds."""
        for (study, seed), found in self._studies.items():
            if study == given["study"] and (seed == given["seed"] or not found.world.generated):
                return found
        raise Refused(
            f"study {given['study'][:16]} with seed {given['seed']} is not open here",
            Reason.NOT_OPEN,
        )

    def _refuse(self, what: str, error: SutureError) -> bytes:
        reason = reason_of(error)
        log.warning("%s: refused (%s, %s): %s", what, reason.name, type(error).__name__, error)
        self._counts["refused"] += 1
        self.note(last_error=f"{what}: {error}")
        return wire.pack(wire.refusal(self.settings.name, reason))

    def note(self, **facts: object) -> None:
        """Change the status, which `suture site status` shows."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.status.update(self._counts, **facts, at=now)
        try:
            write_whole(self.home / STATUS, json.dumps(self.status).encode())
        except RunError as error:
            log.warning("the status cannot be written: %s", error)


def reason_of(error: SutureError) -> Reason:
    """What a coordinator is told of an error.

    >>> reason_of(DataError("column 'age': 3 rows with text")).name
    'TABLE'
    """
    if isinstance(error, Refused):
        return error.reason
    return next((reason for kind, reason in _REASONS if isinstance(error, kind)), Reason.FAULT)


_REASONS: tuple[tuple[type[SutureError], Reason], ...] = (
    (BudgetExhausted, Reason.BUDGET),
    (CharterError, Reason.CHARTER),
    (NotReady, Reason.READY),
    (RolledBack, Reason.WITNESS),
    (LedgerError, Reason.LEDGER),
    (DataError, Reason.TABLE),
    (StudyError, Reason.SETTINGS),
)


def _arrays(body: bytes) -> Arrays:
    """The arrays of a request: a body that is no envelope is the sender's fault, not the site's."""
    try:
        return unseal(body)
    except RunError as error:
        raise Refused(str(error), Reason.MESSAGE) from None


def _named(given: wire.Request) -> str:
    parts = [given["op"]]
    if "peer" in given:
        parts += [f"with {given['peer'][:40]!r}", f"{given['stage'][:10]!r}"]
    if "method" in given:
        parts += [f"{given['method'][:40]!r}", f"seed {given['seed']}"]
    if "round" in given:
        parts.append(f"round {given['round']}")
    return " ".join(parts)
