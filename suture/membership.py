"""`suture attack membership`: can an adversary tell that the one carrier of a rare diagnosis was in the table?

A hospital of generated patients trains for one round; one patient, the target, is the only one with a rare diagnosis, so
that a weight of the model moves for nobody else. Two adversaries know everybody but the target: one sees the update that
the hospital sends, the other only asks the finished model for the target's risk. Everything runs through FedAvg's real
site step; each epsilon's noise comes from the planner.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture import methods
from suture.errors import StudyError
from suture.models.dense import Dense
from suture.privacy.attacks.membership import advantage_bound, attack, tpr_bound
from suture.privacy.audit import with_patient
from suture.privacy.mechanisms import derive, seeded_key
from suture.privacy.planner import noise_for, sampling_rate
from suture.privacy.unit import Patients
from suture.settings import MethodSpec
from suture.training.local import Local, steps

EPSILONS = (8.0, 4.0, 2.0, 1.0, 0.5)
DELTA = 1e-5
FEATURES = 8
"""Seven ordinary ones and the rare diagnosis."""
ADVERSARIES = {"update": "sees the update", "model": "asks the model"}


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
    """Attack a hospital with and without the target, ``runs`` trainings a world and epsilon; plain values.

    >>> found = membership(epsilons=[1.0], runs=60, patients=40)
    >>> [level["epsilon"] for level in found["levels"]]
    [None, 1.0]
    """
    runs = min(runs, 400) if quick else runs
    if patients < 10 or patients % 5 or runs < 40:
        raise StudyError(f"expected 10, 15, 20, ... patients and at least 40 runs, found {patients} and {runs}")
    hospital = _Hospital(patients, seed)
    levels = []
    for epsilon in (None, *epsilons):
        noise = None if epsilon is None else hospital.noise(epsilon)
        say(f"epsilon {'none' if epsilon is None else format(epsilon, 'g')}: {2 * runs:,} trainings")
        seen = hospital.observe(noise, runs, seeded_key(seed, "membership", str(epsilon)), threads)
        limit = float("inf") if epsilon is None else epsilon
        adversaries = {}
        for i, name in enumerate(ADVERSARIES):
            found = attack(seen[1][:, i], seen[0][:, i])
            adversaries[name] = {
                **found.to_dict(),
                "within_bound": found.advantage_high <= advantage_bound(limit, DELTA),
            }
        levels.append(
            {
                "epsilon": epsilon,
                "noise_multiplier": noise,
                "advantage_bound": advantage_bound(limit, DELTA),
                "tpr_bound": tpr_bound(limit, DELTA, 0.01),
                "adversaries": adversaries,
            }
        )
    return {
        "attack": "membership",
        "delta": DELTA,
        "patients": patients,
        "runs": runs,
        "target": "the only carrier of a rare diagnosis",
        "training": {"epochs": hospital.local.epochs, "batch": hospital.local.batch, "steps": hospital.steps},
        "levels": levels,
        "meaning": (
            "advantage = true positive rate - false positive rate on runs that are not shadows, with exact 95 % intervals; "
            "the bound is what (epsilon, delta)-DP allows any adversary"
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
        # A fifth of the larger table: five steps an epoch in both worlds.
        self.local = Local(epochs=10, batch=patients // 5, rate=0.5, clip=1.0)
        self.steps = max(steps(table.patients, self.local) for table in self.worlds)
        self.method = methods.build("fedavg", MethodSpec(), self.network, self.local)

    def noise(self, epsilon: float) -> float:
        """For the smaller table, whose sampling rate is the larger one."""
        return noise_for(epsilon, DELTA, sampling_rate(self.worlds[0].patients, self.local.batch), self.steps)

    def _one(self, table: Patients, noise: float | None, key: bytes) -> tuple[float, float]:
        """What both adversaries observe of one training: the rare weight's move, and the target's log odds."""
        sent, _ = self.method.site_step(table, {}, {"params": self.start}, noise, key)
        model = np.asarray(self.start - sent["delta"], np.float32)
        return float(-sent["delta"][FEATURES - 1]), float(self.network.logits(model, self.target)[0, 0])

    def observe(
        self, noise: float | None, runs: int, key: bytes, threads: int | None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Observations without and with the target: runs x adversaries."""
        with ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool:
            found = [
                np.array(list(pool.map(lambda i, t=table, w=w: self._one(t, noise, derive(key, w, i)), range(runs))))
                for w, table in enumerate(self.worlds)
            ]
        return found[0], found[1]
