"""An outcome of three classes from files to the report, and the weighted F1 against
scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import f1_score

from suture.engine import conduct
from suture.errors import StudyError
from suture.evaluation.metrics import binary, measure, measure_lightly
from suture.report.page import render
from suture.study import Study

TOML = """
[study]
name = "wards"
outcome = "goes_to"
classes = ["home", "ward", "icu"]

[[site]]
name = "a"
data = "a.csv"

[[site]]
name = "b"
data = "b.csv"

[schema]
patient = "id"
[schema.features.age]
kind = "number"
low = 0
high = 100

[model]
hidden = [8]

[method]
name = "fedavg"
rounds = 30
local_epochs = 1
rate = 0.2
rate_decay = 0.5
rate_steps = 3

[evaluation]
compare = ["ifedavg", "apfl", "ditto", "finetune", "alone", "pooled"]
metric = "f1_weighted"
"""


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(1)
    for site in "ab":
        lines = ["id,age,goes_to"]
        for n in range(300):
            age = rng.uniform(0, 100)
            lines.append(
                f"{site}{n},{age:.1f},{('home', 'ward', 'icu')[int(age > 40) + int(age > 75)]}"
            )
        (tmp_path / f"{site}.csv").write_text("\n".join(lines))
    (tmp_path / "study.toml").write_text(TOML)
    return tmp_path


def test_three_classes_from_files_to_the_page(folder):
    study = Study.from_toml(folder / "study.toml")
    assert Study.from_text(study.to_toml()) == study
    result = conduct.run(study, base=folder, out=folder / "run", threads=1)
    assert result.data["model"]["sizes"] == [2, 8, 3]
    assert result.data["model"]["classes"] == ["home", "ward", "icu"]
    for name, found in result.data["methods"].items():
        metrics = found["metrics"]
        assert metrics["global"]["auc_ovo"] > 0.9, name
        assert set(metrics["sites"]) == {"a", "b"}
        values = [site["f1_weighted"] for site in metrics["sites"].values()]
        assert metrics["mean_site"]["f1_weighted"] == pytest.approx(np.mean(values))
        assert metrics["worst_site"]["site"] in ("a", "b")
    assert set(result.history[-1]["global"]) == {"accuracy", "f1_weighted", "loss"}
    p = result.predict({"age": [10.0, 60.0, 95.0]})
    assert p.shape == (3, 3)
    assert p.argmax(axis=1).tolist() == [0, 1, 2]
    assert "F1, weighted" in render(result.data)


def test_labels_are_checked(folder):
    text = (folder / "study.toml").read_text()
    with pytest.raises(StudyError, match="different labels"):
        Study.from_text(text.replace('"icu"]', '"ward"]'))
    with pytest.raises(StudyError, match=r"one weight a class \(3\)"):
        Study.from_text(text.replace("rate = 0.2", "rate = 0.2\nclass_weights = [1.0, 2.0]"))


def test_weighted_f1_is_scikit_learns():
    rng = np.random.default_rng(2)
    for _ in range(20):
        y, p = rng.integers(0, 2, 30), rng.random(30)
        expected = f1_score(y, p >= 0.5, average="weighted", zero_division=0)
        assert binary(y, p)["f1_weighted"] == pytest.approx(expected)
        table = rng.dirichlet(np.ones(4), 30)
        labels = rng.integers(0, 4, 30)
        expected = f1_score(labels, table.argmax(axis=1), average="weighted", zero_division=0)
        assert measure(labels, table)["f1_weighted"] == pytest.approx(expected)
        assert measure_lightly(labels, table)["f1_weighted"] == pytest.approx(expected)
