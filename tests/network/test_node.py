"""A site makes its plan once per study, when it joins, and not at every request."""

from contextlib import closing

from support.bench import Bench, params, the_study

from suture.engine import federation, plan
from suture.protection.envelope import seal


def test_a_site_plans_once_per_study(tmp_path, monkeypatch):
    study = the_study(evaluation={"holdout": 0.5, "epsilon": 1.0}, method={"rounds": 2})
    state, asked = {"params": params(study)}, []
    with closing(Bench(tmp_path, study)) as bench:
        bench.joined(study)
        for module, name in (
            (plan, "_promises"),
            (plan, "method_of"),
            (plan, "evaluation"),
            (federation, "split"),
        ):
            monkeypatch.setattr(module, name, lambda *_, name=name: asked.append(name))
        heads = {}
        for round_ in (1, 2):
            found = bench.step("boston", study, round_, seal(state)).header
            assert found["ok"], bench.handlers["boston"].status
            heads = bench.words(study, found["head"])
        asking = {"method": "fedavg+evaluation", "vouched": heads}
        assert bench.step("boston", study, 1, seal(state), **asking).header["ok"]
    assert asked == []
