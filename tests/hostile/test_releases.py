"""Findings 1 and 14: an analyst with ``suture release`` who asks twice, or reads refusals."""

import numpy as np
import pytest

from suture.errors import SutureError

from . import rig

SITE = "north"
EXACT_BINS = 10


def bounded(high, **more):
    """The same study but for one declared bound."""
    features = {"age": {"kind": "number", "low": 0, "high": high}, "smoker": {"kind": "flag"}}
    return rig.study((SITE,), schema={"patient": "id", "features": features}, **more)


def local(asked, home):
    """The study as it lies on the site's own machine."""
    sites = [
        {**site.model_dump(exclude_none=True), "data": "rows.csv", "home": str(home)}
        for site in asked.sites
    ]
    return asked.replace(sites=sites)


def released(asked, home, kind="histogram", column="age", **more):
    given = {"site": SITE, "epsilon": 0.5, "budget": 2.0, "base": home, **more}
    return rig.release(local(asked, home), kind, column, **given)


def counts(found):
    return np.array([entry["noisy_count"] for entry in found["bins"]])


@pytest.mark.parametrize("charter", [False, True])
def test_one_histogram_under_two_declared_bounds_is_two_releases(charter, tmp_path):
    """1. Measured before: the second was free and ages in nine of nine bins came out exactly, at
    epsilon 0.5.

    With fresh noise of deviation 7 at nine bins a false alarm has a chance below 1e-9.
    """
    rows = rig.people(60)
    asked, other = bounded(100), bounded(1e9)
    home = tmp_path / SITE
    rig.furnish(home, SITE, rows, [asked, other], charter=asked if charter else None)
    first = released(asked, home, bins=EXACT_BINS)
    try:
        second = released(other, home, bins=EXACT_BINS)
    except SutureError:
        return
    exact = np.histogram([row["age"] for row in rows], bins=EXACT_BINS, range=(0, 100))[0]
    found = counts(first) - counts(second)  # under the wide bound everybody is in the first bin
    assert not np.array_equal(found[1:], exact[1:])
    assert not second["repeated"]
    assert len(rig.charges(home)) == 2


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"low": 0, "high": 100}, {"low": 0, "high": 100, "missing": "fill"}),
        ({"low": 0, "high": 100}, {"low": -1e9, "high": 100}),
        ({"low": 0, "high": 100}, {"low": 0, "high": 100, "thresholds": {"high": 50}}),
    ],
)
def test_no_spelling_of_a_column_gives_the_same_noise_for_another_value(one, two, tmp_path):
    """1, its class. Measured before: another lower bound gave other counts with the same noise,
    called "repeated"."""
    home, found = tmp_path / SITE, []
    spelled = [
        rig.study((SITE,), schema={"patient": "id", "features": {"age": {"kind": "number", **way}}})
        for way in (one, two)
    ]
    rig.furnish(home, SITE, rig.people(60), spelled)
    for asked in spelled:
        try:
            found.append(released(asked, home, bins=EXACT_BINS))
        except SutureError:
            return
    same = np.array_equal(counts(found[0]), counts(found[1]))
    assert same == found[1]["repeated"]
    assert len(rig.charges(home)) == (1 if same else 2)


def test_the_same_release_on_another_day_is_charged_by_public_context_alone(tmp_path):
    """13, in releases. Measured before: repeated = True if and only if no row of the column had
    changed."""
    told = []
    for changed in (False, True):
        home = tmp_path / str(changed) / SITE
        asked = bounded(100)
        rows = rig.people(60)
        rig.furnish(home, SITE, rows, asked)
        released(asked, home)
        rig.write_rows(home / "rows.csv", [*rows, *rig.people(1, 60)] if changed else rows)
        try:
            again = released(asked, home)
            told.append((again["repeated"], again["spent"], len(rig.charges(home))))
        except SutureError as error:
            told.append(str(error).replace(str(home), ""))
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("column", "value"),
    [("smoker", "maybe"), ("high_risk", "perhaps"), ("age", "inf"), ("age", "old"), ("id", "")],
)
def test_a_refusal_says_nothing_that_rows_decide(column, value, tmp_path):
    """14. Measured before: "column 'smoker': 3 rows hold something ..." against 4 rows, and nothing
    charged."""
    told = []
    for wrong in (0, 3, 4):
        home = tmp_path / str(wrong) / SITE
        rows = [row | {column: value} if i < wrong else row for i, row in enumerate(rig.people(60))]
        asked = bounded(100)
        rig.furnish(home, SITE, rows, asked)
        try:
            wanted = ("histogram", "age") if column in ("age", "id") else ("rate", column)
            released(asked, home, *wanted)
            told.append("released")
        except SutureError as error:
            told.append(str(error).replace(str(home), ""))
    assert told[0] == told[1] == told[2]


def test_an_empty_column_is_released_like_any_other(tmp_path):
    """14, its class. Measured before: "no patient has a value in this column" uncharged, against a
    release with one."""
    told = []
    for known in (0, 1):
        home = tmp_path / str(known) / SITE
        rows = rig.people(60, age=lambda i, known=known: 50 if i < known else "")
        asked = bounded(100)
        rig.furnish(home, SITE, rows, asked)
        try:
            found = released(asked, home)
            told.append(("released", found["spent"], len(rig.charges(home))))
        except SutureError as error:
            told.append((str(error).replace(str(home), ""), 0, len(rig.charges(home))))
    assert told[0] == told[1]
