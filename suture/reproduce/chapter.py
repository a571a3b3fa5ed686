"""The chapter on the medical privacy stack (Section 37.3): its printed tables, story and exercises beside ours.

What is printed there is kept below as constants. Ours is computed: the printed programme is run again with its own seed,
and every figure is then put beside what can be proven (``privacy/gaussian.py``, the accountants). Four of the chapter's
steps do not hold as printed, and the tables say so: the classical Gaussian formula above epsilon 1, the square-root rule
as a bound, the noise of a patient's rows, and a reliability that leaves out sampling error.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from suture.privacy.accountant import epsilon
from suture.privacy.calibration import dpsgd_event, noise_for, steps_that_fit
from suture.privacy.gaussian import analytic_sigma, classical_sigma, epsilon_of_mu, mu_for, true_epsilon
from suture.privacy.histories import budget_over_rounds
from suture.privacy.safe import MECHANISMS, reliability_of, safe_epsilon
from suture.runfolder import write_whole

TITLE = "The medical privacy stack (chapter 37.3): the chapter's figures beside ours"
DELTA = 1e-5
PATIENTS, RATE, THRESHOLD, TRIALS, SEED = 4000, 0.012, 0.010, 20_000, 7

# Output 37.3.2: epsilon -> (sigma, noise sd in percentage points, relative error, P(correct flag))
PRINTED_RATES = {
    0.1: ("1.21e-02", "1.211", "87.2%", "53.2%"),
    0.5: ("2.42e-03", "0.242", "17.6%", "65.4%"),
    1.0: ("1.21e-03", "0.121", "8.8%", "79.8%"),
    2.0: ("6.06e-04", "0.061", "4.4%", "94.8%"),
    4.0: ("3.03e-04", "0.030", "2.2%", "100.0%"),
    8.0: ("1.51e-04", "0.015", "1.1%", "100.0%"),
}
PRINTED_P_HAT = "1.100%"
# rounds -> (basic, sqrt) at epsilon 1 a round
PRINTED_ROUNDS = {1: (1.0, 1.0), 10: (10.0, 3.2), 50: (50.0, 7.1), 100: (100.0, 10.0)}
PRINTED_STORY = {"budget": 8.0, "basic": "8", "rdp": "about 60"}
EXERCISE_SIZES = (1000, 4000, 16_000)
EXERCISE_BUDGET, EXERCISE_ROUNDS, EXERCISE_VISITS = 6.0, 40, 12


def reproduce(out: Path) -> dict[str, Any]:
    """Compute every table and write JSON, CSV, figures and one page, in a few seconds."""
    out.mkdir(parents=True, exist_ok=True)
    rates, p_hat = _printed_programme()
    found: dict[str, Any] = {
        "paper": "chapter",
        "title": TITLE,
        "quick": False,
        "p_hat": {"printed": PRINTED_P_HAT, "ours": f"{p_hat:.3%}"},
        "tables": {
            "rates": {"title": "Output 37.3.2: a noisy adverse-event rate", "rows": rates},
            "rounds": {"title": "Budget over rounds labelled epsilon 1 each", "rows": _rounds()},
            "classical": {"title": "The classical formula's label and the truth, delta 1e-5", "rows": _classical()},
            "story": {"title": "The sepsis story: rounds within epsilon 8", "rows": _story()},
            "exercise1": {"title": "Exercise 1: a patient with 12 records at epsilon 6", "rows": _exercise_1()},
            "exercise2": {"title": "Exercise 2: the smallest safe epsilon at 95 %", "rows": _exercise_2()},
            "exercise3": {"title": "Exercise 3: 40 rounds within epsilon 6", "rows": _exercise_3()},
        },
        "notes": NOTES,
    }
    from suture.reproduce import pages

    drawn = _charts()
    found["figures"] = pages.save_figures(drawn, out)
    found["page"] = str(pages.write(found, drawn, CAPTIONS, out))
    pages.write_csv(found["tables"], out)
    write_whole(out / "tables.json", json.dumps(found, indent=1, allow_nan=False).encode())
    return found


NOTES = (
    "The printed table scores the flag against the site's own rate (1.1 %), not against the true rate (1.2 %); the "
    "column by formula needs no simulation.",
    "The classical Gaussian formula is proven for epsilon below 1 only. At delta 1e-5 its label is safe up to about 8.4 "
    "and false above.",
    "The square-root rule is no bound: too high for few rounds, too low for many. Basic composition as printed (T times "
    "epsilon) also multiplies delta by T; ours holds at the total delta.",
    "Exercise 1: the chapter multiplies the noise by the number of records. Summing a patient's records first and then "
    "clipping the sum needs no more noise than one record does; clipping records and promising per patient is false.",
    "Exercise 2: with sampling error counted, 95 % is out of reach at 1,000 and 4,000 patients even without noise.",
    "Everything is at the level of patients, add or remove one, delta 1e-5.",
)

CAPTIONS = {
    "figure1_rounds": "Four ways to add up rounds labelled 1 each, and the story's budget of 8.",
    "figure2_reliability": "How private a site of each size can be while its safety flag stays right.",
}


def _printed_programme() -> tuple[list[dict[str, Any]], float]:
    """The programme of Code 37.3.2 with its own seed, draw by draw, and the same column by formula."""
    rng = np.random.default_rng(SEED)
    p_hat = float((rng.random(PATIENTS) < RATE).mean())
    rows = []
    for label, (sigma, sd, error, right) in PRINTED_RATES.items():
        noise = classical_sigma(label, DELTA) / PATIENTS
        noisy = p_hat + rng.normal(0.0, noise, size=TRIALS)
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
                "our P(right), simulated": f"{np.mean((noisy > THRESHOLD) == (p_hat > THRESHOLD)):.1%}",
                "by formula": reliability_of(noise * PATIENTS, rate=p_hat, threshold=THRESHOLD, patients=PATIENTS),
                "true epsilon": true_epsilon(label, DELTA),
                "analytic, same epsilon": reliability_of(
                    analytic_sigma(label, DELTA), rate=p_hat, threshold=THRESHOLD, patients=PATIENTS
                ),
            }
        )
    return rows, p_hat


def _rounds() -> list[dict[str, Any]]:
    ours = {
        row["round"]: row for row in budget_over_rounds(rounds=100, round_epsilon=1.0, at=list(PRINTED_ROUNDS))["rows"]
    }
    return [
        {
            "rounds": count,
            "chapter basic": basic,
            "chapter sqrt": root,
            "our basic (total delta)": ours[count]["basic"],
            "our sqrt": math.sqrt(count),
            "our RDP": ours[count]["rdp"],
            "exact": true_epsilon(1.0, DELTA, count),
            "sqrt rule promises too much": "yes" if ours[count]["sqrt_rule_promises_too_much"] else "no",
        }
        for count, (basic, root) in PRINTED_ROUNDS.items()
    ]


def _classical() -> list[dict[str, Any]]:
    return [
        {
            "label": label,
            "classical sigma": classical_sigma(label, DELTA),
            "analytic sigma": analytic_sigma(label, DELTA),
            "true epsilon of the label": true_epsilon(label, DELTA),
            "label holds": "yes" if true_epsilon(label, DELTA) <= label else "no",
            "proven": "yes" if label < 1 else "no",
        }
        for label in (0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 16.0)
    ]


def _story() -> list[dict[str, Any]]:
    sigma, budget = classical_sigma(1.0, DELTA), float(str(PRINTED_STORY["budget"]))
    rows = []
    for way, printed in (("basic", PRINTED_STORY["basic"]), ("rdp", PRINTED_STORY["rdp"]), ("pld", "")):
        count = steps_that_fit(budget, DELTA, sigma, 1.0, way)
        rows.append(
            {
                "accounting": {"basic": "basic composition", "rdp": "Rényi DP", "pld": "exact Gaussian DP"}[way],
                "chapter rounds": printed,
                "our rounds": count,
                "epsilon then": epsilon(dpsgd_event(sigma, 1.0, count), DELTA, way),
                "epsilon one round later": epsilon(dpsgd_event(sigma, 1.0, count + 1), DELTA, way),
            }
        )
    return rows


def _exercise_1() -> list[dict[str, Any]]:
    """Noise for one record at epsilon 6, and what it is worth for a patient with twelve."""
    mu, visits = mu_for(EXERCISE_BUDGET, DELTA), EXERCISE_VISITS
    return [
        {
            "what is clipped": "each record, promised per record",
            "noise (in clips)": 1 / mu,
            "epsilon per record": EXERCISE_BUDGET,
            "epsilon per patient": epsilon_of_mu(visits * mu, DELTA),
        },
        {
            "what is clipped": "each record, noise 12 times (the chapter's mC)",
            "noise (in clips)": visits / mu,
            "epsilon per record": epsilon_of_mu(mu / visits, DELTA),
            "epsilon per patient": EXERCISE_BUDGET,
        },
        {
            "what is clipped": "the sum of the patient's records (Suture)",
            "noise (in clips)": 1 / mu,
            "epsilon per record": EXERCISE_BUDGET,
            "epsilon per patient": epsilon_of_mu(mu, DELTA),
        },
    ]


def _exercise_2() -> list[dict[str, Any]]:
    rows = []
    for patients in EXERCISE_SIZES:
        own = safe_epsilon(rate=0.011, threshold=THRESHOLD, patients=patients, delta=DELTA)["without_sampling_error"]
        found = safe_epsilon(rate=RATE, threshold=THRESHOLD, patients=patients, delta=DELTA)
        true, sampled = found["without_sampling_error"], found["with_sampling_error"]
        rows.append(
            {
                "patients": patients,
                "classical, rate 1.2 %": true["classical"]["epsilon"],
                "analytic, rate 1.2 %": true["analytic"]["epsilon"],
                "classical, rate 1.1 %": own["classical"]["epsilon"],
                "analytic, rate 1.1 %": own["analytic"]["epsilon"],
                "best with sampling error": sampled["best_possible"],
                "analytic with sampling error": sampled["analytic"]["epsilon"]
                if sampled["reachable"]
                else "out of reach",
            }
        )
    return rows


def _exercise_3() -> list[dict[str, Any]]:
    total, rounds = EXERCISE_BUDGET, EXERCISE_ROUNDS
    shared, rooted = total / rounds, total / math.sqrt(rounds)
    plans = [
        ("basic, T epsilon = 6", f"{shared:.2f}", analytic_sigma(shared, DELTA / rounds)),
        ("sqrt rule, epsilon sqrt(T) = 6", f"{rooted:.3f}", classical_sigma(rooted, DELTA)),
        ("Rényi DP", "", noise_for(total, DELTA, 1.0, rounds, "rdp")),
        ("exact Gaussian DP", "", analytic_sigma(total, DELTA) * math.sqrt(rounds)),
    ]
    return [
        {
            "accounting": name,
            "epsilon a round": label,
            "our sigma": sigma,
            "true total epsilon": epsilon_of_mu(math.sqrt(rounds) / sigma, DELTA),
            "noise against the least": sigma / plans[-1][2],
        }
        for name, label, sigma in plans
    ]


def _charts() -> dict[str, Any]:
    from suture.report.figures_plan import over_rounds, reliability

    history = budget_over_rounds(rounds=100, round_epsilon=1.0, budget=float(str(PRINTED_STORY["budget"])))
    points = [
        {
            "site": f"{patients:,} patients",
            "mechanism": f"{name} Gaussian",
            "epsilon": label,
            "right": reliability_of(sigma(label, DELTA), rate=RATE, threshold=THRESHOLD, patients=patients),
        }
        for patients in EXERCISE_SIZES
        for name, sigma in MECHANISMS.items()
        for label in np.geomspace(0.05, 10, 60).round(4).tolist()
    ]
    return {"figure1_rounds": over_rounds(history), "figure2_reliability": reliability(points, THRESHOLD, 0.95)}
