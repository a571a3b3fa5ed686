"""The chapter: every printed figure again from its own programme, and the checked figures of our
notes."""

import csv
import json

import pytest

from suture.papers import privacy_stack, reproduce


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    out = tmp_path_factory.mktemp("chapter")
    return reproduce("chapter", out=out), out


def rows(found, table):
    return found[0]["tables"][table]["rows"]


def test_the_printed_programme_gives_the_printed_table(found):
    assert found[0]["p_hat"]["ours"] == privacy_stack.PRINTED["p_hat"]
    for row in rows(found, "rates"):
        printed = privacy_stack.PRINTED["rates"][str(row["epsilon"])]
        ours = (
            row["our sigma"],
            row["our noise (pp)"],
            row["our error"],
            row["our P(right), simulated"],
        )
        assert list(ours) == printed
        assert row["by formula"] == pytest.approx(float(printed[3].rstrip("%")) / 100, abs=0.012)


def test_rounds(found):
    table = {row["rounds"]: row for row in rows(found, "rounds")}
    assert [round(table[n]["exact"], 2) for n in (10, 50, 100)] == [2.69, 6.82, 10.39]
    assert [round(row["our sqrt"], 1) for row in table.values()] == [
        root for _, root in privacy_stack.PRINTED["rounds"].values()
    ]
    assert table[100]["sqrt rule promises too much"] == "yes"


def test_the_label(found):
    table = {row["label"]: row for row in rows(found, "classical")}
    assert round(table[10.0]["true epsilon of the label"], 2) == 10.39
    assert round(table[16.0]["true epsilon of the label"], 1) == 18.9
    assert [table[label]["label holds"] for label in (8.0, 10.0)] == ["yes", "no"]


def test_the_story_and_the_exercises(found):
    assert [row["our rounds"] for row in rows(found, "story")] == [9, 57, 65]
    assert round(rows(found, "exercise1")[0]["epsilon per patient"], 1) == 189.6
    assert rows(found, "exercise1")[2]["epsilon per patient"] == pytest.approx(6.0)
    assert [round(row["our sigma"], 2) for row in rows(found, "exercise3")] == [
        26.87,
        5.11,
        5.15,
        4.83,
    ]
    assert round(rows(found, "exercise3")[1]["true total epsilon"], 2) == 5.62
    safe = {row["patients"]: list(row.values())[1:6] for row in rows(found, "exercise2")}
    assert safe[1000] == pytest.approx([3.98, 3.50, 7.97, 7.88, 0.707], abs=6e-3)
    assert safe[4000] == pytest.approx([1.00, 0.75, 1.99, 1.60, 0.879], abs=6e-3)
    assert safe[16000][:4] == pytest.approx([0.249, 0.165, 0.498, 0.351], abs=6e-4)


def test_files(found):
    made, out = found
    assert json.loads((out / "tables.json").read_text())["tables"] == json.loads(
        json.dumps(made["tables"])
    )
    for name, table in made["tables"].items():
        assert len(list(csv.DictReader((out / f"{name}.csv").read_text().splitlines()))) == len(
            table["rows"]
        )
    assert (out / "index.html").stat().st_size > 100_000
    assert {path.name for path in (out / "figures").glob("*.png")} == {
        "figure1_rounds.png",
        "figure2_reliability.png",
    }
