"""A hospital that joins later: the network stays as it is, only the layers are fitted, nothing
leaves, it pays alone."""

import json
from contextlib import closing

import numpy as np
import pytest

import suture
from suture.errors import PrivacyError, StudyError
from suture.interop.join import join
from suture.methods.ifedavg import Joining
from suture.privacy.ledger.ledger import Ledger
from suture.result import Result

SETTINGS = """
[study]
name = "late"
outcome = "ill"

[model]
hidden = [4]
activation = "tanh"

[method]
name = "ifedavg"
rounds = 3
local_epochs = 1
batch = 16
rate = 0.2
share_layers = true

[schema]
patient = "id"

[schema.features]
age = { kind = "number", low = 0, high = 100 }
smoker = { kind = "flag" }
"""


def _site(folder, name, seed, upside_down=False):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, 150)
    age = np.clip(
        50 + 20 * (2 * y - 1) * (-1 if upside_down else 1) + rng.normal(0, 10, 150), 0, 100
    )
    rows = [f"{name}-{i},{age[i]:.1f},{rng.integers(0, 2)},{y[i]}" for i in range(150)]
    (folder / f"{name}.csv").write_text("id,age,smoker,ill\n" + "\n".join(rows) + "\n")
    return f'\n[[site]]\nname = "{name}"\ndata = "{name}.csv"\npatients = 120\n'


@pytest.fixture
def ready(tmp_path):
    (tmp_path / "study.toml").write_text(
        SETTINGS + "".join(_site(tmp_path, name, i) for i, name in enumerate("abc"))
    )
    suture.run(tmp_path / "study.toml", out=tmp_path / "run")
    late = SETTINGS + _site(tmp_path, "late", 9, upside_down=True)
    (tmp_path / "late.toml").write_text(late)
    (tmp_path / "private.toml").write_text(late + '\n[privacy]\nunit = "patient"\nepsilon = 6.0\n')
    return tmp_path


def test_only_layers_are_fitted_and_the_network_is_the_same_bit_for_bit(ready):
    before = {path.name: path.read_bytes() for path in (ready / "run").iterdir() if path.is_file()}
    found = join(ready / "run", ready / "late.toml", site="late", rounds=60, out=ready / "joined")
    shared = Result.load(ready / "run").model["shared"]
    with np.load(ready / "joined" / "layers.npz") as kept:
        assert kept["shared"].tobytes() == shared.tobytes()
        assert kept["w_in"].shape == (len(Result.load(ready / "run").data["model"]["features"]),)
        # The late hospital's ages run the other way, so its scale of age has to turn negative.
        assert kept["w_in"][0] < 0
    assert found["after"]["auc"] > 0.9 > 0.5 > found["before"]["auc"]
    assert {
        path.name: path.read_bytes() for path in (ready / "run").iterdir() if path.is_file()
    } == before
    assert json.loads((ready / "joined" / "join.json").read_text())["private"] is False


def test_nothing_leaves_and_no_other_table_is_opened(ready, monkeypatch):
    for name in "abc":
        (ready / f"{name}.csv").unlink()
    payloads = []
    step = Joining.site_step

    def watched(self, *arguments):
        payload, own = step(self, *arguments)
        payloads.append(payload)
        return payload, own

    monkeypatch.setattr(Joining, "site_step", watched)
    join(ready / "run", ready / "late.toml", site="late", rounds=2, out=ready / "joined")
    assert payloads == [{}, {}]


def test_under_privacy_the_newcomer_alone_pays_and_pays_once(ready):
    found = join(ready / "run", ready / "private.toml", site="late", rounds=4, out=ready / "joined")
    assert 0 < found["epsilon"] <= 6.0
    assert f"({found['epsilon']:.3g}, 1e-05)-differentially private" in found["statement"]
    with closing(Ledger.open(ready / ".suture" / "late" / "ledger.sqlite", "late")) as ledger:
        assert ledger.rounds_charged("late/join") == 4
    again = join(ready / "run", ready / "private.toml", site="late", rounds=4, out=ready / "again")
    assert again["epsilon"] == found["epsilon"]
    with (
        np.load(ready / "joined" / "layers.npz") as one,
        np.load(ready / "again" / "layers.npz") as two,
    ):
        assert one["layers"].tobytes() == two["layers"].tobytes()
    with pytest.raises(PrivacyError, match="reserved another plan"):  # other noise for other rounds
        join(ready / "run", ready / "private.toml", site="late", rounds=9, out=ready / "more")


def test_a_study_that_differs_is_refused_and_named(ready):
    (ready / "other.toml").write_text(
        (ready / "late.toml").read_text().replace("hidden = [4]", "hidden = [5]")
    )
    with pytest.raises(StudyError, match=r"differs from the run in model\.hidden"):
        join(ready / "run", ready / "other.toml", site="late", out=ready / "joined")
    with pytest.raises(StudyError, match="no site 'boston'"):
        join(ready / "run", ready / "late.toml", site="boston")
    assert not (ready / "joined").exists()
