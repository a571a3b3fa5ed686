"""Every hospital keeps a model of its own beside the global one: alpha p(own) + (1 - alpha)
p(global). Fair radiology, section 3.4.

Around any method that ends in one global model. In the last round, after its answer is made, a site
goes on from the global model by itself for `epochs` passes over four fifths of its patients,
*without noise*, and chooses alpha on the other fifth: the one with the smallest loss there, plus
(for a fair method) lambda times the gap between the groups.

**What a prediction means.** Own model and alpha are computed from patients without noise, so no
promise covers them: they stay in the site's own state, are never sent, and the ensemble's
predictions are for the site's own clinicians. The promise, which is about what *leaves* the site,
is that of the method inside, unchanged. Whoever wants to show the ensemble's predictions to others
must train with `finetune`, whose own models are paid for.

| here | paper |
|---|---|
| `own[OWN]`, `own[ALPHA]` | theta_i, alpha |
| `state["params"]` | theta* |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import dp_accounting
import numpy as np
from numpy.typing import NDArray

from suture.methods.base import Answer, Arrays, Method, Phased, State, Telling
from suture.methods.fairfed import LIMIT, gaps_of, patient_risk, pushes
from suture.models.network import Network
from suture.privacy.door import LOCAL, Payload, Session
from suture.privacy.noise.source import derive, generator
from suture.privacy.unit import Patients
from suture.schema.message import Field
from suture.training.local import Local
from suture.training.mechanism import by_row, train

ALPHAS = np.linspace(0.0, 1.0, 11)
OWN, ALPHA = LOCAL + "params", LOCAL + "alpha"
HELD_BACK = 0.2
"""The share of a site's training patients on which alpha is chosen."""
OWN_SCALE = 0.2
"""Own gaps that add up to this get tanh(1) = 0.76 of the full push; smaller than `fairfed.SCALE`,
since they carry no noise."""
FEWEST = 10
"""With fewer patients than this nothing is held back and alpha stays 0: there is nothing to choose
it on."""


@dataclass(frozen=True)
class Ensemble:
    """The method inside, and one model more at each site."""

    inner: Method
    network: Network
    local: Local
    rounds: int
    epochs: int = 5
    rate: float = 0.05
    fairness: float = 0.0
    """A fair method's lambda, for choosing alpha; 0 where the method inside knows no groups."""
    own_fairness: float = 1.0
    """Lambda of the site's own training, which sees its own gap exactly and after every pass."""

    @property
    def name(self) -> str:
        """The inner method's: the same account pays for it."""
        return self.inner.name

    @property
    def label(self) -> str:
        """As written in a table."""
        return f"{self.inner.label}, ensemble"

    @property
    def needs(self) -> Literal["sum", "each", "secure sum"]:
        """What the inner method needs."""
        return self.inner.needs

    @property
    def honest_sites(self) -> int:
        """What the inner method counts on."""
        return self.inner.honest_sites

    @property
    def weighting(self) -> Literal["size", "uniform"]:
        """As the inner method weighs."""
        return self.inner.weighting

    @property
    def pooled(self) -> bool:
        """What the inner method is."""
        return self.inner.pooled

    @property
    def by_size(self) -> bool:
        """As for the inner method; local training always depends on how many patients there are."""
        return self.inner.by_size if isinstance(self.inner, Phased) else True

    def init(self, sites: Sequence[str], rng: np.random.Generator) -> State:
        """The inner state."""
        return self.inner.init(sites, rng)

    def broadcast(self, state: State, site: str) -> Arrays:
        """The inner message."""
        return self.inner.broadcast(state, site)

    def expects(self, round_: int, site: str) -> Mapping[str, Field]:
        """The inner message."""
        return self.inner.expects(round_, site)

    def round_event(
        self, round_: int, site: str, size: int, noise: float | None
    ) -> dp_accounting.DpEvent:
        """What the inner method's answer costs: nothing else leaves."""
        return self.inner.round_event(round_, site, size, noise)

    def mechanism(self) -> str:
        """For the privacy statement: what leaves, and what does not."""
        inside = (
            self.inner.mechanism()
            if isinstance(self.inner, Phased)
            else "In every round each hospital sent a model update by DP-SGD, clipped by patient. "
        )
        return (
            inside
            + " Beside this each hospital keeps a model of its own and a weight alpha, trained on its patients without "
            "noise. They never leave the hospital and no promise covers them: predictions of the "
            "ensemble are for the "
            "hospital's own clinicians, and must not be shown to others."
        )

    def site_step(self, session: Session, own: State, message: Arrays) -> tuple[Payload, State]:
        """The inner step; in the last round the site's own model too, which stays."""
        payload, kept = self.inner.site_step(session, own, message)
        if session.round < self.rounds:
            return payload, kept
        begin = np.ascontiguousarray(message["params"], np.float32)
        return payload, {
            **kept,
            **session.keep("own model", lambda data, key: self._own(data, begin, key)),
        }

    def _own(self, data: Patients, begin: NDArray[np.float32], key: bytes) -> State:
        order = generator(derive(key, "held back")).permutation(data.patients)
        held = round(HELD_BACK * data.patients) if data.patients >= FEWEST else 0
        back, rest = _some(data, np.sort(order[:held])), _some(data, np.sort(order[held:]))
        local = replace(
            self.local,
            epochs=self.epochs,
            rate=self.rate,
            clip=None,
            noise_multiplier=None,
            most_steps=0,
        )
        trained = self._trained(begin, rest, local, key)
        if not held:
            return {"params": trained, "alpha": np.array(0.0)}
        mine, theirs = self.network.predict(trained, back.x), self.network.predict(begin, back.x)
        losses = [self._loss(a * mine + (1 - a) * theirs, back) for a in ALPHAS]
        return {"params": trained, "alpha": np.array(ALPHAS[int(np.argmin(losses))])}

    def _trained(
        self, begin: NDArray[np.float32], data: Patients, local: Local, key: bytes
    ) -> NDArray[np.float32]:
        """The site's own model; for a fair method with the penalty of `fairfed`, pass by pass.
        Nothing of this leaves, so gap and counts are exact, and the push follows the site's own
        gap, which may be another than the federation's: labels are not biased everywhere."""
        groups = 1 + int(data.group.max(initial=-1)) if data.group is not None else 0
        if not self.fairness or data.group is None or groups < 2:
            return train(self.network, begin, data, local, derive(key, "training"))
        known = data.group >= 0
        counts = np.maximum(np.bincount(data.group[known], minlength=groups), 1).astype(np.float32)
        trained, pressure, once = begin, np.zeros(groups), replace(local, epochs=1)
        for epoch in range(self.epochs):
            risk = patient_risk(self.network.predict(trained, data.x), data.starts)
            means = np.bincount(data.group[known], risk[known], groups) / counts
            pressure = np.clip(pressure + gaps_of(means, counts) / OWN_SCALE, -LIMIT, LIMIT)
            weights = by_row(
                pushes(np.tanh(pressure), counts, self.own_fairness), data.group, data.starts
            )
            trained = train(
                self.network, trained, data, once, derive(key, f"training {epoch}"), None, weights
            )
        return trained

    def _loss(self, p: NDArray[Any], data: Patients) -> float:
        """Mean log loss, and for a fair method the gap between groups' mean risks."""
        safe = np.clip(p.astype(np.float64), 1e-7, 1 - 1e-7)
        if safe.ndim == 1:
            found = -np.mean(np.where(data.y == 1, np.log(safe), np.log(1 - safe)))
        else:
            found = -np.mean(np.log(safe[np.arange(len(safe)), data.y]))
        if not self.fairness or data.group is None:
            return float(found)
        rows = np.repeat(data.group, np.diff(data.starts))
        risk = p if p.ndim == 1 else 1 - p[:, 0]
        means = [float(np.mean(risk[rows == code])) for code in np.unique(rows[rows >= 0])]
        return float(found) + self.fairness * (max(means) - min(means) if means else 0.0)

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        """The inner method's."""
        return self.inner.server_step(state, answers)

    def predict(
        self, state: State, own: State, x: NDArray[np.float32], site: str
    ) -> NDArray[np.float32]:
        """The mixture at a site that has a model of its own; elsewhere the global model."""
        overall = self.inner.predict(state, own, x, site)
        if ALPHA not in own:
            return overall
        alpha = np.float32(own[ALPHA])
        mixed: NDArray[np.float32] = (
            alpha * self.network.predict(own[OWN], x) + (1 - alpha) * overall
        )
        return mixed

    def parts(
        self, state: State, own: State, x: NDArray[np.float32], site: str
    ) -> dict[str, NDArray[np.float32]]:
        """The global model's risk and that of the site's own model."""
        mine = (
            self.network.predict(own[OWN], x)
            if OWN in own
            else self.inner.predict(state, own, x, site)
        )
        return {"global model": self.inner.predict(state, own, x, site), "own model": mine}

    def facts(self, state: State) -> dict[str, object]:
        """What the inner method says; alpha stays at the sites."""
        return dict(self.inner.facts(state)) if isinstance(self.inner, Telling) else {}


def _some(data: Patients, chosen: NDArray[np.intp]) -> Patients:
    """Some of the patients, with all of their rows."""
    rows = [np.arange(data.starts[i], data.starts[i + 1]) for i in chosen]
    index = np.concatenate([np.zeros(0, np.int64), *rows]).astype(np.int64)
    starts = np.append(0, np.cumsum([len(part) for part in rows])).astype(np.int64)
    return Patients(
        data.x[index], data.y[index], starts, None if data.group is None else data.group[chosen]
    )
