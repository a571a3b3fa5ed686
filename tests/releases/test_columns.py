"""Released figures: sensitivity by removing every patient, the charge, the same release once,
refusals, no exact count."""

import json

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st

from suture.errors import BudgetExhausted, StudyError
from suture.privacy.accounting.accountant import epsilon
from suture.privacy.ledger.ledger import Ledger
from suture.releases.query import histogram_counts, rate_counts, read_each, release
from suture.schema.table import Schema
from suture.study import Study

SCHEMA = Schema.parse(
    {
        "patient": "id",
        "features": {
            "age": {"kind": "number", "low": 0, "high": 100},
            "ward": {"kind": "category", "values": ["a", "b", "c"]},
            "fell": {"kind": "flag"},
        },
    }
)


def table(rng, patients=40):
    ids = rng.integers(0, patients, 3 * patients)
    ids = np.concatenate([np.arange(patients), ids])
    n = len(ids)
    return {
        "id": ids,
        "age": np.where(rng.random(n) < 0.1, np.nan, rng.uniform(-10, 120, n)),
        "ward": rng.choice(["a", "b", "c"], n),
        "fell": rng.integers(0, 2, n),
        "died": rng.integers(0, 2, n),
    }


def exact(tally):
    return tally.each(tally.table())[0].sum(axis=0)


def all_counts(rows):
    def read(column):
        return read_each(rows, SCHEMA, "died", [column], site="s")[0]

    return [
        rate_counts(read("died")),
        rate_counts(read("fell")),
        rate_counts(read("age"), above=65),
        histogram_counts(read("age"), 7),
        histogram_counts(read("ward")),
        histogram_counts(read("ward"), cap=2),
        histogram_counts(read("age"), 5, cap=3),
    ]


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 1000), st.integers(0, 39))
def test_removing_a_patient_moves_the_counts_by_no_more_than_the_sensitivity(seed, patient):
    rows = table(np.random.default_rng(seed))
    without = {name: column[rows["id"] != patient] for name, column in rows.items()}
    for whole, less in zip(all_counts(rows), all_counts(without), strict=True):
        moved = exact(whole) - exact(less)
        assert np.sqrt(np.sum(moved.astype(float) ** 2)) <= whole.sensitivity
        assert (moved >= 0).all()


def test_the_order_of_rows_does_not_matter():
    rng = np.random.default_rng(1)
    rows = table(rng)
    order = rng.permutation(len(rows["id"]))
    other = {name: column[order] for name, column in rows.items()}
    for one, two in zip(all_counts(rows), all_counts(other), strict=True):
        assert exact(one).tolist() == exact(two).tolist()
        assert (
            one.table().fingerprint() == two.table().fingerprint()
        )  # so the noise is the same too


@pytest.fixture
def study(tmp_path):
    rng = np.random.default_rng(7)
    lines = ["id,age,died"] + [
        f"p{i // 2},{rng.integers(20, 95)},{int(rng.random() < 0.2)}" for i in range(1200)
    ]
    (tmp_path / "boston.csv").write_text("\n".join(lines) + "\n")
    return Study(
        name="ward",
        outcome="died",
        sites=[{"name": "boston", "data": "boston.csv", "patients": 600}],
        schema={"patient": "id", "features": {"age": {"kind": "number", "low": 18, "high": 100}}},
        privacy={"unit": "patient", "epsilon": 2.0},
    )


def ask(study, base, kind="rate", column="died", **options):
    return release(study, kind, column, site="boston", base=base, **{"epsilon": 0.5, **options})


def test_the_charge_is_in_the_ledger_and_is_what_was_said(study, tmp_path):
    found = ask(study, tmp_path)
    with_ledger = Ledger.open(tmp_path / ".suture" / "boston" / "ledger.sqlite", "boston")
    entries = with_ledger.entries("ward/releases")
    assert len(entries) == 1
    noise = json.loads(entries[0].event)["noise"]
    assert noise == found["noise_multiplier"]
    assert epsilon(GaussianDpEvent(noise), 1e-5) <= found["epsilon"] <= 0.5
    assert with_ledger.spent("ward/releases") == pytest.approx(found["spent"], abs=1e-4)
    assert found["budget"] == 2.0
    with_ledger.close()


def test_the_same_question_has_the_same_answer_until_a_person_raises_the_edition(study, tmp_path):
    first, again = ask(study, tmp_path), ask(study, tmp_path)
    assert (first["repeated"], again["repeated"]) == (False, True)
    assert {**first, "repeated": True} == again
    path = tmp_path / "boston.csv"
    path.write_text(path.read_text() + "p9999,50,1\n")
    assert ask(study, tmp_path) == again  # whether a row has changed is not to be seen
    fields = study.to_dict()
    fields["sites"][0]["edition"] = 2
    changed = ask(Study(**fields), tmp_path)
    assert not changed["repeated"]
    assert changed["spent"] > first["spent"]


def test_over_budget_leaves_nothing(study, tmp_path):
    ask(study, tmp_path, epsilon=1.9)
    with pytest.raises(BudgetExhausted, match="nothing was released"):
        ask(study, tmp_path, kind="histogram", column="age", epsilon=1.0)
    assert ask(study, tmp_path, epsilon=1.9)["repeated"]  # what was paid for stays paid for


def test_each_kind_and_mechanism(study, tmp_path):
    for mechanism in ("discrete", "gaussian"):
        rate = ask(study, tmp_path, mechanism=mechanism)
        assert rate["interval"][0] <= rate["rate"] <= rate["interval"][1]
        assert rate["noise_sd"] == pytest.approx(rate["noise_multiplier"], rel=0.01)
        bars = ask(study, tmp_path, kind="histogram", column="age", bins=4, mechanism=mechanism)
        assert [row["bin"] for row in bars["bins"]] == [
            "18 to 38.5",
            "38.5 to 59",
            "59 to 79.5",
            "79.5 to 100",
        ]
        halves = ask(
            study, tmp_path, kind="quantiles", column="age", at=(0.5,), mechanism=mechanism
        )
        assert 50 < halves["quantiles"][0]["value"] < 65
    counts = ask(study, tmp_path, kind="histogram", column="age", cap=2, epsilon=0.3)
    assert (counts["sensitivity"], counts["noise_sd"] > 2 * counts["noise_multiplier"]) == (2, True)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"column": "weight"}, StudyError, "not declared"),
        ({"kind": "mean"}, StudyError, "kind"),
        ({"column": "age"}, StudyError, "--above"),
        ({"epsilon": 0.0}, StudyError, "epsilon"),
        ({"mechanism": "laplace"}, StudyError, "discrete"),
        ({"kind": "quantiles", "column": "died"}, StudyError, "number"),
        ({"kind": "quantiles", "column": "age", "at": (1.0,)}, StudyError, "between 0 and 1"),
        ({"kind": "histogram", "column": "age", "bins": 1}, StudyError, "bins"),
        ({"kind": "histogram", "column": "age", "cap": 0}, StudyError, "cap"),
    ],
)
def test_refusals_charge_nothing(study, tmp_path, options, error, words):
    with pytest.raises(error, match=words):
        ask(study, tmp_path, **options)
    path = tmp_path / ".suture" / "boston" / "ledger.sqlite"
    if path.exists():
        ledger = Ledger.open(path, "boston")
        assert ledger.entries() == []
        ledger.close()


def test_the_first_release_needs_a_budget_and_another_one_later_is_refused(study, tmp_path):
    open_study = study.model_copy(update={"privacy": None})
    with pytest.raises(StudyError, match="--budget"):
        ask(open_study, tmp_path)
    ask(open_study, tmp_path, budget=1.0)
    assert ask(open_study, tmp_path)["budget"] == 1.0
    with pytest.raises(Exception, match="A promise is made once"):
        ask(open_study, tmp_path, budget=3.0)


def test_values_that_are_not_declared_are_missing_and_nothing_is_refused(study, tmp_path, capfd):
    """Whatever the rows hold, the question is answered and charged: a refusal would be a release
    for nothing."""
    path = tmp_path / "boston.csv"
    header = path.read_text().splitlines()[0]
    for rows in (
        "",
        "p1,secretvalue,1\n",
        "p1,inf,maybe\n,50,1\n",
        "p1,1e308,1\np1,1e308,1\np1,-1e308,0\n",
    ):
        path.write_text(f"{header}\n{rows}")
        for kind, column in (("histogram", "age"), ("rate", "died"), ("quantiles", "age")):
            found = ask(study, tmp_path, kind=kind, column=column, epsilon=0.01)
            assert found["ledger_entry"] > 0
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")
    rows = {"id": ["a", "b", ""], "age": ["x", "50", "60"], "died": [0, 1, 1]}
    (column,) = read_each(rows, study.table, "died", ["age"], site="boston")
    assert len(column.starts) - 1 == 2
    np.testing.assert_array_equal(np.sort(column.values), [50.0, np.nan])


def test_no_exact_count_is_in_the_answer(study, tmp_path):
    source = study.sites[0].data.under(tmp_path)
    (column,) = read_each(source, study.table, "died", ["died"], site="boston")
    events, fields, hits = exact(rate_counts(column))[0], study.to_dict(), []
    for edition in (1, 2, 3, 4):
        fields["sites"][0]["edition"] = edition
        found = ask(Study(**fields), tmp_path)
        assert "counts" not in found
        assert found["noise_sd"] > 7
        hits.append((found["patients"], found["events"]) == (600, events))
    # The site's key is fresh. Noise of 7 is 0 in both counts at once in 1 of 300 answers, and in all
    # four of them in 1 of 10^10 (false alarms); an exact count would be in all of them.
    assert not all(hits)
