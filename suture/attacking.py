"""`suture attack`: the attacks of `privacy.attacks` on what our own sites send, against epsilon.

The victims are generated patients and, where it is present, the public PneumoniaMNIST; never a site's rows: an attack's
pictures show records. The messages come from the real site step of FedAvg, with and without protection. A study file
lends its noise, nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture import cohorts, methods, pictures, planning, world
from suture.errors import StudyError
from suture.methods.base import Phased
from suture.models.dense import Dense
from suture.privacy.attacks.batch_fit import fitted_records
from suture.privacy.attacks.gradient_inversion import best_guess, likelihoods, one_record, rms_error, several_records
from suture.privacy.bounds import rate_high, rate_low
from suture.privacy.mechanisms import derive, seeded_key
from suture.privacy.planner import noise_for
from suture.privacy.unit import Patients
from suture.settings import MethodSpec
from suture.site.cohort import load
from suture.study import Study
from suture.training.local import Local

INVERSION_EPSILONS = (1000.0, 100.0, 8.0, 4.0, 2.0, 1.0, 0.5)
DELTA = 1e-5
RATE = 0.1
LINE_UP = 50
_ALMOST_NO_NOISE = 1e-9
Floats = NDArray[np.float32]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Victims:
    """A population, the model it is attacked through, and how finely its features are recorded."""

    name: str
    x: Floats
    y: NDArray[np.int32]
    low: float
    high: float
    unit: float
    """The smallest difference between two recorded values, for "exact"."""

    @property
    def network(self) -> Dense:
        """The demo's network on these features."""
        return Dense((self.x.shape[1], 64, 32, 1))


def gradient_inversion(
    *,
    study: str | Path | None = None,
    epsilons: Sequence[float] = INVERSION_EPSILONS,
    targets: int = 40,
    population: int = 300,
    seed: int = 1,
    quick: bool = False,
    say: Say = lambda text: None,
) -> dict[str, Any]:
    """Reconstruct single records from one update each, without protection and at each epsilon; plain values.

    Each epsilon is that of a study whose whole budget is spent on this one message about this one patient: the worst
    case for the patient. ``study`` adds a row with the noise that its smallest hospital really adds to a message.
    """
    if quick:
        targets, population = min(targets, 12), min(population, 120)
    if targets < 2 or population < 2 * LINE_UP or targets > population - LINE_UP:
        raise StudyError(
            f"expected targets from 2 to population - {LINE_UP} and a population of at least {2 * LINE_UP}, "
            f"found {targets} and {population}"
        )
    levels: list[tuple[str, float | None, float | None]] = [("none", None, None)]
    levels += [(f"{e:g}", e, noise_for(e, DELTA, 1.0, 1)) for e in epsilons]
    if study is not None:
        levels.append(_of_study(study))
    subjects = []
    for victims in _victims(population, seed):
        say(f"{victims.name}: {targets} records, {len(levels)} levels of protection")
        subjects.append(_invert(victims, levels, targets, seed, quick))
    return {
        "attack": "gradient-inversion",
        "delta": DELTA,
        "targets": targets,
        "line_up": LINE_UP,
        "subjects": subjects,
        "left_out": []
        if len(subjects) == 3
        else ["PneumoniaMNIST: not found; set SUTURE_DATA to the folder that holds it"],
        "meaning": (
            "epsilon of a study that spends all of it on this one message; chance is guessing the population's mean. "
            "'best guess' knows the population, the model and the noise: no adversary errs less on average"
        ),
    }


def _victims(population: int, seed: int) -> list[Victims]:
    cohort = cohorts.load("cardio", seed, patients=population, split="iid", sites=1)
    rows = load(
        cohort.sites[0].table, cohort.schema, cohort.outcome, site="generated", holdout=0.0, split_key="attack"
    ).train
    low, high = float(np.floor(rows.x.min())), float(np.ceil(rows.x.max()))
    found = [Victims("cardio record", rows.x, rows.y, low, high, 1e-4)]
    drawn = pictures.generated(population, np.random.default_rng([seed, 3]))
    found.append(Victims("generated radiograph", *drawn, 0.0, 1.0, 1 / 255))
    real = pictures.pneumonia(population, np.random.default_rng([seed, 4]))
    if real is not None:
        found.append(Victims("PneumoniaMNIST radiograph", *real, 0.0, 1.0, 1 / 255))
    return found


def _of_study(path: str | Path) -> tuple[str, float | None, float | None]:
    study = Study.from_toml(path)
    if study.privacy is None:
        raise StudyError("this study promises no privacy: the row without protection is already what its messages give")
    here = world.survey(study, Path(path).resolve().parent, study.seed)
    smallest = min(here.sizes, key=lambda name: here.sizes[name])
    if isinstance(planning.method_of(study, here, study.method.name), Phased):
        raise StudyError(f"method {study.method.name!r} sends no update of a network, which is what this attack reads")
    planned = planning.plan(study, here, planning.method_of(study, here, "fedavg"))[smallest]
    return f"study {study.name!r}", planned.epsilon, planned.noise_multiplier


class _Site:
    """A site that holds the given records and sends FedAvg's first update: what the adversary sees."""

    def __init__(self, network: Dense, seed: int) -> None:
        self.network = network
        self.start = network.init(np.random.default_rng([seed, 1]))
        self.method = methods.build("fedavg", MethodSpec(), network, Local(epochs=1, batch=64, rate=RATE, clip=1.0))

    def update(self, x: Floats, y: NDArray[np.int32], noise: float | None, key: bytes) -> Floats:
        """The message, flat."""
        rows = Patients(x, y, np.arange(len(x) + 1))
        sent, _ = self.method.site_step(rows, {}, {"params": self.start}, noise, key)
        return np.asarray(sent["delta"], np.float32)

    def signals(self, x: NDArray[np.float64], y: NDArray[np.int64]) -> NDArray[np.float64]:
        """The model's backward pass down to the first layer's units, as it enters an unprotected update."""
        layers = [(w.astype(np.float64), b.astype(np.float64)) for w, b in self.network.layers(self.start)]
        inputs, active = x, []
        for w, b in layers:
            inputs = inputs @ w + b
            active.append(inputs > 0)
            inputs = np.maximum(inputs, 0) if len(active) < len(layers) else inputs
        signal = (0.5 * (1 + np.tanh(inputs / 2)) - y[:, None]) * RATE / len(x)
        for (w, _), on in zip(layers[:0:-1], active[-2::-1], strict=True):
            signal = (signal @ w.T) * on
        return np.asarray(signal)

    def first_layer(self, update: Floats) -> tuple[Floats, Floats]:
        """The part of the message that the attack inverts."""
        return self.network.layers(update)[0]


def _invert(
    victims: Victims, levels: Sequence[tuple[str, float | None, float | None]], targets: int, seed: int, quick: bool
) -> dict[str, Any]:
    site = _Site(victims.network, seed)
    x, y = victims.x[:targets], victims.y[:targets]
    pool, pool_y = victims.x[targets:], victims.y[targets:]
    key = seeded_key(seed, "inversion", victims.name)
    signatures = np.array(
        [site.update(pool[i : i + 1], pool_y[i : i + 1], _ALMOST_NO_NOISE, key) for i in range(len(pool))]
    )
    mean = pool.mean(axis=0)
    chance = [rms_error(mean, record) for record in x]
    rows, shown = [], [{"label": "original", "values": x[0].tolist()}]
    for label, epsilon, noise in levels:
        found, guesses, picked = [], [], 0
        for i in range(targets):
            update = site.update(x[i : i + 1], y[i : i + 1], noise, derive(key, label, i))
            raw = one_record(*site.first_layer(update), None if noise is None else mean)
            found.append(raw if noise is None else np.clip(raw, victims.low, victims.high))
            if noise is None:
                line = np.concatenate([pool[: LINE_UP - 1], x[i : i + 1]])
                picked += int(np.argmin(((line - raw) ** 2).sum(axis=1)) == LINE_UP - 1)
            else:
                deviation = RATE * noise
                own = site.update(x[i : i + 1], y[i : i + 1], _ALMOST_NO_NOISE, key)
                line = np.concatenate([signatures[: LINE_UP - 1], own[None]])
                picked += int(np.argmax(likelihoods(update, line, deviation)) == LINE_UP - 1)
                guesses.append(rms_error(best_guess(update, pool, signatures, deviation), x[i]))
        rows.append(_row(label, epsilon, noise, np.array(found), x, victims, chance, guesses, picked, pool))
        shown.append({"label": label, "values": np.clip(found[0], victims.low, victims.high).tolist()})
    return {
        "name": victims.name,
        "features": int(x.shape[1]),
        "network": list(victims.network.sizes),
        "range": [victims.low, victims.high],
        "chance": {
            "mean": float(np.mean(chance)),
            "other": float(np.mean([rms_error(pool[i % len(pool)], record) for i, record in enumerate(x)])),
            "line_up": 1 / LINE_UP,
        },
        "levels": rows,
        "batches": _batches(victims, site, seed, (2, 3) if quick else (2, 3, 4)),
        "shown": shown if x.shape[1] == pictures.SIDE**2 else [],
    }


def _row(
    label: str, epsilon: float | None, noise: float | None, found: NDArray[np.float64], x: Floats, victims: Victims,
    chance: list[float], guesses: list[float], picked: int, pool: Floats,
) -> dict[str, Any]:  # fmt: skip
    """Figures of one level of protection, over all targets."""
    errors = np.array([rms_error(a, b) for a, b in zip(found, x, strict=True)])
    n = len(x)
    others = pool[: LINE_UP - 1].astype(np.float64)
    named = sum(
        bool(((others - guess) ** 2).sum(axis=1).min() > ((truth - guess) ** 2).sum())
        for guess, truth in zip(found, x.astype(np.float64), strict=True)
    )
    better = int(np.sum(errors < np.array(chance)))
    ends = (float(rate_low(named, n, 0.025)), float(rate_high(named, n, 0.025)))
    return {
        "level": label,
        "epsilon": epsilon,
        "noise_multiplier": noise,
        "rms_error": float(errors.mean()),
        "max_abs_error": float(np.abs(found - x).max()),
        "exact_records": int(np.sum(np.abs(found - x).max(axis=1) < victims.unit / 2)),
        "records": n,
        "better_than_mean_guess": better / n,
        "line_up_hits": named / n,
        "line_up_low": ends[0],
        "line_up_high": ends[1],
        "best_guess_rms": float(np.mean(guesses)) if guesses else float(errors.mean()),
        "best_line_up_hits": picked / n,
        "best_line_up_low": float(rate_low(picked, n, 0.025)),
        "best_line_up_high": float(rate_high(picked, n, 0.025)),
        "best_line_up_bound": 1.0 if epsilon is None else min(1.0, math.exp(min(epsilon, 50.0)) / LINE_UP + DELTA),
    }


def _batches(victims: Victims, site: _Site, seed: int, counts: Sequence[int]) -> list[dict[str, Any]]:
    """Unprotected updates of several records at once: how many come back, and how exactly."""
    rows = []
    pool = victims.x[8:]
    for count in counts:
        x, y = victims.x[:count], victims.y[:count]
        update = site.update(x, y, None, seeded_key(seed, "batch", count))
        errors: list[float] = []
        rng = np.random.default_rng([seed, count])
        for way in (_by_zeros, _by_fit):
            errors = min(errors, way(site, update, x, pool, rng), key=lambda e: max(e, default=math.inf))
            if max(errors, default=math.inf) < victims.unit / 2:
                break
        exact = sum(error < victims.unit / 2 for error in errors)
        worst = max(errors) if exact == count else None
        rows.append({"records": count, "exact_records": exact, "max_abs_error": worst})
    return rows


def _by_zeros(site: _Site, update: Floats, x: Floats, pool: Floats, rng: np.random.Generator) -> list[float]:
    """Largest error of each record, by `several_records`; empty where it gives up."""
    try:
        return _errors(several_records(*site.first_layer(update), rng), x)
    except StudyError:
        return []


def _by_fit(site: _Site, update: Floats, x: Floats, pool: Floats, rng: np.random.Generator) -> list[float]:
    """The same by `fitted_records`."""
    try:
        return _errors(fitted_records(*site.first_layer(update), site.signals, pool, rng, starts=30)[0], x)
    except StudyError:
        return []


def _errors(found: NDArray[np.float64], x: Floats) -> list[float]:
    return [float(np.abs(found - record).max(axis=1).min()) for record in x]
