"""`suture audit`: the two-world test on what a site of a study really sends.

What runs is the real path: the study's method, model, clip and planned noise, inside `Member.step`,
with a throw-away ledger and a fresh secret for every run. It is an act of the site on its own
machine: the site's own ledger is not touched, no message leaves, none is kept, and the outcome
holds counts of guesses only. (These counts are computed from rows and no budget is charged for
them: they are for the site and its privacy officer, like `suture run`'s warnings.)

Three two-world tests and one of the noise's source, each with its own canary setting:

1. the first round as it is sent, all local steps, the smallest hospital's own rows;
2. one step with everybody in it: the same code, cut down until nothing dilutes a fault;
3. two such steps, the canary joining for the second: noise that is used twice cancels in the
   difference;
4. many messages about one table: noise from too small a seed repeats.

The canary is a patient with twelve rows, forty times (or more) outside the declared bounds, with
the outcome that the starting model is surest is wrong: it breaks clipping by row, clipping after
averaging, and noise that is too small. In the other world its place is taken by a *ghost*, a
patient who contributes nothing (the same rows with the outcome the model is sure of: the loss has
no gradient there). The site's size, which a study declares public, is then the same in both worlds,
and the test is about the patient and not about the size.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture.attacks.audit import Array, Audit, Claim, Mechanism, audit, repeated_noise, with_patient
from suture.engine import federation
from suture.engine import plan as planning
from suture.errors import StudyError
from suture.methods import registry
from suture.methods.base import Arrays, Method, Trained
from suture.methods.registry import MethodSpec
from suture.models.dense import Dense
from suture.privacy.door import rehearse
from suture.privacy.ledger.ledger import Budget, Ledger
from suture.privacy.noise.source import derive, secure_key
from suture.privacy.unit import Patients, concatenate
from suture.protection.envelope import seal, unseal
from suture.site.cohort import Loaded, SiteData
from suture.site.hospital import Hospital, Member
from suture.study import Study

ROWS_OF_CANARY = 12
TOO_FAR = (40.0, 400.0, 4000.0)
CLOSE_UP = 31
"""Patients beside the canary in the close-up."""
ACCOUNT = "audit"
_ALMOST_NO_NOISE = 1e-9
Floats = NDArray[np.float64]
Person = tuple[NDArray[np.float32], NDArray[np.int32]]


@dataclass(frozen=True)
class Subject:
    """What is audited: one site's step of one method, and the rows it runs on."""

    site: str
    method: Method
    noise: float
    message: Arrays
    rows: Patients
    delta: float
    accountant: str
    ledger: Ledger
    plan: str = "the study's first round"
    """What is stepped through: another training is another release, with its own charge and
    noise."""

    def claim(self, patients: int) -> Claim:
        """What the site's ledger would be charged for one step."""
        event = self.method.round_event(1, self.site, patients, self.noise)
        return Claim.of(event, self.delta, self.accountant)

    def step(self, table: Patients, secret: bytes, round_: int = 1) -> dict[str, Array]:
        """One step through the site's real path: charge, fingerprint, secret randomness, envelope."""
        loaded = Loaded(table.rows, table.patients, table.patients, 0, (0, 0))
        hospital = Hospital(self.site, SiteData(table, None, {}, loaded), (self.ledger,), secret)
        member = Member(hospital, ACCOUNT, self.noise, 0, self.plan)
        sent = unseal(member.step(self.method, seal(self.message), round_))
        # A method that sends nothing shows its model through predictions instead: that is what is
        # audited then.
        return dict(sent or member.own)

    def direction(self, absent: Patients, present: Patients, keys: int = 24) -> Floats:
        """How the canary moves the message: the mean difference without noise, sampled alike."""

        def clear(table: Patients, key: bytes) -> Floats:
            sent, own = rehearse(self.method, table, {}, self.message, _ALMOST_NO_NOISE, key)
            arrays = sent or own
            return np.concatenate([arrays[name].ravel() for name in sorted(arrays)]).astype(float)

        total = np.zeros(1)
        for i in range(keys):
            key = derive(b"direction of an audit's canary", i)
            total = total + (clear(present, key) - clear(absent, key))
        return total / keys


def audit_study(
    study: Study | str | Path,
    *,
    base: str | Path | None = None,
    site: str | None = None,
    trials: int = 1000,
    rate: float = 0.001,
    messages: int = 250_000,
    threads: int | None = None,
    key: bytes | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Audit what the smallest hospital (or ``site``) sends in a study's first round; plain values.

    ``trials`` are runs per world and test, ``rate`` the probability that a correct site is called
    broken by any of the tests together, ``messages`` how many are drawn in search of repeated noise
    (0: leave that test out).
    """
    if not isinstance(study, Study):
        base = base or Path(study).resolve().parent
        study = Study.from_toml(study)
    subject = _subject(study, Path(base or ".").resolve(), site)
    secret = secure_key() if key is None else key
    audits, left_out, share = [], [], rate / 3
    say(f"auditing {subject.site!r}: {subject.rows.patients:,} patients, {trials:,} runs per world")
    pair = _saturated(subject)
    if pair is None:
        left_out.append(
            "the first round as sent: this model cannot be made sure of any patient (bounded "
            "activations), so there is no patient who contributes nothing to put in the canary's "
            "place"
        )
    else:
        absent, present = (with_patient(subject.rows, *who) for who in pair)
        claim, along = subject.claim(absent.patients), subject.direction(absent, present)
        found = audit(
            subject.step, absent, present, claim, trials=trials, rate=share, direction=along,
            threads=threads or os.cpu_count() or 1, key=derive(secret, "round"),
            what="the first round as sent",
        )  # fmt: skip
        audits.append(found)
        say(f"{found.what}: {found.verdict}")
    for found in _close_ups(subject, trials, share, derive(secret, "close-up")):
        audits.append(found)
        say(f"{found.what}: {found.verdict}")
    checks = [found.to_dict() for found in audits]
    if messages:
        checks.append(_noise_source(study, subject, messages, rate, derive(secret, "streams")))
        say(f"{checks[-1]['what']}: {checks[-1]['verdict']}")
    else:
        left_out.append("no noise is used twice: not tested, as requested")
    subject.ledger.close()
    broken = [check for check in checks if check["broken"]]
    worst = max(audits, key=lambda found: (found.broken, found.measured - found.claim.epsilon))
    figures = worst.to_dict()
    return {
        "study": study.name,
        "site": subject.site,
        "method": subject.method.name,
        "patients": subject.rows.patients,
        "verdict": broken[0]["verdict"] if broken else "consistent with the claim",
        "broken": bool(broken),
        "measured": figures["measured"]["epsilon"],
        "claimed": figures["claimed"]["epsilon"],
        "delta": subject.delta,
        "noise_multiplier": subject.noise,
        "trials": trials,
        "rate": rate,
        "tests": checks,
        "left_out": left_out,
        "scope": (
            "computed inside the site from its own rows; nothing was sent and the site's ledger "
            "was not charged. An audit can refute a claim, it cannot prove one"
        ),
    }


def _subject(study: Study, base: Path, site: str | None) -> Subject:
    """The study's own method at its smallest hospital, with the noise that the plan gives it."""
    if study.privacy is None:
        raise StudyError(
            "this study promises no privacy, so there is no claim to audit; add a [privacy] table"
        )
    here = federation.survey(study, base, study.seed)
    plan = planning.plan_of(study, here, study.method.name)
    method, plans = plan.method, plan.sites
    if method.phased:
        claims = (
            "its claim is about the sum over all sites, of whose noise one site's message carries a "
            "share only, so two worlds at one site can neither refute nor support it"
            if method.needs == "secure sum"
            else "its rounds ask for votes and counts, for which there is no canary: a patient far "
            "outside the bounds moves them no more than any other"
        )
        raise StudyError(
            "suture audit tests what one site's local training sends in the first round; "
            f"{study.method.name} spends its budget over rounds of several kinds, and {claims}. Its "
            "mechanisms are held by enumeration and by audits of their own (docs/audit.md, What is "
            f"not audited); audit a study with another method, for example {MethodSpec().name}"
        )
    names = [place.name for place in here.places]
    if site is not None and (site not in names or method.pooled):
        raise StudyError(f"unknown site {site!r}; expected one of {', '.join(names)}")
    chosen = site or min(names, key=lambda name: here.sizes[name])
    wanted = [place for place in here.places if method.pooled or place.name == chosen]
    chosen = planning.POOLED if method.pooled else chosen
    federation.ask_ready(study, replace(here, places=tuple(wanted)), needed=True)
    parts = [federation.load_site(study, here, place).train for place in wanted]
    state = method.init(names, np.random.default_rng([study.seed, 1]))
    ledger = Ledger.open(None, chosen)
    ledger.open_study(ACCOUNT, Budget(float("inf"), study.privacy.delta, study.privacy.accountant))
    noise, message = plans[chosen].noise_multiplier, method.broadcast(state, chosen)
    rows = parts[0] if len(parts) == 1 else concatenate(parts)
    promise = (study.privacy.delta, study.privacy.accountant)
    return Subject(chosen, method, noise, message, rows, *promise, ledger)


def _corners(features: int) -> NDArray[np.float32]:
    """Candidate patients: corners of the declared bounds (features are scaled into about -1..1)."""
    rng = np.random.default_rng(7)
    return rng.choice(np.array([-1.0, 1.0], np.float32), (256, features))


def _saturated(subject: Subject) -> tuple[Person, Person] | None:
    """Ghost and canary: rows that the starting model is sure of, with the right and wrong outcome.

    Sure means a probability of exactly 0 or 1 in float32 at half the distance, so that small steps
    do not change it.
    """
    corners = _corners(subject.rows.features)
    for scale in TOO_FAR:
        p = _risk(subject, corners * np.float32(scale / 2))
        sure = np.flatnonzero((p == 0.0) | (p == 1.0))
        if len(sure):
            x = np.repeat(corners[sure[:1]] * np.float32(scale), ROWS_OF_CANARY, axis=0)
            outcome = np.full(ROWS_OF_CANARY, int(p[sure[0]]), np.int32)
            return (x, outcome), (x, 1 - outcome)
    return None


def _balanced(subject: Subject) -> tuple[Person, Person]:
    """Ghost and canary for models that are never sure: at risk 1/2, both outcomes cancel out."""
    corners = _corners(subject.rows.features)
    p = _risk(subject, corners)
    low, high = corners[np.argmin(p)].astype(np.float64), corners[np.argmax(p)].astype(np.float64)
    if not p.min() < 0.5 < p.max():
        raise StudyError(
            "no canary fits this model: its starting risk does not depend on the features"
        )
    for _ in range(60):
        middle = (low + high) / 2
        below = _risk(subject, middle[None].astype(np.float32))[0] < 0.5
        low, high = (middle, high) if below else (low, middle)
    x = np.repeat(low[None].astype(np.float32), ROWS_OF_CANARY, axis=0)
    half = np.arange(ROWS_OF_CANARY) % 2
    return (x, half.astype(np.int32)), (x, np.ones(ROWS_OF_CANARY, np.int32))


def _risk(subject: Subject, x: NDArray[np.float32]) -> NDArray[np.float32]:
    state = {name: np.asarray(array) for name, array in subject.message.items()}
    network = _trained(subject.method).network
    if not isinstance(network, Dense) or "params" not in state:
        raise StudyError(
            f"method {subject.method.name!r} has no dense model to place a canary for; use "
            "suture.attacks.audit"
        )
    return network.predict(np.asarray(state["params"], np.float32), x)


def _trained(method: Method) -> Trained:
    if not isinstance(method, Trained):
        raise StudyError(
            f"method {method.name!r} has no local training settings; audit it with "
            "suture.attacks.audit"
        )
    return method


def _close_ups(subject: Subject, trials: int, share: float, key: bytes) -> Iterator[Audit]:
    """Tests 2 and 3: one step in which every patient takes part, alone and after another one."""
    rows, few = subject.rows, min(CLOSE_UP, subject.rows.patients)
    end, group = rows.starts[few], None if rows.group is None else rows.group[:few]
    table = Patients(rows.x[:end], rows.y[:end], rows.starts[: few + 1], group)
    trained = _trained(subject.method)
    method = replace(trained, local=replace(trained.local, batch=few + 1, epochs=1))
    near = replace(subject, method=method, rows=table, plan="close-up")
    absent, present = (with_patient(table, *who) for who in _saturated(near) or _balanced(near))
    along = near.direction(absent, present, keys=1)
    along = along / np.linalg.norm(along)
    claim = near.claim(few + 1)

    def joins(who: Patients, secret: bytes) -> dict[str, Array]:
        before, after = near.step(absent, secret, 1), near.step(who, secret, 2)
        return {name: after[name].astype(float) - before[name].astype(float) for name in after}

    tests: dict[str, Mechanism] = {
        "one step with everybody in it": near.step,
        "the canary joins for a second step": joins,
    }
    for i, (what, mechanism) in enumerate(tests.items(), start=1):
        yield audit(
            mechanism, absent, present, claim, trials=trials, rate=share, direction=along,
            key=derive(key, i), what=what,
        )  # fmt: skip


def _noise_source(
    study: Study, subject: Subject, messages: int, rate: float, key: bytes
) -> dict[str, Any]:
    """Test 4, with a model of one layer: the noise's source does not depend on the model."""
    network = Dense((max(8, subject.rows.features), 1))
    local = replace(planning.local_settings(study), epochs=1, noise_multiplier=None)
    method = registry.build(study.method.name, study.method, network, local)
    width = network.sizes[0]
    table = Patients(np.zeros((1, width), np.float32), np.zeros(1, np.int32), np.arange(2))
    message = method.broadcast(method.init([subject.site], np.random.default_rng(0)), subject.site)

    def one(secret: bytes) -> Array:
        sent, own = rehearse(method, table, {}, message, subject.noise, secret)
        return next(iter(dict(sent or own).values()))

    return repeated_noise(one, messages=messages, rate=rate, key=key).to_dict()
