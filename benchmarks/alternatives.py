"""What was tried beside the additive model's noisy gradients: docs/additive.md, section 6.

    python benchmarks/alternatives.py --tables framingham rhc --epsilon 1 3 8 --seeds 5

Every arm is simulated with all rows in one place and a curator's continuous Gaussian noise, at the
same (epsilon, 1e-5) by exact Gaussian composition, on the splits of benchmarks/additive.py:

- `gradients`: the additive method with 40 gradients, for comparison.
- `histograms`: cyclic boosting of one feature at a time by noisy histograms (after DP-EBM: Nori,
  Caruana, Bu, Shen, Kulkarni, ICML 2021), with public bins: 8 by the terms of each number (its
  normal range is one), the declared values of a category. A step adds, per bin, the noisy sum of
  residuals over the noisy count, shrunk by its noise.
- `all histograms`: the same, but each pass asks for the histograms of all features at once, and a
  patient adds a vector of norm 1: one secure sum per pass instead of one per feature.
- `objective`: objective perturbation (Kifer, Smith, Thakurta 2012, Algorithm 1, Gaussian noise) of a
  logistic loss with rows of norm 1 on the same centred terms, an L2 penalty chosen by the theorem.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np
from additive import TABLES, Table, deal, interval
from dp_accounting.gaussian_mechanism import get_sigma_gaussian
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from suture.evaluation.metrics import binary, ece
from suture.models.concepts import terms
from suture.schema.table import Number
from suture.site.reading import encode_rows

Floats = NDArray[np.float64]
DELTA = 1e-5
BINS = 8


def split(table: Table, seed: int) -> tuple[Floats, Floats, Floats, Floats]:
    """Encoded rows and outcomes of training and test patients."""
    train, test, *_ = deal(table, seed)
    found = []
    for part in (train, test):
        columns = {name: part[name] for name in table.schema.features}
        found += [encode_rows(columns, table.schema), part["outcome"].to_numpy(float)]
    return tuple(found)


def centred(x: Floats, y: Floats, sigma: float, rng: np.random.Generator) -> tuple[Floats, float]:
    """Centre and scale by the method's release 1."""
    rows = np.hstack([np.ones((len(x), 1)), x, y[:, None]])
    total = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).sum(axis=0)
    total = total + rng.normal(0, sigma, len(total))
    mean, square = total[1:-1] / total[0], (len(x) / total[0]) ** 2
    noise = len(mean) * (sigma / total[0]) ** 2
    spread = square - 1 - total[-1] / total[0] - float(np.sum(mean**2)) + noise
    return mean, math.sqrt(max(spread, square / 20))


def prepared(
    table: Table, seed: int, sigma: float, rng: np.random.Generator
) -> tuple[Floats, Floats, Floats, Floats]:
    """Rows P of both parts, with the intercept's entry, and outcomes."""
    x, y, q, truth = split(table, seed)
    known = terms(table.schema)
    x, q = known.matrix(x).astype(float), known.matrix(q).astype(float)
    mean, scale = centred(x, y, sigma / math.sqrt(0.02), rng)
    both = [np.hstack([np.full((len(part), 1), 0.25), (part - mean) / scale]) for part in (x, q)]
    return both[0], y, both[1], truth


def gradients(table: Table, seed: int, epsilon: float) -> tuple[Floats, Floats]:
    """The additive method."""
    rng, sigma, steps = np.random.default_rng([seed, 1]), get_sigma_gaussian(epsilon, DELTA), 40
    p, y, q, truth = prepared(table, seed, sigma, rng)
    unit, n = p / np.linalg.norm(p, axis=1, keepdims=True), len(p)
    rate = float(np.clip(y.mean(), 0.001, 0.999))  # release 1 tells it too
    each = sigma * math.sqrt(steps / 0.98)
    whole = min(0.75 * n / (each * math.sqrt(steps)), 18 / min(rate, 1 - rate))
    theta, velocity, kept = np.zeros(p.shape[1]), np.zeros(p.shape[1]), []
    theta[0] = 4 * math.log(rate / (1 - rate))
    for _ in range(steps):
        risk = expit(p @ theta)
        r = (risk - y) / np.maximum(risk, 1 - risk)
        velocity = 0.8 * velocity + (unit.T @ r + rng.normal(0, each, len(theta))) / n
        theta = theta - 0.2 * whole * velocity
        kept.append(theta)
    return expit(q @ np.mean(kept[steps // 2 :], axis=0)), truth


def objective(table: Table, seed: int, epsilon: float) -> tuple[Floats, Floats]:
    """Objective perturbation. With rows of norm at most 1 the logistic loss has gradients of norm at
    most 1 and curvature at most 1/4; half of epsilon is left to the determinant (c / Lambda)."""
    rng, sigma = np.random.default_rng([seed, 2]), get_sigma_gaussian(epsilon, DELTA)
    p, y, q, truth = prepared(table, seed, sigma, rng)
    scale = np.maximum(1, np.linalg.norm(p, axis=1, keepdims=True) / 1.5)  # rows longer are clipped
    x = p / scale / 1.5
    penalty = 2 * 0.25 / epsilon  # Lambda >= 2 lambda / epsilon
    noise = math.sqrt(8 * math.log(2 / DELTA) + 4 * epsilon) / epsilon  # Kifer et al., Theorem 5
    b = rng.normal(0, noise, x.shape[1])

    def loss(theta: Floats) -> tuple[float, Floats]:
        odds = x @ theta
        value = np.sum(np.logaddexp(0, odds) - y * odds) + penalty / 2 * theta @ theta + b @ theta
        return float(value), x.T @ (expit(odds) - y) + penalty * theta + b

    theta = minimize(loss, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B").x / 1.5
    return expit(q @ theta), truth


def bins_of(table: Table, x: Floats) -> list[tuple[NDArray[np.int64], int]]:
    """The public bin of every row in every feature; the last one is for what is missing."""
    found, column = [], 0
    for name, feature in table.schema.features.items():
        width = len(getattr(feature, "values", ())) or 1
        marked = table.schema.missing_rule(name) == "indicator"
        part = x[:, column : column + width]
        if isinstance(feature, Number):
            low, high = feature.low, feature.high
            middle = feature.normal or (low + (high - low) / 3, high - (high - low) / 3)
            third = np.linspace(*middle, 3)
            edges = [
                low + (middle[0] - low) * 0.6,
                *third,
                middle[1] + (high - middle[1]) * np.array([0.15, 0.4]),
            ]
            scaled = 2 * (np.sort(np.hstack(edges)) - low) / (high - low) - 1
            place, count = np.searchsorted(scaled, part[:, 0]), BINS
        elif width > 1:
            place, count = np.argmax(part, axis=1), width + 1
            place[part.max(axis=1) <= 0] = width
        else:
            place, count = (part[:, 0] > 0).astype(int), 3
        if marked:
            place = np.where(x[:, column + width] > 0, count, place)
        found.append((place, count + 1))
        column += width + marked
    return found


def histograms(table: Table, seed: int, epsilon: float) -> tuple[Floats, Floats]:
    """One feature at a time, cyclically."""
    return boosted(table, seed, epsilon, at_once=False)


def all_histograms(table: Table, seed: int, epsilon: float) -> tuple[Floats, Floats]:
    """All features in every pass."""
    return boosted(table, seed, epsilon, at_once=True)


def boosted(table: Table, seed: int, epsilon: float, at_once: bool) -> tuple[Floats, Floats]:
    """Boosting by noisy histograms of saturated residuals; counts once, with a tenth of the budget."""
    rng, sigma = np.random.default_rng([seed, 3]), get_sigma_gaussian(epsilon, DELTA)
    x, y, q, truth = split(table, seed)
    both = bins_of(table, np.vstack([x, q]))
    n, d, passes = len(x), len(both), 20
    rate = float(np.clip(y.mean() + rng.normal(0, sigma * 10 / n), 0.01, 0.99))
    odds = np.full(n + len(q), math.log(rate / (1 - rate)))
    counts = []
    for place, count in both:  # a patient is in d bins: norm sqrt(d)
        exact = np.bincount(place[:n], minlength=count)
        counts.append(np.maximum(exact + rng.normal(0, sigma * math.sqrt(d / 0.1), count), 1.0))
    each = sigma * math.sqrt(passes * d / 0.9)
    for _ in range(passes):
        risk = expit(odds[:n])
        total = np.zeros_like(odds)
        for (place, count), many in zip(both, counts, strict=True):
            if not at_once:
                risk = expit(odds[:n])
            r = (y - risk) / np.maximum(risk, 1 - risk)
            # At once a patient's part is divided by sqrt(d), and the noise is that of one pass.
            noisy = np.bincount(place[:n], r, minlength=count) + rng.normal(0, each, count)
            shrunk = many / (many**2 + each**2)  # a ridge by the noise's own size
            step = 4 * rate * (1 - rate) * noisy * shrunk
            if at_once:
                total += step[place] / math.sqrt(d)
            else:
                odds += 0.5 * step[place]
        odds += total
    return expit(odds[n:]), truth


ARMS: dict[str, Callable[[Table, int, float], tuple[Floats, Floats]]] = {
    "gradients": gradients,
    "histograms": histograms,
    "all histograms": all_histograms,
    "objective": objective,
}


def main() -> None:
    """Print one line for each table, arm and epsilon."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    usual = ["framingham", "flchain", "rhc", "physionet"]
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=usual)
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.0, 3.0, 8.0])
    parser.add_argument("--seeds", type=int, default=5)
    asked = parser.parse_args()
    for name in asked.tables:
        table = TABLES[name]()
        for arm, run in ARMS.items():
            for epsilon in asked.epsilon:
                found = [run(table, seed, epsilon) for seed in range(asked.seeds)]
                auc = interval([float(binary(t.astype(int), p)["auc"] or 0) for p, t in found])
                error = interval([ece(t.astype(int), p, kind="mass") or 0.0 for p, t in found])
                print(f"| {name} | {arm} | {epsilon:g} | {auc} | {error} |", flush=True)


if __name__ == "__main__":
    main()
