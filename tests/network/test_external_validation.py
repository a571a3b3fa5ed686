"""A finished model at hospitals that did not train it, each a process of its own: the figures of one
process, charged in each hospital's ledger."""

import json
import math
import shutil
from contextlib import closing

import pytest
from support.bench import table, the_study

from suture.explain.run import FinishedRun
from suture.privacy.ledger.ledger import Ledger
from suture.statistics.evaluation import external, model_of
from suture.statistics.publish import ask, figures_of
from suture.study import Study

TRAINED, OTHERS = ("a", "b", "c"), ("x", "y", "z")


def sites(folder, names, first, **more):
    """A study file, and a table and a secret for each of its hospitals."""
    folder.mkdir()
    for number, name in enumerate(names, first):
        table(folder / f"{name}.csv", number, 400)
        home = folder / ".suture" / name
        home.mkdir(parents=True)
        (home / "secret.key").write_bytes(bytes([number]) * 32)
    places = [{"name": name, "data": f"{name}.csv", "patients": 300} for name in names]
    asked = the_study(names, name=folder.name, sites=places, federation={"deadline": 60.0}, **more)
    (folder / "study.toml").write_text(asked.to_toml())


@pytest.fixture(scope="module")
def run(tmp_path_factory, suture_command):
    folder = tmp_path_factory.mktemp("external")
    sites(folder / "trained", TRAINED, 1)
    suture_command(
        "run", "trained/study.toml", "--out", "run", "--unchecked", cwd=folder, check=True
    )
    return folder


def evaluated(suture_command, folder, *given):
    order = ("evaluate", "run", "--unchecked", "--json", *given)
    done = suture_command(*order, cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("sum_", ["trusted", "masked"])
def test_external_validation_over_flower_has_the_figures_of_one_process(run, suture_command, sum_):
    """With the same secrets, to the last bit; but under masks every sum has noise of its own."""
    pytest.importorskip("flwr", reason="pip install 'suture[flower]'")
    sites(run / sum_, OTHERS, 11, protection={"sum": sum_, "spare": 0})
    shutil.copytree(run / sum_, run / f"{sum_} here")
    asked = ("--sites", f"{sum_}/study.toml", "--epsilon", "4", "--engine", "flower")
    there = evaluated(suture_command, run, *asked)
    account, ledgers = f"{sum_}/evaluate", run / sum_ / ".suture"
    for name in OTHERS:
        with closing(Ledger.read(ledgers / name / "ledger.sqlite")) as ledger:
            assert [entry.round for entry in ledger.entries(account)] == [1, 2]
            assert 3.9 < ledger.spent(account) <= 4.0
            assert there["privacy"]["sites"][name] == pytest.approx(ledger.spent(account))
    finished = FinishedRun.open(run / "run")
    other = Study.from_toml(run / f"{sum_} here" / "study.toml")
    here = figures_of(
        ask(
            external(finished.study, other, finished.record),
            "evaluate",
            epsilon=4.0,
            rounds=2,
            base=run / f"{sum_} here",
            begin=model_of(finished.result),
            of="fedavg",
            tests=False,
            honest=0.5 if sum_ == "masked" else 1 / 3,
        )
    )
    if sum_ == "trusted":
        assert json.loads(json.dumps(here)) == there["figures"]
        again = evaluated(suture_command, run, *asked)  # answered as before, and not charged
        assert again["figures"] == there["figures"]
        with closing(Ledger.read(ledgers / "x" / "ledger.sqlite")) as ledger:
            assert len(ledger.entries(account)) == 2
    one, two = here["all"]["auc"], there["figures"]["all"]["auc"]
    assert abs(one["value"] - two["value"]) < 4 * math.hypot(one["deviation"], two["deviation"])
    assert 0.8 < two["interval"][0] < two["interval"][1] < 1


def test_what_sites_accept_is_written_and_nothing_is_asked(run, suture_command):
    sites(run / "far", OTHERS, 21)
    asked = ("--sites", "far/study.toml", "--epsilon", "0.5", "--draft", "accept.toml")
    done = suture_command("evaluate", "run", *asked, cwd=run, check=True)
    study = Study.from_toml(run / "accept.toml")
    assert study.digest[:16] in done.stdout
    assert study.method.name == "evaluate"
    assert study.privacy.epsilon == 0.5
    assert [(site.name, site.data) for site in study.sites] == [(name, None) for name in OTHERS]
    assert not list((run / "far").glob(".suture/*/ledger.sqlite"))
