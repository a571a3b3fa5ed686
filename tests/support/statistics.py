"""Statistics without an engine: rows of one generated site, sums with seeded noise."""

from __future__ import annotations

import numpy as np

from suture.methods.base import Answer
from suture.methods.declared import Public
from suture.privacy.unit import Patients
from suture.protection.secure_sum import Grid
from suture.schema.table import Category, Flag, Number, Schema, feature_names

SCHEMA = Schema(
    patient="id",
    missing="indicator",
    features={
        "age": Number(low=20, high=100, unit="years"),
        "bp": Number(low=60, high=220, unit="mmHg"),
        "sex": Category(values=("F", "M")),
        "smoker": Flag(),
    },
)
NOISE = {0.5: 7.03, 1.0: 3.73, 4.0: 1.08}
"""The noise multiplier of one release at delta 1e-5 (analytic Gaussian)."""


def public(sizes: dict[str, int], schema: Schema = SCHEMA) -> Public:
    return Public(schema, len(sizes), sum(sizes.values()), sizes, epsilon=1.0)


def rows(n: int, rng: np.random.Generator) -> tuple[Patients, dict[str, np.ndarray]]:
    """One row per patient of `SCHEMA`, and the values behind it."""
    age = np.clip(rng.normal(60, 12, n), 20, 100)
    bp = np.where(rng.random(n) < 0.1, np.nan, np.clip(rng.normal(135, 20, n), 60, 220))
    man, smoker = rng.random(n) < 0.45, rng.random(n) < 0.2
    place = {name: i for i, name in enumerate(feature_names(SCHEMA))}
    x = np.zeros((n, len(place)), np.float32)
    x[:, place["age"]] = (age - 60) / 40
    x[:, place["bp"]] = np.nan_to_num((bp - 140) / 80)
    x[:, place["bp (missing)"]] = np.isnan(bp)
    x[:, place["sex = F"]], x[:, place["sex = M"]] = ~man, man
    x[:, place["smoker"]] = smoker
    y = (rng.random(n) < 0.2).astype(np.int32)
    values = {"age": age, "bp": bp, "man": man, "smoker": smoker, "y": y}
    return Patients(x, y, np.arange(n + 1), declared=n), values


def run(
    statistic,
    tables: dict[str, Patients],
    rng: np.random.Generator | None,
    rounds: int = 1,
    begin: dict[str, np.ndarray] | None = None,
):
    """The statistic's state after its rounds; noise by ``rng``, none without."""
    state = {**statistic.init(list(tables), np.random.default_rng(0)), **(begin or {})}
    for round_ in range(1, rounds + 1):
        words = {}
        for ask in statistic.asks(round_):
            total = np.zeros(ask.size)
            for site, data in tables.items():
                values, weights = statistic.adds(ask, data, site, statistic.broadcast(state, site))
                total += weights @ values.astype(np.float64)
            if rng is not None:
                total += rng.normal(0, statistic.noise_of(ask), ask.size)
            words[ask.name] = np.rint(total * Grid(ask.limit, None, ask.size).steps).astype(
                np.int64
            )
        state = statistic.server_step(state, [Answer("all", 1, words)])
    return state
