"""A search for the message that moves one patient's contribution most: for each private method,
phase and wrapper.

Messages of the kinds that once broke something, random ones, extreme floats, then hill climbing
from the worst; all within the ranges that a site checks first. What is found is a lower bound on
the true sensitivity, so nothing here raises a false alarm: exact sums are compared with the
sensitivity that their mechanism declares, and of a training only what is certain beyond the spacing
of floats (`rig.contribution`).
"""

import numpy as np
import pytest

from suture.methods.registry import METHODS, declared
from suture.privacy.unit import Patients
from suture.schema.outcome import TICKS, TWO, Survival

from . import rig

pytestmark = pytest.mark.filterwarnings("default")
LARGE = [
    0.0,
    1e-45,
    1e-38,
    1e-20,
    1e-6,
    0.5,
    1.0,
    8.0,
    36.5,
    40.0,
    89.0,
    1e3,
    6e7,
    1e12,
    1e19,
    2e19,
    1e30,
    3.4e38,
    2.0**20,
    2.0**19,
    1e5,
]
SHORT, LONG = 50, 1500
WITH_GROUPS = {"groups": ["visit"], "protected": {"column": "visit", "values": ["F", "M"]}}


def cases():
    """Every name that a study with a promise may use, with the settings that change what a site
    computes."""
    found = {}
    for name in METHODS:
        if declared(name).unproven or name in ("pooled", "veil", "fairfed", "ifedavg"):
            continue
        found[name] = {"method": {"name": name, "proximal": 0.0}}
    found["additive"]["method"]["rounds"] = 4
    found |= {f"additive {r}": {**found["additive"], "round": r} for r in (2, 4)}
    for name in (name for name in METHODS if declared(name).global_model):
        schema = {"schema": WITH_GROUPS} if name == "fairfed" else {}
        found[f"{name}, ensemble"] = {
            "method": {"name": name, "ensemble": True, "proximal": 0.0},
            **schema,
        }
    followed = {"outcome": {"time": "days", "event": "death", "horizon": 9.0, "intervals": 3}}
    for name, case in list(found.items()):
        if (
            Survival in declared(case["method"]["name"]).outcomes
            and "ensemble" not in case["method"]
        ):
            found[f"{name}, follow-up"] = {**case, **followed}
    for into in ("none", "vector", "scalar"):
        for out in ("none", "vector", "scalar", "bias", "weight"):
            layers = {
                "name": "ifedavg",
                "input_layer": into,
                "output_layer": out,
                "share_layers": True,
            }
            found[f"ifedavg {into} {out}"] = {"method": layers}
    for secure in (True, False):
        found[f"fairfed {secure}"] = {
            "method": {"name": "fairfed", "secure_rates": secure},
            "schema": WITH_GROUPS,
        }
    for mode in ("votes", "votes+moments", "secure"):
        for round_ in range(1, 5):
            given = {"name": "veil", "mode": mode, "rounds": 4, "concepts": 3, "picks": 2}
            found[f"veil {mode} {round_}"] = {"method": given, "round": round_}
    for round_ in range(1, 5):
        given = {"name": "veil", "mode": "secure", "rounds": 4, "concepts": 3, "teams": 3}
        names = tuple(f"h{i}" for i in range(20))
        found[f"veil teams {round_}"] = {
            "method": given,
            "round": round_,
            "names": names,
            "declared": 500,
        }
    return found


CASES = cases()


def study_of(case):
    given = dict(CASES[case])
    round_, names, declared = (
        given.pop("round", 1),
        given.pop("names", rig.SITES),
        given.pop("declared", rig.DECLARED),
    )
    rig_study = rig.study(names, declared=declared, model={"hidden": [3]}, **given)
    return rig_study, round_


def codes(rng, outcome, count):
    """Outcomes: two classes, or follow-up with and without an event, up to and beyond the horizon."""
    if outcome.two:
        return rng.integers(0, 2, count)
    return (
        rng.integers(0, 2 * TICKS + 3, count)
        if rng.random() < 0.5
        else rng.choice([0, 1, TICKS, TICKS + 1, 2 * TICKS, 2 * TICKS + 1, 2 * TICKS + 2], count)
    )


def table(rng, count, width, groups, outcome):
    """Patients of one row, or of several; values within the bounds, some at them."""
    rows = rng.choice([1, 1, 3], count)
    x = rng.choice([-1.0, 0.0, 1.0, 0.3], (rows.sum(), width)).astype(np.float32)
    starts = np.append(0, np.cumsum(rows))
    return Patients(
        x, codes(rng, outcome, len(x)), starts, rng.integers(-1, 2, count) if groups else None
    )


def neighbours(rng, width, groups, outcome=TWO):
    """Two tables; the patient that one has more comes last and has one row, a few, or more than a
    block."""
    less = table(rng, int(rng.choice([1, 5, 64])), width, groups, outcome)
    extra = int(rng.choice([1, 1, 2, 12, 70]))
    x = rng.choice([-1.0, 1.0, 0.0], (extra, width)).astype(np.float32)
    y = codes(rng, outcome, extra)
    y = y if rng.random() < 0.5 else np.full(extra, y[0])
    starts = np.append(less.starts, less.rows + extra)
    group = None if less.group is None else np.append(less.group, rng.integers(-1, 2))
    more = Patients(np.concatenate([less.x, x]), np.concatenate([less.y, y]), starts, group)
    return more, less


def any_array(rng, array):
    """A replacement of the same shape and type."""
    if array.dtype.kind == "f":
        ways = [
            lambda: rng.normal(size=array.shape),
            lambda: rng.normal(size=array.shape) * rng.choice(LARGE),
            lambda: np.full(array.shape, rng.choice(LARGE) * rng.choice([-1, 1])),
            lambda: rng.choice(LARGE, array.shape) * rng.choice([-1, 1], array.shape),
            lambda: (
                np.where(rng.random(array.shape) < 0.3, rng.choice(LARGE), 0.0)
                * rng.choice([-1, 1], array.shape)
            ),
            lambda: array + rng.choice(LARGE),
            lambda: _last(array, rng.choice(LARGE), int(rng.integers(1, 4))),
        ]
        with np.errstate(over="ignore"):
            return np.clip(ways[rng.integers(len(ways))](), -3.4e38, 3.4e38).astype(array.dtype)
    if array.dtype == np.int8:
        return rng.integers(-127, 128, array.shape).astype(np.int8)
    if array.dtype.kind == "b":
        return rng.random(array.shape) < 0.5
    return array


def _last(array, value, count):
    found = array.astype(np.float64).copy()
    found.reshape(-1)[-count:] += value
    return found


def any_message(rng, honest, concepts):
    """All arrays replaced; where concepts are named, some of them are."""
    found = dict(honest)
    if "ids" in found and concepts:
        ids = np.sort(
            rng.choice(concepts, int(rng.integers(0, min(3, concepts) + 1)), replace=False)
        ).astype(found["ids"].dtype)
        found["ids"] = ids
        for name in ("weights", "centre"):
            if name in found:
                found[name] = np.zeros(len(ids), found[name].dtype)
    return {
        name: array if name in ("ids", "ask", "phase") else any_array(rng, array)
        for name, array in found.items()
    }


def corpus(rng, honest, concepts):
    """Messages of the kinds that have broken something once: large numbers that cancel, or that
    overflow both ways."""
    for value in (2.0**20, 3e4, 3.4e38):
        for way in range(3):
            found = any_message(rng, honest, concepts)
            if "ids" in found and concepts:
                ids = np.arange(min(3, concepts), dtype=found["ids"].dtype)
                found |= {
                    "ids": ids,
                    "weights": np.zeros(len(ids), found["weights"].dtype),
                    "bias": np.zeros(1, np.float32),
                }
                found |= (
                    {"centre": rng.choice([-127, 0, 127], len(ids)).astype(np.int8)}
                    if "centre" in found
                    else {}
                )
            for name, array in found.items():
                if (
                    array.dtype.kind != "f"
                    or not array.size
                    or (name in ("bias", "base") and concepts)
                ):
                    continue
                signs = np.resize([1.0, -1.0] if way == 1 else [1.0], array.shape)
                filled = value * signs if way < 2 else _last(rng.normal(size=array.shape), value, 2)
                found[name] = np.clip(filled, -3.4e38, 3.4e38).astype(array.dtype)
            yield found


def climbed(rng, message):
    """A neighbour of a message: some of its floats scaled, moved to the next float, negated or
    exchanged."""
    found = dict(message)
    floats = [name for name, array in found.items() if array.dtype.kind == "f" and array.size]
    if not floats:
        return found
    name = floats[rng.integers(len(floats))]
    array = found[name].copy().reshape(-1)
    at = rng.integers(len(array), size=max(1, len(array) // 4))
    with np.errstate(over="ignore", invalid="ignore"):
        way = rng.integers(4)
        if way == 0:
            array[at] *= np.float32(rng.choice([0.5, 2.0, 10.0, -1.0]))
        elif way == 1:
            array[at] = np.nextafter(array[at], np.float32(rng.choice([-np.inf, np.inf])))
        elif way == 2:
            array[at] = rng.choice(LARGE) * rng.choice([-1, 1])
        else:
            array[at] += rng.normal(size=len(at)).astype(np.float32)
    found[name] = (
        np.clip(np.nan_to_num(array), -3.4e38, 3.4e38)
        .astype(found[name].dtype)
        .reshape(found[name].shape)
    )
    return found


def searched(case, tries, seed=0):
    """The worst ratio of what moved to what may move, and what did it."""
    asked, round_ = study_of(case)
    rng = np.random.default_rng([seed, *case.encode()])
    honest = rig.message_of(asked, round_)
    method = rig.method_of(asked)
    concepts = len(method.dictionary) if hasattr(method, "dictionary") else 0
    width, groups = len(rig.features_of(asked)), asked.table.protected is not None
    worst, kept, answered = 0.0, None, 0
    known = [message for _ in range(4) for message in corpus(rng, honest, concepts)]
    for number in range(tries):
        climbing = kept is not None and number > max(tries // 3, len(known)) and rng.random() < 0.7
        more, less = kept[:2] if climbing else neighbours(rng, width, groups, asked.target or TWO)
        message = climbed(rng, kept[2]) if climbing else any_message(rng, honest, concepts)
        if number < len(known):
            message = known[number]
        message = rig.allowed(asked, message, round_)
        moved, limit = rig.contribution(asked, more, less, message, round_)
        answered += np.isfinite(moved) and moved > 0
        if moved / limit > worst:
            worst, kept = moved / limit, (more, less, message)
        if worst > 1:
            break
    assert answered > tries // 10 or worst > 1 or _nothing(method, round_), (
        "most messages were refused: nothing was tried"
    )
    return worst, kept


def _nothing(method, round_):
    """Whether the first site has no part in this round."""
    return hasattr(method, "phase") and method.phase(round_, "h0") == "rest"


@pytest.mark.parametrize("case", CASES)
def test_no_message_moves_one_patient_s_part_beyond_the_sensitivity(case):
    """Measured before: a tied scale 16 C and more; VEIL's step in secure mode an error that only
    one of the tables makes."""
    worst, kept = searched(case, SHORT)
    assert worst <= 1, f"{worst:g} times the sensitivity by {kept and kept[2]}"


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_same_at_length(case):
    worst, kept = searched(case, LONG, seed=1)
    assert worst <= 1, f"{worst:g} times the sensitivity by {kept and kept[2]}"
