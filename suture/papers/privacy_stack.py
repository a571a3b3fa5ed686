"""The medical privacy stack (a book's Section 37.3): its printed tables, story and exercises.

What is printed there is in ``privacy_stack.toml``. Ours is computed: the printed programme is run
again with its own seed, and every figure is put beside what can be proven
(``privacy/accounting/accountant.py``, the accountants). Four of the chapter's steps do not hold as
printed, and the tables say so: the classical Gaussian formula above epsilon 1, the square-root rule
as a bound, the noise for a patient's rows, and a reliability that leaves out sampling error.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from suture.papers.reproduction import Chart, Content, More, Row, Tables, Work, printed, rows_under
from suture.privacy.accounting.accountant import (
    analytic_sigma,
    classical_sigma,
    epsilon,
    epsilon_of_mu,
    mu_for,
    true_epsilon,
)
from suture.privacy.accounting.planner import dpsgd_event, noise_for, steps_that_fit
from suture.privacy.accounting.questions import (
    MECHANISMS,
    budget_over_rounds,
    reliability_of,
    safe_epsilon,
)
from suture.report.plans import over_rounds, reliability

TITLE = "The medical privacy stack (chapter 37.3): the chapter's figures beside ours"
DELTA = 1e-5
PATIENTS, RATE, THRESHOLD, TRIALS, SEED = 4000, 0.012, 0.010, 20_000, 7

PRINTED = printed("privacy_stack")
STORY_BUDGET = 8.0
EXERCISE_SIZES = (1000, 4000, 16_000)
EXERCISE_BUDGET, EXERCISE_ROUNDS, EXERCISE_VISITS = 6.0, 40, 12


def reproduce(work: Work) -> Content:
    """Compute every table and write it; takes a few seconds, so there is no quick version."""
    rates, p_hat = _printed_programme()
    tables: Tables = {
        "rates": ("Output 37.3.2: a noisy adverse-event rate", rates),
        "rounds": ("Budget over rounds labelled epsilon 1 each", _rounds()),
        "classical": ("The classical formula's label and the truth, delta 1e-5", _classical()),
        "story": ("The sepsis story: rounds within epsilon 8", _story()),
        "exercise1": ("Exercise 1: a patient with 12 records at epsilon 6", _exercise_1()),
        "exercise2": ("Exercise 2: the smallest safe epsilon at 95 %", _exercise_2()),
        "exercise3": ("Exercise 3: 40 rounds within epsilon 6", _exercise_3()),
    }
    more: More = {"p_hat": {"printed": PRINTED["p_hat"], "ours": f"{p_hat:.3%}"}}
    return replace(work, quick=False).publish(TITLE, tables, PRINTED["notes"], _charts(), more)


def _right(sigma: float, rate: float, patients: int = PATIENTS) -> float:
    """How often the flag is right under this noise."""
    return reliability_of(sigma, rate=rate, threshold=THRESHOLD, patients=patients)


def _printed_programme() -> tuple[list[Row], float]:
    """The programme of Code 37.3.2 with its own seed, draw by draw, and the same by formula."""
    rng = np.random.default_rng(SEED)
    p_hat = float((rng.random(PATIENTS) < RATE).mean())
    rows: list[Row] = []
    for text, (sigma, sd, error, right) in PRINTED["rates"].items():
        label = float(text)
        noise = classical_sigma(label, DELTA) / PATIENTS
        noisy = p_hat + rng.normal(0.0, noise, size=TRIALS)
        flagged = np.mean((noisy > THRESHOLD) == (p_hat > THRESHOLD))
        rows.append(
            {
                "epsilon": label,
                "chapter sigma": sigma,
                "our sigma": f"{noise:.2e}",
                "chapter noise (pp)": sd,
                "our noise (pp)": f"{noise * 100:.3f}",
                "chapter error": error,
                "our error": f"{np.mean(np.abs(noisy - p_hat)) / p_hat:.1%}",
                "chapter P(right)": right,
                "our P(right), simulated": f"{flagged:.1%}",
                "by formula": _right(noise * PATIENTS, p_hat),
                "true epsilon": true_epsilon(label, DELTA),
                "analytic, same epsilon": _right(analytic_sigma(label, DELTA), p_hat),
            }
        )
    return rows, p_hat


def _rounds() -> list[Row]:
    history = budget_over_rounds(
        rounds=100, round_epsilon=1.0, at=[int(count) for count in PRINTED["rounds"]]
    )
    lines = []
    for ours in history["rows"]:
        count = ours["round"]
        basic, root = PRINTED["rounds"][str(count)]
        exact, wrong = true_epsilon(1.0, DELTA, count), _yes(ours["sqrt_rule_promises_too_much"])
        lines.append(
            (count, basic, root, ours["basic"], math.sqrt(count), ours["rdp"], exact, wrong)
        )
    return rows_under(
        "rounds | chapter basic | chapter sqrt | our basic (total delta) | our sqrt | our RDP | "
        "exact | sqrt rule promises too much",
        lines,
    )


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


def _classical() -> list[Row]:
    lines = []
    for label in (0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 16.0):
        classical, analytic = classical_sigma(label, DELTA), analytic_sigma(label, DELTA)
        true = true_epsilon(label, DELTA)
        lines.append((label, classical, analytic, true, _yes(true <= label), _yes(label < 1)))
    return rows_under(
        "label | classical sigma | analytic sigma | true epsilon of the label | label holds | "
        "proven",
        lines,
    )


def _story() -> list[Row]:
    sigma, rows = classical_sigma(1.0, DELTA), []
    for accountant, (name, rounds) in PRINTED["story"].items():
        count = steps_that_fit(STORY_BUDGET, DELTA, sigma, 1.0, accountant)
        then, later = (
            epsilon(dpsgd_event(sigma, 1.0, steps), DELTA, accountant)
            for steps in (count, count + 1)
        )
        row: Row = {"accounting": name, "chapter rounds": rounds, "our rounds": count}
        rows.append({**row, "epsilon then": then, "epsilon one round later": later})
    return rows


def _exercise_1() -> list[Row]:
    """Noise for one record at epsilon 6, and what it is worth for a patient with twelve."""
    mu, budget, visits = mu_for(EXERCISE_BUDGET, DELTA), EXERCISE_BUDGET, EXERCISE_VISITS
    alone, twelfth, whole = (epsilon_of_mu(m, DELTA) for m in (mu, mu / visits, visits * mu))
    return rows_under(
        "what is clipped | noise (in clips) | epsilon per record | epsilon per patient",
        (
            ("each record, promised per record", 1 / mu, budget, whole),
            ("each record, noise 12 times (the chapter's mC)", visits / mu, twelfth, budget),
            ("the sum of the patient's records (Suture)", 1 / mu, budget, alone),
        ),
    )


def _exercise_2() -> list[Row]:
    rows: list[Row] = []
    for patients in EXERCISE_SIZES:
        at_rate, at_own = (
            safe_epsilon(rate=rate, threshold=THRESHOLD, patients=patients, delta=DELTA)
            for rate in (RATE, 0.011)
        )
        row: Row = {"patients": patients}
        for rate, found in (("1.2 %", at_rate), ("1.1 %", at_own)):
            for way in ("classical", "analytic"):
                row[f"{way}, rate {rate}"] = found["without_sampling_error"][way]["epsilon"]
        sampled = at_rate["with_sampling_error"]
        row["best with sampling error"] = sampled["best_possible"]
        row["analytic with sampling error"] = (
            sampled["analytic"]["epsilon"] if sampled["reachable"] else "out of reach"
        )
        rows.append(row)
    return rows


def _exercise_3() -> list[Row]:
    total, rounds = EXERCISE_BUDGET, EXERCISE_ROUNDS
    shared, rooted = total / rounds, total / math.sqrt(rounds)
    plans = [
        ("basic, T epsilon = 6", f"{shared:.2f}", analytic_sigma(shared, DELTA / rounds)),
        ("sqrt rule, epsilon sqrt(T) = 6", f"{rooted:.3f}", classical_sigma(rooted, DELTA)),
        ("Rényi DP", "", noise_for(total, DELTA, 1.0, rounds, "rdp")),
        ("exact Gaussian DP", "", analytic_sigma(total, DELTA) * math.sqrt(rounds)),
    ]
    least = plans[-1][2]
    return rows_under(
        "accounting | epsilon a round | our sigma | true total epsilon | noise against the least",
        (
            (name, label, sigma, epsilon_of_mu(math.sqrt(rounds) / sigma, DELTA), sigma / least)
            for name, label, sigma in plans
        ),
    )


def _charts() -> dict[str, tuple[Chart, str]]:
    points = rows_under(
        "site | mechanism | epsilon | right",
        (
            (
                f"{size:,} patients",
                f"{name} Gaussian",
                label,
                _right(sigma(label, DELTA), RATE, size),
            )
            for size in EXERCISE_SIZES
            for name, sigma in MECHANISMS.items()
            for label in np.geomspace(0.05, 10, 60).round(4).tolist()
        ),
    )
    rounds = over_rounds(budget_over_rounds(rounds=100, round_epsilon=1.0, budget=STORY_BUDGET))
    right = reliability(points, THRESHOLD, 0.95)
    added = "Four ways to add up rounds labelled 1 each, and the story's budget of 8."
    private = "How private a site of each size can be while its safety flag stays right."
    return {"figure1_rounds": (rounds, added), "figure2_reliability": (right, private)}
