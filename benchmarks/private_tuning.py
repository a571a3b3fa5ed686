"""Private tuning: what candidates cost, and what they gain. The tables of docs/tuning.md.

    python benchmarks/private_tuning.py --price
    python benchmarks/private_tuning.py --tables framingham rhc --epsilon 1 3 8 --seeds 5

`--price`: of one budget (epsilon, 1e-5), how much Gaussian privacy (mu) and so which epsilon alone is
left to each candidate: by composition, as `method.candidates` charges it, and by Theorem 2 of
Papernot & Steinke (arXiv:2110.03620) for a number of runs from a truncated negative binomial law
with as many on average, each run one Gaussian release, of which only the best is ever seen.

Without it: `fedsgd` with `server_rate` 0.02, 0.1, 0.5, each alone with the whole budget, and all
three as candidates within it.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
from additive import TABLES, federated, interval
from scipy.optimize import brentq

from suture.methods.select import PART
from suture.privacy.accounting.accountant import epsilon_of_mu, mu_for

DELTA = 1e-5
ETAS = (-0.9, -0.5, 0.0, 1.0)
RATES = (0.02, 0.1, 0.5)


def mean_runs(gamma: float, eta: float) -> float:
    """The mean of the truncated negative binomial law (Definition 1 there)."""
    if eta == 0:
        return (1 / gamma - 1) / math.log(1 / gamma)
    return eta * (1 - gamma) / (gamma * (1 - gamma**eta))


def selected(mu: float, eta: float, gamma: float) -> float:
    """Epsilon of the whole selection, each run being a Gaussian release of ``mu``: Theorem 2, and
    the conversion of Canonne, Kamath & Steinke 2020 (Proposition 12)."""
    order = np.concatenate([np.linspace(1.05, 10, 200), np.linspace(10, 400, 800)])
    inner = np.min((1 + eta) * ((1 - 1 / order) * order * mu**2 / 2 - math.log(gamma) / order))
    renyi = order * mu**2 / 2 + inner + math.log(mean_runs(gamma, eta)) / (order - 1)
    return float(np.min(renyi + np.log1p(-1 / order) - np.log(DELTA * order) / (order - 1)))


def price() -> None:
    """Print what is left to each candidate."""
    print(
        "| epsilon in all | candidates | each, by composition | each, if only the best were seen |"
    )
    print("|--:|--:|--:|--:|")
    for whole in (1.0, 3.0, 8.0):
        budget = mu_for(whole, DELTA)
        for count in (2, 3, 4, 8):
            composed = budget * math.sqrt((1 - PART) / count)
            best = 0.0
            for eta in ETAS:
                lowest, highest = mean_runs(1 - 1e-9, eta) - count, mean_runs(1e-9, eta) - count
                if lowest * highest > 0:
                    continue
                gamma = brentq(lambda g, e=eta, c=count: mean_runs(g, e) - c, 1e-9, 1 - 1e-9)
                gap = lambda mu, e=eta, g=gamma, w=whole: selected(mu, e, g) - w  # noqa: E731
                if gap(1e-4) < 0 < gap(budget):
                    best = max(best, brentq(gap, 1e-4, budget))
            alone = (epsilon_of_mu(mu, DELTA) for mu in (composed, best))
            print("| {:g} | {} | {:.2f} | {:.2f} |".format(whole, count, *alone), flush=True)


def main() -> None:
    """Print the price, or one line for each table, arm and epsilon."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--price", action="store_true")
    usual = ["framingham", "flchain", "rhc", "physionet"]
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=usual)
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.0, 3.0, 8.0])
    parser.add_argument("--seeds", type=int, default=5)
    asked = parser.parse_args()
    if asked.price:
        price()
        return
    arms = {f"server_rate {rate:g}": {"rounds": 30, "server_rate": rate} for rate in RATES}
    candidates = [{"server_rate": rate} for rate in RATES]
    arms["best of three"] = {"rounds": 91, "candidates": candidates}
    for name in asked.tables:
        table = TABLES[name]()
        for epsilon in asked.epsilon:
            for arm, settings in arms.items():
                found = [
                    federated(table, seed, epsilon, {"name": "fedsgd", **settings}, {}, model={"hidden": []})
                    for seed in range(asked.seeds)
                ]  # fmt: skip
                auc, ece = (interval([one[key] for one in found]) for key in ("auc", "ece"))
                print(f"| {name} | {epsilon:g} | {arm} | {auc} | {ece} |", flush=True)


if __name__ == "__main__":
    main()
