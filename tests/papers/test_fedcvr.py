"""The reproduction: the paper's figures as printed, ours from runs, in every file it names."""

import csv
import json

import pytest

from suture.errors import StudyError
from suture.papers import fedcvr, reproduce


def test_an_unknown_paper_lists_the_known_ones(tmp_path):
    with pytest.raises(StudyError, match="fedcvr"):
        reproduce("fedsgd", out=tmp_path)


def test_full_setting_is_the_paper_s_table_5():
    study = fedcvr.study(1.0)
    method = study.method
    assert (method.rounds, method.local_epochs, method.rate, method.batch) == (100, 5, 0.01, 32)
    assert (method.server_rate, method.beta1, method.beta2, method.tau) == (0.1, 0.9, 0.999, 1e-3)
    assert study.model.hidden == (64, 32)
    assert study.privacy is not None
    assert study.privacy.noise_multiplier == 1.0
    assert set(fedcvr.ORDER) <= set(study.methods)
    assert study.evaluation.seeds == 5
    assert not fedcvr.study(None).private


@pytest.mark.slow
def test_quick_reproduction_writes_every_table_and_figure(tmp_path):
    found = reproduce("fedcvr", out=tmp_path, quick=True)
    assert json.loads((tmp_path / "tables.json").read_text())["tables"] == json.loads(
        json.dumps(found["tables"])
    )
    for name in ("table2", "table3", "table7", "table8", "epsilon"):
        rows = list(
            csv.DictReader((tmp_path / f"{name}.csv").read_text(encoding="utf-8").splitlines())
        )
        assert len(rows) == len(found["tables"][name]["rows"])
    figures = sorted(path.name for path in (tmp_path / "figures").glob("*.png"))
    assert [name[:7] for name in figures] == [f"figure{i}" for i in range(3, 9)]
    table = {row["sigma"]: row for row in found["tables"]["table8"]["rows"]}
    assert table["none"]["proven epsilon (worst hospital)"] is None
    assert table[0.5]["claimed epsilon"] == 80.5
    proven = [table[sigma]["proven epsilon (worst hospital)"] for sigma in (0.5, 1.0, 1.5)]
    assert proven == sorted(proven, reverse=True)
    rows = found["tables"]["table7"]["rows"]
    assert len(rows) == 6
    assert rows[-1]["p (Welch)"] is None
    assert (tmp_path / "index.html").stat().st_size > 100_000
    again = reproduce("fedcvr", out=tmp_path, quick=True)
    assert again["tables"] == found["tables"]
