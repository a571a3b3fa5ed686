"""FedAvg with a demographic-parity penalty, in a form with a proof. After "Federated Differential
Privacy-Aware Ensemble for Fair AI-Care in Radiology Imaging" (fair radiology), sections 3.1 to 3.3.

The paper's penalty, the sum over groups of |rate of group g - overall rate|, couples patients: its
sign and its 1/n_g depend on everybody, so clipping each patient's gradient bounds nothing. Here the
coupling goes through what was *released*:

1. Each hospital sends s_g, the sum of its patients' risks in group g, with noise. A patient has one
   group and a risk within 0..1 (the mean over their rows), so they move the vector s by at most 1.
   In the first round the model knows nothing yet, and the number of patients in each group is sent
   instead: the same sensitivity.
2. The server freezes a_g = tanh(sum of the noisy gaps of all rounds so far / `SCALE`) and n_g =
   max(noisy count, n_min). The sum instead of the last gap alone is ours: it averages noise, and it
   goes back once a gap has turned round, where a sign would swing the model to and fro.
3. In the next round's local training patient i has the loss CE_i + lambda (a_g N / n_g - sum_h a_h)
   p_i, g being their group: the paper's penalty times N, linearised at the frozen signs. All
   weights are constants by then, so the gradient of patient i depends on nobody else; it is
   clipped, summed and noised as in every method.
4. A round's event is the composition of its local training and of the release of s. In the
   full-batch case the total is mu^2 = T (1/sigma^2 + 1/sigma_s^2).

When the noisy gap is over `threshold` although the push is at its limit, the server multiplies
lambda by `boost` for the next round, up to `MOST` times its start: the paper's fairness boost,
decided on figures that are already paid for.

| here | paper |
|---|---|
| `fairness` | lambda |
| tanh of `pressure`, `counts` | sign(p_g - p), N_g |
| `threshold`, `boost` | "if metrics exceed thresholds, a fairness-boost penalty is added" |
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dp_accounting
import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Setting

from suture.errors import RunError, StudyError
from suture.methods.base import (
    Answer,
    Arrays,
    Needs,
    State,
    Trained,
    local_delta,
    local_event,
    mean_delta,
    start_weights,
    weights_field,
    with_momentum,
)
from suture.methods.declared import Citation, Declared, Settings, Setup
from suture.methods.fedavg import PAPER
from suture.privacy.door import Payload, Rows, Sealed, Session
from suture.privacy.unit import Patients
from suture.protection.secure_sum import Grid, Share, gaussian_cost, on_grid
from suture.schema.message import Field
from suture.training.local import sampling_rate, steps
from suture.training.mechanism import groups_of

Floats = NDArray[np.float64]
SCALE = 0.4
"""Gaps that add up to this get tanh(1) = 0.76 of the full push."""
LIMIT = 1.5
"""The pressure stays within this, so that it can go back soon; from 1 on, more of it brings little
and lambda is boosted."""
MEMORY = 0.5
"""The rates that thresholds and pages look at are a running mean of the released ones: a third of
the noise variance."""
MOST = 32.0
LEAST = 0.02
"""A group counts as at least this share of all patients: n_min, so that a small group's noise is
not blown up."""
DELTA_STEPS = 2.0**24
"""Grid of the weighted updates in a secure sum; they carry their noise already, so rounding is
post-processing."""


@dataclass(frozen=True)
class FairFed(Trained):
    """FedAvg on a penalised loss. ``protected`` groups are declared in public; ``parties`` and
    ``patients`` are public."""

    protected: tuple[str, ...]
    fairness: float = 0.5
    share: float = 0.1
    threshold: float = 0.05
    boost: float = 1.5
    every: int = 1
    secure: bool = True
    honest: float = 0.5
    parties: int = 1
    patients: int = 1 << 40
    momentum: float = 0.0
    name: str = "fairfed"
    label: str = "FedAvg, fair"
    phased: bool = True

    def __post_init__(self) -> None:
        if len(self.protected) < 2:
            raise StudyError(
                'method "fairfed" needs the groups to treat alike; in [schema]: protected = { '
                'column = "sex", '
                'values = ["F", "M"] }, with the column in groups'
            )

    @property
    def needs(self) -> Needs:
        """With ``secure`` the noise of the rates is shared out, so the server may see nothing but
        sums."""
        return "secure sum" if self.secure else "sum"

    @property
    def honest_sites(self) -> int:
        """Of how many sites a sum counts on the noise; without a secure sum every site adds all of
        its own."""
        return max(1, math.ceil(self.honest * self.parties)) if self.secure else 1

    @property
    def penalty(self) -> float:
        return self.fairness

    # --- privacy: known before rows are touched ------------------------------------------------------------------------

    def rates_rho(self, patients: int, noise: float) -> float:
        """What one release of the rates costs (rho of a `Grid`): ``share`` of the round, the training's cost
        being approximated by steps q^2 (exp(1/z^2) - 1) / 2 (Dong, Roth, Su 2022, Corollary 5.4).
        Only the split rests on it, not the proof. With a release every so many rounds only, each
        may cost that many times as much.
        """
        rate = sampling_rate(patients, self.local.batch)
        each = 1 / noise**2 if rate == 1 else rate**2 * math.expm1(min(1 / noise**2, 50.0))
        return self.every * self.share / (1 - self.share) * steps(patients, self.local) * each / 2

    def asks(self, done: int) -> bool:
        """Whether the round after ``done`` rounds asks for rates: the first, which counts, then
        every so many."""
        return done % self.every == 0

    def expects(self, round_: int, site: str) -> Mapping[str, Field]:
        """The model, and the frozen weights of the penalty."""
        return {
            "params": weights_field(self.network),
            "pushes": Field("<f4", (len(self.protected) + 1,)),
        }

    def round_event(
        self, round_: int, site: str, size: int, noise: float | None
    ) -> dp_accounting.DpEvent:
        """Local DP-SGD, and the rates in the rounds of the public schedule of `asks`."""
        training = local_event(self.local, size, noise)
        if noise is None or not self.asks(round_ - 1):
            return training
        rates = gaussian_cost(self.rates_rho(size, noise))
        return dp_accounting.ComposedDpEvent([training, rates])

    def mechanism(self) -> str:
        """For the privacy statement."""
        words = (
            "In every round each hospital sent a model update by DP-SGD, clipped by patient, and "
            + self._when()
            + " for each of the "
            f"{len(self.protected)} protected groups the sum of its patients' risks (in the first "
            "round their number) with "
            "discrete Gaussian noise; a patient moves these sums by at most 1. "
        )
        if self.secure:
            words += (
                "ASSUMPTION for the sums of risks: the server sees only totals over all "
                f"{self.parties} hospitals (a secure sum), and at least "
                f"{self.honest_sites} of the hospitals add their share of the noise and keep it to "
                "themselves. The updates do "
                "not rest on it: each carries all of its own noise. "
            )
        return words + "Proof: docs/fairness.md."

    def _when(self) -> str:
        return "then" if self.every == 1 else f"every {self.every} rounds"

    # --- the server's side ---------------------------------------------------------------------------------------------

    def init(self, sites: Sequence[str], rng: np.random.Generator) -> State:
        """One model; no gap is known."""
        count = len(self.protected)
        return {
            **start_weights(self.network, rng),
            "t": np.array(0),
            "pressure": np.zeros(count, np.float64),
            "counts": np.ones(count, np.float32),
            "rates": np.zeros(count, np.float64),
            "weight": np.array(self.fairness, np.float32),
        }

    def broadcast(self, state: State, site: str) -> Arrays:
        """The model, and the frozen weights of the penalty."""
        return {
            "params": state["params"],
            "pushes": pushes(np.tanh(state["pressure"]), state["counts"], float(state["weight"])),
        }

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        """FedAvg; then gaps, signs and lambda for the next round: post-processing of releases and
        public sizes."""
        if self.secure:
            whole = np.sum([answer.payload["delta"] for answer in answers], axis=0)
            step = (
                whole.astype(np.float64) / DELTA_STEPS / sum(answer.patients for answer in answers)
            )
        else:
            step = mean_delta(answers, "size")
        new = {
            **state,
            **with_momentum(state, step, self.momentum),
            "t": np.array(int(state["t"]) + 1),
        }
        if not self.asks(int(state["t"])):
            return new
        words = np.sum([answer.payload["sums"] for answer in answers], axis=0)
        if words.shape != (len(self.protected),):
            raise RunError(
                f"expected a sum for each of {len(self.protected)} groups, found shape "
                f"{words.shape}"
            )
        sums, people = (
            Grid(1.0, None, len(self.protected)).open(words),
            sum(answer.patients for answer in answers),
        )
        if int(state["t"]) == 0:
            new["counts"] = np.clip(sums, LEAST * people, people).astype(np.float32)
            return new
        fresh = np.clip(sums / state["counts"], 0, 1)
        memory = MEMORY if int(state["t"]) > self.every else 0.0
        new["rates"] = memory * state["rates"] + (1 - memory) * fresh
        new["pressure"] = np.clip(
            state["pressure"] + gaps_of(fresh, state["counts"]) / SCALE, -LIMIT, LIMIT
        )
        gap = gaps_of(new["rates"], state["counts"])
        # Over the threshold, and pushed as hard as lambda allows in the direction that would close
        # it.
        held = (np.abs(new["pressure"]) >= 1) & (np.sign(new["pressure"]) == np.sign(gap))
        over = float(np.max(gap) - np.min(gap)) > self.threshold
        weight = float(state["weight"]) * (self.boost if over and bool(held.any()) else 1.0)
        new["weight"] = np.array(min(weight, MOST * self.fairness), np.float32)
        return new

    def facts(self, state: State) -> dict[str, object]:
        """What the server knows, all of it released: the groups' mean risks and the penalty's
        weight."""
        known = zip(self.protected, state["rates"].tolist(), strict=True)
        return {"released_mean_risk": dict(known), "fairness_weight": float(state["weight"])}

    # --- the site's side -----------------------------------------------------------------------------------------------

    def site_step(self, session: Session, own: State, message: Arrays) -> tuple[Payload, State]:
        """Noisy group sums at the model as it came, where asked for, and local training on the
        penalised loss."""
        extra = {"pushes": np.asarray(message["pushes"], np.float32)}
        delta = local_delta(session, self.network, self.local, message["params"], extra=extra)
        answer = {"delta": delta}
        if self.secure:
            size = session.size
            answer["delta"] = delta.then(lambda found: _weighted(found, size))
        if self.asks(session.round - 1):
            answer["sums"] = self._sums(session, np.asarray(message["params"], np.float32))
        return answer, own

    def _sums(self, session: Session, params: NDArray[np.float32]) -> Sealed:
        """Each group's sum of risks (in the first round the number of its patients), with this
        site's noise."""
        count, noise = len(self.protected), session.noise
        rho = None if noise is None else self.rates_rho(session.size, noise)
        first = session.round == 1

        def each(data: Patients) -> Rows:
            rows = np.diff(data.starts)
            risk = (
                np.ones(data.patients)
                if first
                else patient_risk(self.network.predict(params, data.x), data.starts)
            )
            group = np.repeat(groups_of(data, count), rows)
            return (group[:, None] == np.arange(count)).astype(np.float32), np.repeat(
                risk / rows, rows
            )

        return session.release("rates", Share(Grid(1.0, rho, count, self.honest_sites)), each)


class Fair(Settings):
    """The penalty's settings."""

    fairness: float = Setting(default=0.5, ge=0)
    fairness_share: float = Setting(default=0.1, gt=0, lt=1)
    gap_threshold: float = Setting(default=0.05, ge=0)
    boost: float = Setting(default=1.5, ge=1)
    rates_every: int = Setting(default=1, ge=1)
    secure_rates: bool = True
    honest: float = Setting(default=0.5, gt=0, le=1)
    server_momentum: float = Setting(default=0.0, ge=0, lt=1)


def build(setup: Setup) -> FairFed:
    """From a study."""
    own, public = Fair.model_validate(setup.settings), setup.public
    if own.secure_rates and setup.participation < 1:
        raise StudyError(
            "method.participation: the secure sum of fairfed's rates needs every site in every "
            "round; set it to 1, or secure_rates = false"
        )
    protected = public.schema.protected if public.schema else None
    unknown = ("first", "second") if public.schema is None else ()
    return FairFed(
        setup.network,
        setup.local,
        protected.values if protected else unknown,
        own.fairness,
        own.fairness_share,
        own.gap_threshold,
        own.boost,
        own.rates_every,
        own.secure_rates,
        own.honest,
        public.sites,
        public.patients,
        own.server_momentum,
    )


DECLARED = Declared(
    "fairfed",
    build,
    Fair,
    cites=(
        Citation(
            "Federated Differential Privacy-Aware Ensemble for Fair AI-Care in Radiology Imaging",
            "freederia",
            2025,
            "DEV Community",
        ),
        PAPER,
    ),
    # Its penalty trades the metric away on purpose: not something to search by that metric.
    global_model=True,
)


def pushes(signs: NDArray[Any], counts: NDArray[np.float32], weight: float) -> NDArray[np.float32]:
    """What a patient's risk is multiplied by in the loss, for each group and, last, for no group.

    lambda (a_g N / n_g - sum_h a_h), N being the sum of the n_g.

    >>> pushes(np.array([1.0, -1.0]), np.array([300.0, 100.0]), 0.5).tolist()
    [0.6666666865348816, -2.0, -0.0]
    """
    together = float(np.sum(signs))
    each = signs * (np.sum(counts) / counts) - together
    return np.asarray(weight * np.append(each, -together), np.float32)


def _weighted(delta: NDArray[Any], size: int) -> NDArray[np.int64]:
    """An update times the site's declared size, on a grid: it carries its noise already, so this is
    post-processing."""
    return np.rint(on_grid(size * delta.astype(np.float64), DELTA_STEPS, len(delta))).astype(
        np.int64
    )


def gaps_of(rates: Floats, counts: NDArray[np.float32]) -> Floats:
    """Each group's rate less the overall rate.

    >>> gaps_of(np.array([0.2, 0.6]), np.array([300.0, 100.0], np.float32)).round(6).tolist()
    [-0.1, 0.3]
    """
    return rates - float(rates @ counts / counts.sum())


def patient_risk(p: NDArray[np.float32], starts: NDArray[np.int64]) -> Floats:
    """A patient's risk, within 0..1: the mean over their rows; with several classes, of any outcome
    but the first.

    >>> patient_risk(np.array([0.5, 0.25, 0.75], np.float32), np.array([0, 1, 3])).tolist()
    [0.5, 0.5]
    """
    risk = p.astype(np.float64) if p.ndim == 1 else 1 - p[:, 0].astype(np.float64)
    # What is not a number counts as 0: the bound on a patient's part must hold whatever the rows
    # are.
    means = np.add.reduceat(np.append(np.nan_to_num(risk), 0.0), starts[:-1]) / np.diff(starts)
    clipped: Floats = np.clip(means, 0.0, 1.0)
    return clipped
