"""`suture attack gradient-inversion`: records read off what our own sites send, against epsilon.

The victims are generated patients, generated images that look like chest radiographs and, where it
is present, the public PneumoniaMNIST (Yang et al., "MedMNIST v2", Scientific Data 2023, CC BY 4.0;
see `suture.cohorts.public.data_folder`); never a site's rows, because the attack's pictures show
records. The messages come from the real site step of a study's default method, with and without
protection. A study file lends its noise, nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture import cohorts
from suture.attacks.bounds import rate_ends
from suture.attacks.reconstruct import (
    best_guess,
    fitted_records,
    likelihoods,
    one_record,
    rms_error,
    several_records,
)
from suture.cohorts.public import data_folder
from suture.engine import federation
from suture.engine.plan import plan_of
from suture.errors import DataError, StudyError
from suture.methods import registry
from suture.methods.registry import MethodSpec
from suture.models.dense import Dense
from suture.privacy.accounting.planner import noise_for
from suture.privacy.door import rehearse
from suture.privacy.noise.source import derive, seeded_key
from suture.privacy.unit import Patients
from suture.site.cohort import load
from suture.study import Study
from suture.training.local import Local

EPSILONS = (1000.0, 100.0, 8.0, 4.0, 2.0, 1.0, 0.5)
DELTA = 1e-5
RATE = 0.1
LINE_UP = 50
_ALMOST_NO_NOISE = 1e-9
SIDE = 28
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Outcomes = NDArray[np.int32]


@dataclass(frozen=True)
class Victims:
    """A population, and how finely its features are recorded."""

    name: str
    x: Floats
    y: Outcomes
    low: float
    high: float
    unit: float
    """The smallest difference between two recorded values, for "exact"."""

    @property
    def network(self) -> Dense:
        """The model they are attacked through: the demo's network on these features."""
        return Dense((self.x.shape[1], 64, 32, 1))


def populations(count: int, seed: int) -> list[Victims]:
    """As many patients of each kind: cardio records, generated radiographs, PneumoniaMNIST."""
    cohort = cohorts.load("cardio", seed, patients=count, split="iid", sites=1)
    table, how = cohort.sites[0].table, (cohort.schema, cohort.outcome)
    rows = load(table, *how, site="generated", holdout=0.0, split_key="attack").train
    low, high = float(np.floor(rows.x.min())), float(np.ceil(rows.x.max()))
    found = [Victims("cardio record", rows.x, rows.y, low, high, 1e-4)]
    drawn = generated(count, np.random.default_rng([seed, 3]))
    found.append(Victims("generated radiograph", *drawn, 0.0, 1.0, 1 / 255))
    real = pneumonia(count, np.random.default_rng([seed, 4]))
    if real is not None:
        found.append(Victims("PneumoniaMNIST radiograph", *real, 0.0, 1.0, 1 / 255))
    return found


def generated(count: int, rng: np.random.Generator) -> tuple[Floats, Outcomes]:
    """Images (784 numbers from 0 to 1 each) and outcomes: two lungs, ribs, perhaps a shadow."""
    v, u = np.meshgrid(np.linspace(-1, 1, SIDE), np.linspace(-1, 1, SIDE), indexing="ij")
    images = np.empty((count, SIDE * SIDE), np.float32)
    outcome = rng.integers(0, 2, count).astype(np.int32)
    for i in range(count):
        ribs = np.sin((9 + 2 * rng.random()) * v + 6 * rng.random())
        picture = 0.75 - 0.12 * (u**2 + v**2) + 0.05 * ribs
        for side in (-1, 1):
            x0, y0 = side * (0.42 + 0.08 * rng.random()), 0.1 * rng.normal()
            width, height = 0.28 + 0.06 * rng.random(), 0.62 + 0.12 * rng.random()
            inside = ((u - x0) / width) ** 2 + ((v - y0) / height) ** 2
            picture -= 0.45 / (1 + np.exp(9 * (inside - 1)))
        if outcome[i]:
            x0, y0 = rng.choice([-1, 1]) * (0.3 + 0.25 * rng.random()), 0.6 * rng.random() - 0.2
            picture += 0.4 * np.exp(-((u - x0) ** 2 + (v - y0) ** 2) / (0.02 + 0.05 * rng.random()))
        picture += 0.02 * rng.normal(size=picture.shape)
        images[i] = np.round(np.clip(picture, 0, 1) * 255).ravel() / 255
    return images, outcome


def pneumonia(count: int, rng: np.random.Generator) -> tuple[Floats, Outcomes] | None:
    """Radiographs of PneumoniaMNIST's training part, or None where it is not present."""
    try:
        path = data_folder("pneumoniamnist") / "pneumoniamnist_28.npz"
    except DataError:
        return None
    with np.load(path, allow_pickle=False) as kept:
        chosen = rng.choice(len(kept["train_images"]), count, replace=False)
        images = kept["train_images"][chosen].reshape(count, SIDE * SIDE)
        outcome = kept["train_labels"][chosen].reshape(count)
    return (images / np.float32(255)).astype(np.float32), outcome.astype(np.int32)


@dataclass(frozen=True)
class Protection:
    """A level of protection: its name, epsilon and noise multiplier; None is no protection."""

    label: str
    epsilon: float | None
    noise: float | None


def gradient_inversion(
    *,
    study: str | Path | None = None,
    epsilons: Sequence[float] = EPSILONS,
    targets: int = 40,
    population: int = 300,
    seed: int = 1,
    quick: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Reconstruct single records from one update each, at each level of protection; plain values.

    Each epsilon is that of a study whose whole budget is spent on this one message about this one
    patient: the worst case for the patient. ``study`` adds a row with the noise that its smallest
    hospital really adds to a message.
    """
    if quick:
        targets, population = min(targets, 12), min(population, 120)
    if targets < 2 or population < 2 * LINE_UP or targets > population - LINE_UP:
        raise StudyError(
            f"expected targets from 2 to population - {LINE_UP} and a population of at least "
            f"{2 * LINE_UP}, found {targets} and {population}"
        )
    levels = [Protection("none", None, None)]
    levels += [Protection(f"{e:g}", e, noise_for(e, DELTA, 1.0, 1)) for e in epsilons]
    if study is not None:
        levels.append(_of_study(study))
    subjects = []
    for victims in populations(population, seed):
        say(f"{victims.name}: {targets} records, {len(levels)} levels of protection")
        subjects.append(_invert(victims, levels, targets, seed, quick))
    missing = "PneumoniaMNIST: not found; set SUTURE_DATA to the folder that holds it"
    return {
        "attack": "gradient-inversion",
        "delta": DELTA,
        "targets": targets,
        "line_up": LINE_UP,
        "subjects": subjects,
        "left_out": [] if len(subjects) == 3 else [missing],
        "meaning": (
            "epsilon of a study that spends all of it on this one message; chance is guessing the "
            "population's mean. 'best guess' knows the population, the model and the noise: no "
            "adversary errs less on average"
        ),
    }


def _of_study(path: str | Path) -> Protection:
    study = Study.from_toml(path)
    if study.privacy is None:
        raise StudyError(
            "this study promises no privacy: the row without protection already shows what its "
            "messages give away"
        )
    here = federation.survey(study, Path(path).resolve().parent, study.seed)
    smallest = min(here.sizes, key=lambda name: here.sizes[name])
    if plan_of(study, here, study.method.name).method.phased:
        raise StudyError(
            f"method {study.method.name!r} sends no update of a network, which is what this attack "
            "reads"
        )
    usual = study.replace(method={"name": MethodSpec().name})
    planned = plan_of(usual, replace(here, plans={}), MethodSpec().name).sites[smallest]
    return Protection(f"study {study.name!r}", planned.epsilon, planned.noise_multiplier)


class _Site:
    """A site that holds the given records and sends its first update: what the adversary sees."""

    def __init__(self, network: Dense, seed: int) -> None:
        self.network, self.start = network, network.init(np.random.default_rng([seed, 1]))
        spec, local = MethodSpec(), Local(epochs=1, batch=64, rate=RATE, clip=1.0)
        self.method = registry.build(spec.name, spec, network, local)

    def update(self, victims: Victims, who: slice, noise: float | None, key: bytes) -> Floats:
        """The message about these records, flat."""
        x, y = victims.x[who], victims.y[who]
        rows = Patients(x, y, np.arange(len(x) + 1))
        sent, _ = rehearse(self.method, rows, {}, {"params": self.start}, noise, key)
        return np.asarray(sent["delta"], np.float32)

    def signals(self, x: Doubles, y: NDArray[np.int64]) -> Doubles:
        """The backward pass down to the first layer's units, as it enters an unprotected update."""
        layers = [
            (w.astype(np.float64), b.astype(np.float64)) for w, b in self.network.layers(self.start)
        ]
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
    victims: Victims, levels: Sequence[Protection], targets: int, seed: int, quick: bool
) -> dict[str, Any]:
    site = _Site(victims.network, seed)
    x, pool = victims.x[:targets], victims.x[targets:]
    key = seeded_key(seed, "inversion", victims.name)
    # The update of every record without noise, by which the strongest adversary knows it.
    alone = [slice(i, i + 1) for i in range(len(victims.x))]
    clear = np.array([site.update(victims, who, _ALMOST_NO_NOISE, key) for who in alone])
    mean = pool.mean(axis=0)
    rows, shown = [], [{"label": "original", "values": x[0].tolist()}]
    for level in levels:
        found, guesses, picked = [], [], 0
        for i in range(targets):
            update = site.update(victims, alone[i], level.noise, derive(key, level.label, i))
            typical = None if level.noise is None else mean
            raw = one_record(*site.first_layer(update), typical)
            found.append(raw if level.noise is None else np.clip(raw, victims.low, victims.high))
            others = slice(targets, targets + LINE_UP - 1)
            if level.noise is None:
                line = np.concatenate([victims.x[others], x[i : i + 1]])
                best = np.argmin(((line - raw) ** 2).sum(axis=1))
            else:
                deviation = RATE * level.noise
                line = np.concatenate([clear[others], clear[i : i + 1]])
                best = np.argmax(likelihoods(update, line, deviation))
                guess = best_guess(update, pool, clear[targets:], deviation)
                guesses.append(rms_error(guess, x[i]))
            picked += int(best == LINE_UP - 1)
        rows.append(_row(level, np.array(found), guesses, picked, victims))
        values = np.clip(found[0], victims.low, victims.high).tolist()
        shown.append({"label": level.label, "values": values})
    by_other = [rms_error(pool[i % len(pool)], record) for i, record in enumerate(x)]
    by_mean = float(np.mean([rms_error(mean, record) for record in x]))
    return {
        "name": victims.name,
        "features": int(x.shape[1]),
        "network": list(victims.network.sizes),
        "range": [victims.low, victims.high],
        "chance": {"mean": by_mean, "other": float(np.mean(by_other)), "line_up": 1 / LINE_UP},
        "levels": rows,
        "batches": [_batch(victims, site, seed, n) for n in ((2, 3) if quick else (2, 3, 4))],
        "shown": shown if x.shape[1] == SIDE**2 else [],
    }


def _row(
    level: Protection, found: Doubles, guesses: list[float], picked: int, victims: Victims
) -> dict[str, Any]:
    """Figures of one level of protection, over all targets."""
    n = len(found)
    x, pool = victims.x[:n], victims.x[n:]
    errors = np.array([rms_error(a, b) for a, b in zip(found, x, strict=True)])
    chance = np.array([rms_error(pool.mean(axis=0), record) for record in x])
    others = pool[: LINE_UP - 1].astype(np.float64)
    named = sum(
        bool(((others - guess) ** 2).sum(axis=1).min() > ((truth - guess) ** 2).sum())
        for guess, truth in zip(found, x.astype(np.float64), strict=True)
    )
    worst = np.abs(found - x).max(axis=1)
    (low, high), (best_low, best_high) = rate_ends(named, n, 0.05), rate_ends(picked, n, 0.05)
    bound = 1.0
    if level.epsilon is not None:
        bound = min(1.0, math.exp(min(level.epsilon, 50.0)) / LINE_UP + DELTA)
    return {
        "level": level.label,
        "epsilon": level.epsilon,
        "noise_multiplier": level.noise,
        "rms_error": float(errors.mean()),
        "max_abs_error": float(worst.max()),
        "exact_records": int(np.sum(worst < victims.unit / 2)),
        "records": n,
        "better_than_mean_guess": int(np.sum(errors < chance)) / n,
        "line_up_hits": named / n,
        "line_up_low": low,
        "line_up_high": high,
        "best_guess_rms": float(np.mean(guesses)) if guesses else float(errors.mean()),
        "best_line_up_hits": picked / n,
        "best_line_up_low": best_low,
        "best_line_up_high": best_high,
        "best_line_up_bound": bound,
    }


def _batch(victims: Victims, site: _Site, seed: int, count: int) -> dict[str, Any]:
    """An unprotected update of several records at once: how many come back, and how exactly."""
    key, rng = seeded_key(seed, "batch", count), np.random.default_rng([seed, count])
    layer = site.first_layer(site.update(victims, slice(count), None, key))
    ways: tuple[Callable[[], Doubles], ...] = (
        lambda: several_records(*layer, rng),
        lambda: fitted_records(*layer, site.signals, victims.x[8:], rng, starts=30)[0],
    )
    errors: list[float] = []  # the largest error of each record
    for way in ways:
        try:
            found = way()
        except StudyError:  # this way gives up
            continue
        tried = [float(np.abs(found - x).max(axis=1).min()) for x in victims.x[:count]]
        errors = min(errors, tried, key=lambda e: max(e, default=math.inf))
        if max(errors) < victims.unit / 2:
            break
    exact = sum(error < victims.unit / 2 for error in errors)
    worst = max(errors) if exact == count else None
    return {"records": count, "exact_records": exact, "max_abs_error": worst}
