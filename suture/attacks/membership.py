"""`suture attack membership`: can an adversary tell that the one carrier of a rare diagnosis was in
the table?

A hospital of generated patients trains for one round; one patient, the target, is the only one with
a rare diagnosis, so that a weight of the model moves for nobody else. Two adversaries know
everybody but the target: one sees the update that the hospital sends, the other only asks the
finished model for the target's risk. Everything runs through the real site step of a study's
default method; each epsilon's noise comes from the planner.

LiRA (Carlini et al., "Membership Inference Attacks From First Principles", S&P 2022): the adversary
trains shadow models with and without the target, fits a normal distribution to what is observed in
each world, and decides by the likelihood ratio. Here shadows are trained for one target, on the
rest of the table itself, which is what differential privacy grants its adversary: knowledge of
everybody else. Half of the runs are shadows, the other half are attacked.

Differential privacy bounds every such attack: TPR <= e^epsilon FPR + delta, hence the advantage TPR
- FPR is at most (e^epsilon - 1 + 2 delta) / (e^epsilon + 1) (Humphries et al. 2023, Theorem 3.2;
Kairouz, Oh & Viswanath 2015).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture.attacks.audit import with_patient
from suture.attacks.bounds import rate_ends
from suture.errors import StudyError
from suture.methods import registry
from suture.methods.registry import MethodSpec
from suture.models.dense import Dense
from suture.privacy.accounting.planner import noise_for, sampling_rate
from suture.privacy.door import rehearse
from suture.privacy.noise.source import derive, seeded_key
from suture.privacy.unit import Patients
from suture.training.local import Local, steps

Floats = NDArray[np.float64]
EPSILONS = (8.0, 4.0, 2.0, 1.0, 0.5)
DELTA = 1e-5
LOW_FPR, ERROR = 0.01, 0.05
FEATURES = 8
"""Seven ordinary ones and the rare diagnosis."""
ADVERSARIES = {"update": "sees the update", "model": "asks the model"}


def advantage_bound(epsilon: float, delta: float) -> float:
    """The largest TPR - FPR that (epsilon, delta)-DP allows."""
    if math.isinf(epsilon):
        return 1.0
    # (e^eps - 1 + 2 delta)/(e^eps + 1), in the form that does not overflow.
    shrunk = math.exp(-epsilon)
    return min(1.0, (1 - shrunk + 2 * delta * shrunk) / (1 + shrunk))


def tpr_bound(epsilon: float, delta: float, fpr: float) -> float:
    """The largest true positive rate that (epsilon, delta)-DP allows at a false positive rate."""
    if math.isinf(epsilon):
        return 1.0
    other = 1 - math.exp(-epsilon) * (1 - delta - fpr)  # the same promise for the other guess
    return min(1.0, other, math.exp(min(epsilon, 50.0)) * fpr + delta)


def likelihood_ratio(present: Floats, absent: Floats) -> Callable[[Floats], Floats]:
    """ln of the ratio of two normal densities fitted to shadow observations (rows or numbers)."""
    fits = []
    for shadows in (present, absent):
        rows = shadows.reshape(len(shadows), -1)
        # A floor: without noise an observation may not vary at all, and its density would be
        # infinite.
        spread = rows.std(axis=0) + 1e-6 * (np.abs(rows).max(axis=0) + 1e-6)
        fits.append((rows.mean(axis=0), spread))

    def score(observed: Floats) -> Floats:
        rows = observed.reshape(len(observed), -1)
        first, second = (
            -(((rows - mean) / spread) ** 2).sum(axis=1) / 2 - np.log(spread).sum()
            for mean, spread in fits
        )
        return np.asarray(first - second, np.float64)

    return score


def attack(present: Floats, absent: Floats) -> dict[str, float]:
    """Attack the second half of the observations with shadows of the first half: how well the
    adversary tells both worlds apart.

    The decision for the advantage is the likelihood ratio's own (above zero: present). The interval
    of the advantage takes both rates at the ends of their Clopper-Pearson intervals, `ERROR` for
    both together. The strict threshold aims at a false positive rate of `LOW_FPR`.
    """
    runs = min(len(present), len(absent)) // 2
    if runs < 20:
        raise StudyError(
            "expected at least 40 observations of each world, found "
            f"{min(len(present), len(absent))}"
        )
    score = likelihood_ratio(present[:runs], absent[:runs])
    strict = float(np.quantile(score(absent[:runs]), 1 - LOW_FPR, method="higher"))
    inside, outside = score(present[runs : 2 * runs]), score(absent[runs : 2 * runs])
    hits, misses = int(np.sum(inside > 0)), int(np.sum(outside > 0))
    strict_hits = int(np.sum(inside > strict))
    (hit_low, hit_high), (miss_low, miss_high) = (
        rate_ends(count, runs, ERROR / 2) for count in (hits, misses)
    )
    strict_low, strict_high = rate_ends(strict_hits, runs, ERROR)
    order = np.argsort(np.concatenate([outside, inside]), kind="stable")
    ranks = np.empty(2 * runs)
    ranks[order] = np.arange(1, 2 * runs + 1)
    return {
        "tpr": hits / runs,
        "fpr": misses / runs,
        "advantage": (hits - misses) / runs,
        "advantage_low": hit_low - miss_high,
        "advantage_high": hit_high - miss_low,
        "low_fpr": LOW_FPR,
        "strict_fpr": float(np.mean(outside > strict)),
        "strict_tpr": strict_hits / runs,
        "strict_tpr_low": strict_low,
        "strict_tpr_high": strict_high,
        "auc": float((ranks[runs:].sum() - runs * (runs + 1) / 2) / runs**2),
        "runs": runs,
    }


def membership(
    *,
    epsilons: Sequence[float] = EPSILONS,
    patients: int = 100,
    runs: int = 2000,
    seed: int = 1,
    quick: bool = False,
    threads: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Attack a hospital with and without the target, ``runs`` trainings each; plain values."""
    runs = min(runs, 400) if quick else runs
    if patients < 10 or patients % 5 or runs < 40:
        raise StudyError(
            f"expected 10, 15, 20, ... patients and at least 40 runs, found {patients} and {runs}"
        )
    hospital = _Hospital(patients, seed)
    levels = []
    for epsilon in (None, *epsilons):
        noise = None if epsilon is None else hospital.noise(epsilon)
        level = "none" if epsilon is None else f"{epsilon:g}"
        say(f"epsilon {level}: {2 * runs:,} trainings")
        seen = hospital.observe(noise, runs, seeded_key(seed, "membership", str(epsilon)), threads)
        limit = float("inf") if epsilon is None else epsilon
        adversaries = {}
        for i, name in enumerate(ADVERSARIES):
            found = attack(seen[1][:, i], seen[0][:, i])
            inside = found["advantage_high"] <= advantage_bound(limit, DELTA)
            adversaries[name] = {**found, "within_bound": inside}
        levels.append(
            {
                "epsilon": epsilon,
                "noise_multiplier": noise,
                "advantage_bound": advantage_bound(limit, DELTA),
                "tpr_bound": tpr_bound(limit, DELTA, LOW_FPR),
                "adversaries": adversaries,
            }
        )
    return {
        "attack": "membership",
        "delta": DELTA,
        "patients": patients,
        "runs": runs,
        "target": "the only carrier of a rare diagnosis",
        "training": {
            "epochs": hospital.local.epochs,
            "batch": hospital.local.batch,
            "steps": hospital.steps,
        },
        "levels": levels,
        "meaning": (
            "advantage = true positive rate - false positive rate on runs that are not shadows, "
            "with exact 95 % intervals; the bound is what (epsilon, delta)-DP allows any adversary"
        ),
    }


class _Hospital:
    """The table with and without the target, and its training."""

    def __init__(self, patients: int, seed: int) -> None:
        rng = np.random.default_rng([seed, 11])
        x = rng.normal(size=(patients - 1, FEATURES)).astype(np.float32) * 0.5
        x[:, -1] = 0.0
        y = (x[:, 0] + 0.3 * rng.normal(size=patients - 1) > 0).astype(np.int32)
        self.network = Dense((FEATURES, 1))
        self.start = np.zeros(self.network.n_params, np.float32)
        self.target = np.zeros((1, FEATURES), np.float32)
        self.target[0, -1] = 2.0
        absent = Patients(x, y, np.arange(patients))
        self.worlds = (absent, with_patient(absent, self.target, np.ones(1, np.int32)))
        # A fifth of the larger table: five steps per epoch in both worlds.
        self.local = Local(epochs=10, batch=patients // 5, rate=0.5, clip=1.0)
        self.steps = max(steps(table.patients, self.local) for table in self.worlds)
        spec = MethodSpec()
        self.method = registry.build(spec.name, spec, self.network, self.local)

    def noise(self, epsilon: float) -> float:
        """For the smaller table, whose sampling rate is the larger one."""
        rate = sampling_rate(self.worlds[0].patients, self.local.batch)
        return noise_for(epsilon, DELTA, rate, self.steps)

    def _one(self, table: Patients, noise: float | None, key: bytes) -> tuple[float, float]:
        """What both adversaries observe: the rare weight's move, and the target's log odds."""
        sent, _ = rehearse(self.method, table, {}, {"params": self.start}, noise, key)
        model = np.asarray(self.start - sent["delta"], np.float32)
        odds = self.network.logits(model, self.target)[0, 0]
        return float(-sent["delta"][FEATURES - 1]), float(odds)

    def observe(
        self, noise: float | None, runs: int, key: bytes, threads: int | None
    ) -> tuple[Floats, Floats]:
        """Observations without and with the target: runs x adversaries."""
        with ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool:

            def world(w: int) -> Floats:
                keys = (derive(key, w, i) for i in range(runs))
                return np.array(list(pool.map(partial(self._one, self.worlds[w], noise), keys)))

            return world(0), world(1)
