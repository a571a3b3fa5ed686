"""One study at one site: opened, joined, and then asked round by round. Everything that decides is the site's own.

The study arrives as text; the site builds the method from it with its own installed code, asks its gate, counts its
patients, plans its own noise, writes the promise into its own ledger, reads its rows, trains, and seals. What the
coordinator sends is only what the wire has keys for.

What the site keeps between rounds is on its disk, one file a training: the state before and after the last round it
answered, and which message that was. A site that is killed goes on from there. The same request again gives the same
bytes and is charged once (docs/design.md, "One release, one fingerprint, one charge").
"""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture import places, planning, world
from suture.describing import counted, describes
from suture.engines.masking import SiteSums, read_identity, sums_of
from suture.engines.settings import SiteSettings
from suture.errors import Refused, RunError
from suture.evaluation.metrics import measure
from suture.federation import participants, scheduled
from suture.gathering import is_reference
from suture.methods.base import Method, Phased
from suture.privacy.mechanisms import secure_key
from suture.protection.envelope import seal, unseal
from suture.site.hospital import Member, refusal
from suture.study import Study
from suture.world import World
from suture.writing import write_whole

State = dict[str, NDArray[Any]]


@dataclass
class Kept:
    """What a site keeps of one training: the last round it answered, to which message, and its state around it."""

    round: int = 0
    message: str = ""
    before: State | None = None
    after: State | None = None
    masked: int = 0
    """How many releases of that round went into a sum under masks."""


class Visit:
    """A study that was opened here; `join` makes the promise and reads the rows."""

    def __init__(self, settings: SiteSettings, home: Path, text: str, seed: int, base: Path, ledgers: Path) -> None:
        self.settings, self.home, self.text, self.seed, self._ledgers = settings, home, text, seed, ledgers
        asked = Study.from_text(text)
        if asked.cohort is not None and not settings.cohort:
            raise Refused(f"study {asked.name!r} is on a built-in cohort; this site takes part with its own rows only")
        if asked.cohort is None and settings.name not in [site.name for site in asked.sites]:
            raise Refused(f"study {asked.name!r} does not name this site ({settings.name!r})")
        own = tuple(settings.site() if site.name == settings.name else site for site in asked.sites)
        self.study = asked.model_copy(update={"sites": own})
        place = None if asked.cohort is not None else places.place_of(settings.site(), home)
        if settings.charter_needed and (place is None or place.papers.charter is None):
            raise Refused(
                f"this site takes part under a signed charter only, and holds none for study {asked.name!r} (charter.toml in "
                "its home, see: suture charter new)"
            )
        self.world = world.survey(self.study, base, seed, only=settings.name, place=place)
        if not self.world.sizes:
            raise Refused(f"study {asked.name!r} does not name this site ({settings.name!r})")
        self.patients = self.world.sizes[settings.name]
        self.joined = False
        self._sums = SiteSums(settings, home)

    @property
    def exact(self) -> str:
        """What may leave about test patients: the site's own setting, and never more than its charter allows."""
        if self.world.generated:
            return "scores"
        admission = self.world.admissions.get(self.settings.name)
        return self.settings.exact_metrics if admission is None or admission.exact_metrics else "none"

    def opened(self) -> dict[str, Any]:
        """What the site says about itself before it joins."""
        admission = self.world.admissions.get(self.settings.name)
        terms = admission.terms if admission else None
        if self.exact == "none" and (terms is None or "withheld" not in terms):
            terms = f"{terms}, exact figures withheld" if terms else "no charter, exact figures withheld"
        return {
            "patients": self.patients,
            "region": self.world.places[0].region,
            "generated": self.world.generated,
            "charter": terms,
            "exact": self.exact,
        }

    def join(self, sites: dict[str, Any]) -> dict[str, Any]:
        """Promise, then read the rows. ``sites`` are the public sizes of all sites, this one's among them."""
        name = self.settings.name
        if tuple(sites) != self.world.names:
            raise Refused(
                f"the sites of the study are {', '.join(self.world.names)[:400]}; found others, or another order"
            )
        if any(type(size) is not int or size < 1 for size in sites.values()) or sites[name] != self.patients:
            raise Refused(f"expected every site's number of patients, {self.patients} for {name!r}; found another")
        if "pooled" in self.study.methods:
            raise Refused("method 'pooled' moves rows to one place; they stay here")
        if not self.joined:
            self.world.sizes = dict(sites)
            world.promise(self.study, self.world, self._ledgers)
            world.read_rows(self.study, self.world)
            self.joined = True
        shown = describes(self.study, self.world) and self.exact != "none"
        data = self.world.hospitals[name].data
        return {
            "described": counted(data, self.world.class_count) if shown else {},
            "accounts": {
                f"{part.fold or 0}/{method}": self._account(part, method)
                for part in world.split(self.study, self.world)
                for method in self.study.methods
                if name in part.sizes
            },
            "identity": self._identity(),
            "warnings": list(data.loaded.warnings) if self.world.generated else [],
        }

    def _identity(self) -> str | None:
        if self.study.protection.sum != "masked":
            return None
        return read_identity(self.home, self.settings).public_key().public_bytes_raw().hex()

    def close(self) -> None:
        """Let go of the ledger."""
        for ledger in self.world.ledgers.values():
            ledger.close()

    def _part(self, fold: int) -> World:
        parts = world.split(self.study, self.world)
        found = {part.fold or 0: part for part in parts}.get(fold)
        if found is None:
            raise Refused(f"the study has no fold {fold}")
        return found

    def _training(self, given: dict[str, Any]) -> tuple[World, Method, Member, Path]:
        """The federation, the method and this site's part in one training, all made here from the study's text."""
        if not self.joined:
            raise Refused("the study was not joined here; join it first")
        name, part = given["method"], self._part(given["fold"])
        if name not in self.study.methods:
            raise Refused(f"method {name[:40]!r} is not one of the study's: {', '.join(self.study.methods)}")
        if not self._seed_of_the_study(given["seed"]):
            raise Refused(f"seed {given['seed']} is not one of the study's")
        method = planning.method_of(self.study, part, name)
        site = self.settings.name
        hospital = part.tested.get(site) or self.world.hospitals[site]
        noise = None
        if site in part.sizes:
            planned = planning.plan(self.study, part, method, site).get(site)
            noise = planned.noise_multiplier if planned else None
        account = planning.account(self.study, part, name)
        member = Member(hospital, account, noise, given["seed"])
        file = f"{name}-{given['seed']}-{given['fold']}.npz"
        return part, method, member, self.home / "federation" / hashlib.sha256(self.text.encode()).hexdigest() / file

    def _seed_of_the_study(self, seed: int) -> bool:
        return self.study.seed <= seed < self.study.seed + self.study.evaluation.seeds

    def step(self, given: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        """One round: the turn, the message and the budget are checked, and only then is anything computed."""
        part, method, member, path = self._training(given)
        if self._hidden(method):
            raise Refused(f"answers to {method.name!r} leave this site under masks only (stage by stage)")
        return self._release(given, part, method, member, path, body)

    def _hidden(self, method: Method) -> bool:
        """Whether the coordinator must see nothing but the sum. A coordinator is no party trusted not to look."""
        if is_reference(method):
            return False
        return self.study.protection.sum == "masked" or method.needs == "secure sum"

    def stage(self, given: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        """One exchange of a sum under masks; training and payment come with the stage `mask`."""
        part, method, member, path = self._training(given)
        if not self._hidden(method) or self.study.protection.sum != "masked":
            raise Refused('the study does not say protection.sum = "masked"')
        round_ = given["round"]
        now = scheduled(method, round_, self.study.method.rounds)
        if given["stage"] == "advertise":
            found = dict(unseal(body))
            if set(found) != {"session", "message"}:
                raise Refused("a sum begins with a session and the round's message")
            self._turn(part, round_)
            self._shapes(method, part, unseal(found["message"].tobytes()))
            chosen = participants(list(part.sizes), round_, self.study.method.participation, self.study.seed)
            mine = next((group for group in sums_of(now, chosen, round_) if self.settings.name in group), None)
            if mine is None:
                raise Refused(f"this site is in no sum of round {round_}")
            sizes = {site: part.sizes[site] for site in mine}
            return {}, seal(self._sums.begin(now, self.study.protection, sizes, round_, found, given))
        told: dict[str, Any] = {}

        def release(message: bytes) -> bytes:
            header, sealed = self._release(given, part, method, member, path, message, masked=True)
            told.update(header)
            return sealed

        header, arrays = self._sums.go_on(given["stage"], now, self.study.protection, round_, unseal(body), release)
        return {**told, **header}, seal(arrays)

    def _release(
        self,
        given: dict[str, Any],
        part: World,
        method: Method,
        member: Member,
        path: Path,
        body: bytes,
        masked: bool = False,
    ) -> tuple[dict[str, Any], bytes]:
        round_, spec = given["round"], self.study.method
        self._turn(part, round_)
        self._shapes(method, part, unseal(body))
        kept, mark = load_kept(path), hashlib.sha256(body).hexdigest()
        first = next((r for r in range(1, spec.rounds + 1) if self._takes_part(part, r)), 1)
        if round_ == first and (kept.round, kept.message) != (round_, mark):
            kept = Kept()  # the training starts, or starts again: state from another start must not leak into it
        if round_ < kept.round or (round_ == kept.round and mark != kept.message):
            raise Refused(
                f"round {round_} of {given['method']!r} was answered already, the last is {kept.round}; only its very "
                "message is answered again"
            )
        before = dict((kept.before if round_ == kept.round else kept.after) or {})
        member.own = dict(before)
        member.attempt = kept.masked if masked and round_ == kept.round else 0
        now = scheduled(method, round_, spec.rounds)
        if not member.can_pay(now, body, round_):
            raise refusal(self.settings.name, round_)
        sealed = member.step(now, body, round_)
        if round_ != kept.round or masked:
            save_kept(path, Kept(round_, mark, before, member.own, member.attempt + int(masked)))
        new = member.new_charges
        # After a new charge the next one is new too; after a repeated one it may be free again, so nothing is said.
        pays = not new or self._affords(method, member, round_ + 1)
        told = {"round": round_, "noise": member.noise, "new": new, "pays": pays}
        return {**told, "spent": member.spent() if self.study.private else None}, sealed

    def _account(self, part: World, name: str) -> dict[str, Any]:
        """What the ledger has paid for a training so far, and whether it pays for a first round.

        Where rounds were paid before, they may be free again, so nothing is said against it.
        """
        _, method, member, _ = self._training({"method": name, "fold": part.fold or 0, "seed": self.seed})
        charged = member.charged()
        spent = member.spent() if self.study.private and charged else 0.0
        return {"pays": charged or self._affords(method, member, 1), "spent": spent, "charged": charged}

    def _affords(self, method: Method, member: Member, round_: int) -> bool:
        """Whether the ledger would pay for a new release in this round, as far as the schedule says what it costs."""
        if round_ > self.study.method.rounds:
            return True
        if isinstance(method, Phased):
            event = method.round_event(round_, member.patients, member.noise)
        else:
            event = method.site_event(member.patients, member.noise)
        return all(ledger.can_pay(member.account, event, secure_key()) for ledger in member.hospital.ledgers)

    def _takes_part(self, part: World, round_: int) -> bool:
        chosen = participants(list(part.sizes), round_, self.study.method.participation, self.study.seed)
        return self.settings.name in chosen

    def _turn(self, part: World, round_: int) -> None:
        if not 1 <= round_ <= self.study.method.rounds:
            raise Refused(f"the study has rounds 1 to {self.study.method.rounds}, found {round_}")
        if not self._takes_part(part, round_):
            raise Refused(f"it is not this site's turn in round {round_}")

    def _shapes(self, method: Method, part: World, message: dict[str, Any]) -> None:
        """The message must look like the one that the method itself would send at the start; all values finite."""
        start = method.init(list(part.sizes), np.random.default_rng(0))
        looks = {name: (a.shape, a.dtype.str) for name, a in method.broadcast(start, self.settings.name).items()}
        found = {name: (a.shape, a.dtype.str) for name, a in message.items()}
        # The messages of a method with phases change with the phase and grow with the model; it checks them itself.
        if found != looks and not isinstance(method, Phased):
            raise Refused(f"the round's message should hold {_words(looks)}; found {_words(found)}")
        for name, array in message.items():
            if array.dtype.kind == "f" and not np.all(np.isfinite(array)):
                raise Refused(f"{name!r} of the round's message is not finite")

    def score(self, given: dict[str, Any], state: State) -> tuple[dict[str, Any], State]:
        """Exact labels and risks, or the site's own figures, where they may leave; uncharged, and stated as such."""
        part, method, member, path = self._training(given)
        if self.exact == "none":
            raise Refused("exact figures about patients do not leave this site (exact_metrics, or its charter)")
        if self.settings.name in part.sizes:
            member.own = dict(load_kept(path).after or {})
        y, p = member.scores(method, state)
        if self.exact == "figures":
            threshold = self.study.evaluation.threshold
            found = measure(y, p, threshold, rows=len(y)) if len(y) else {}
            return {"figures": {name: None if value is None else float(value) for name, value in found.items()}}, {}
        arrays: State = {"y": y, "p": p}
        groups: dict[str, list[str]] = {}
        test_groups = member.hospital.data.test_groups if given["groups"] and member.hospital.data.test else {}
        for name, values in test_groups.items():
            labels, codes = np.unique(values, return_inverse=True)
            groups[name], arrays[f"group/{name}"] = labels.tolist(), codes.astype(np.int32)
        return {"groups": groups}, arrays


def _words(looks: dict[str, Any]) -> str:
    return (
        ", ".join(f"{str(name)[:40]} {list(shape)} {kind}" for name, (shape, kind) in sorted(looks.items()))
        or "nothing"
    )


def load_kept(path: Path) -> Kept:
    """What was kept of a training; nothing if it never began."""
    if not path.exists():
        return Kept()
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        meta = json.loads(arrays.pop("meta").tobytes())
    except (OSError, ValueError, KeyError) as error:
        raise RunError(
            f"the site's state {path} cannot be read: {type(error).__name__}; delete it to start again"
        ) from None
    sides: dict[str, State] = {"before": {}, "after": {}}
    for name, array in arrays.items():
        side, rest = name.split("/", 1)
        sides[side][rest] = array
    return Kept(meta["round"], meta["message"], sides["before"], sides["after"], meta["masked"])


def save_kept(path: Path, kept: Kept) -> None:
    """Replace what is kept, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    meta = json.dumps({"round": kept.round, "message": kept.message, "masked": kept.masked}).encode()
    arrays: dict[str, Any] = {f"before/{name}": array for name, array in (kept.before or {}).items()}
    arrays |= {f"after/{name}": array for name, array in (kept.after or {}).items()}
    buffer = io.BytesIO()
    np.savez(buffer, meta=np.frombuffer(meta, np.uint8), **arrays)
    write_whole(path, buffer.getvalue())
