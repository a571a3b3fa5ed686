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

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Setting

from suture.errors import StudyError
from suture.methods.base import Arrays, Method, State, Wrapper
from suture.methods.declared import Settings, Setup
from suture.methods.fairfed import LIMIT, gaps_of, patient_risk, pushes
from suture.models.network import Network
from suture.privacy.door import LOCAL, Payload, Session
from suture.privacy.noise.source import derive, generator
from suture.privacy.unit import Patients
from suture.schema.outcome import Classes
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
class Ensemble(Wrapper):
    """The method inside, and one model more at each site."""

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
    def label(self) -> str:
        return f"{self.inner.label}, ensemble"

    def mechanism(self) -> str:
        inside = self.inner.mechanism() or (
            "In every round each hospital sent a model update by DP-SGD, clipped by patient. "
        )
        return (
            f"{inside} Beside this each hospital keeps a model of its own and a weight alpha, "
            "trained on its patients without noise. They never leave the hospital and no promise "
            "covers them: predictions of the ensemble are for the hospital's own clinicians, and "
            "must not be shown to others."
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


class Ensembled(Settings):
    """Settings of any method that ends in one global model."""

    ensemble: bool = False
    ensemble_epochs: int = Setting(default=5, ge=1)
    ensemble_fairness: float = Setting(default=1.0, ge=0)
    ensemble_rate: float = Setting(default=0.05, gt=0)


def wrapped(method: Method, setup: Setup, own: Ensembled) -> Method:
    """The method as a study asks for it, alone or with each hospital's own model beside it."""
    if not own.ensemble:
        return method
    if not isinstance(setup.public.outcome, Classes):
        raise StudyError("method.ensemble mixes risks of classes; leave it out for follow-up")
    return Ensemble(
        method,
        setup.network,
        setup.local,
        setup.rounds,
        own.ensemble_epochs,
        own.ensemble_rate,
        method.penalty,
        own.ensemble_fairness,
    )


def _some(data: Patients, chosen: NDArray[np.intp]) -> Patients:
    """Some of the patients, with all of their rows."""
    rows = [np.arange(data.starts[i], data.starts[i + 1]) for i in chosen]
    index = np.concatenate([np.zeros(0, np.int64), *rows]).astype(np.int64)
    starts = np.append(0, np.cumsum([len(part) for part in rows])).astype(np.int64)
    return Patients(
        data.x[index], data.y[index], starts, None if data.group is None else data.group[chosen]
    )
