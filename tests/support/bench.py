"""Sites with tables of their own and keys of their own, all in this process, and what a coordinator
can send them."""

import csv
from contextlib import closing

import numpy as np

from suture.engine import federation, plan
from suture.methods.registry import kept, known
from suture.network import wire
from suture.network.node import Handler
from suture.network.settings import SiteSettings
from suture.network.wire import application_hash
from suture.network.witnesses import new_identity
from suture.privacy.ledger.ledger import Ledger
from suture.protection.envelope import seal
from suture.study import Study

NAMES = ("boston", "lyon", "nice")
DECLARED = 60


def the_study(names=NAMES, **more):
    """A small private study on real tables; tables of it may be given in part."""
    fields = {
        "name": "cardio",
        "outcome": "high_risk",
        "sites": [{"name": name, "region": "MA", "patients": DECLARED} for name in names],
        "schema": {
            "patient": "id",
            "features": {
                "age": {"kind": "number", "low": 0, "high": 100},
                "smoker": {"kind": "flag"},
            },
        },
        "model": {"hidden": []},
        "method": {"name": "fedavg", "rounds": 6, "local_epochs": 1, "batch": 16},
        "privacy": {"unit": "patient", "epsilon": 4.0},
        "evaluation": {"holdout": 0.5},
    }
    for key, value in more.items():
        old = fields.get(key)
        fields[key] = (
            {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
        )
    names = (fields["method"]["name"], *fields["evaluation"].get("compare", ()))
    if set(names) <= set(known()):
        fields["method"] = kept(fields["method"], names, ())
    return Study(**fields)


def table(path, seed, patients=80):
    """Patients whose risk goes up with age, so that a model has something to find."""
    rng = np.random.default_rng(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "age", "smoker", "high_risk"])
        for number in range(patients):
            age = int(rng.integers(20, 95))
            writer.writerow(
                [
                    f"{seed}-{number}",
                    age,
                    int(rng.random() < 0.3),
                    int(age + rng.normal(0, 10) > 60),
                ]
            )


class Bench:
    """Homes under one folder, with a handler each. ``accepted`` are the studies that people at all
    sites have accepted."""

    def __init__(self, folder, *accepted, names=NAMES, **settings):
        self.folder, self.settings, self.accepted = folder, settings, accepted
        self.keys = {}
        for number, name in enumerate(names):
            (folder / name).mkdir(parents=True, exist_ok=True)
            table(folder / name / "rows.csv", number)
            self.keys[name] = new_identity(folder / name / "identity.key")
        self.handlers = {}
        for name in names:
            self.start(name)

    def start(self, name, **more):
        """A new process at a site."""
        if name in self.handlers:
            self.handlers[name].close()
        given = {
            "name": name,
            "hub": {"address": "nowhere:1"},
            "data": "rows.csv",
            "region": "MA",
            "charter_needed": False,
            "accepts": [study.digest for study in self.accepted],
            "tick": 0.0,
            "peers": {peer: key for peer, key in self.keys.items() if peer != name},
            **self.settings,
            **more,
        }
        self.handlers[name] = Handler(SiteSettings(**given), self.folder / name)

    def close(self):
        for handler in self.handlers.values():
            handler.close()

    def raw(self, name, data):
        return self.handlers[name].answer(data, application_hash())

    def ask(self, site, op, body=b"", **given):
        return wire.unpack(self.raw(site, wire.pack(wire.request(op, body, **given))))

    def open(self, site, study):
        return self.ask(site, "open", study=study.public().to_toml(), seed=study.seed)

    def witness(self, site, study, heads):
        """What a site says of the others' ledger ends."""
        return self.ask(
            site, "witness", study=study.digest, seed=study.seed, heads=heads
        ).header.get("vouched", {})

    def words(self, study, head):
        """What every other site that has the study open says of one head."""
        said = {
            peer: self.witness(peer, study, {head["site"]: head})
            for peer in self.handlers
            if peer != head["site"]
        }
        return {peer: found[head["site"]] for peer, found in said.items() if found}

    def join(self, site, study, vouched=None):
        sizes = {each.name: each.patients for each in study.sites}
        return self.ask(
            site, "join", study=study.digest, seed=study.seed, sites=sizes, vouched=vouched or {}
        )

    def joined(self, study):
        """The study opened and joined everywhere, with every peer's word; each site's head."""
        heads = {name: self.open(name, study).header["head"] for name in self.handlers}
        for name in self.handlers:
            found = self.join(name, study, self.words(study, heads[name])).header
            assert found["ok"], (found, self.handlers[name].status)
            heads[name] = found["head"]
        return heads

    def training(self, study, **more):
        return {
            "study": study.digest,
            "seed": study.seed,
            "fold": 0,
            "method": study.method.name,
            **more,
        }

    def step(self, site, study, round_=1, body=None, **more):
        given = {"round": round_, "heads": {}, "vouched": {}, **more}
        return self.ask(site, "step", body or message(study), **self.training(study, **given))

    def score(self, site, study, state=None, round_=None, **more):
        given = {
            "round": round_ or study.method.rounds,
            "groups": False,
            "texts": {},
            "heads": {},
            "vouched": {},
            **more,
        }
        body = seal({"params": params(study)} if state is None else state)
        return self.ask(site, "score", body, **self.training(study, **given))

    def charges(self, site):
        """What a site's ledger was charged: account and round."""
        path = self.folder / site / "ledger.sqlite"
        if not path.exists():
            return []
        with closing(Ledger.read(path)) as ledger:
            return [(entry.study, entry.round) for entry in ledger.entries() if entry.round > 0]


def params(study, value=0.0):
    """Weights of the study's model, all the same."""
    return np.full(_length(study), value, np.float32)


def message(study, value=0.0):
    return seal({"params": params(study, value)})


def _length(study):
    here = federation.survey(study.public(), federation.Path(), study.seed, only="")
    here.sizes = {site.name: site.patients for site in study.sites}
    method = plan.method_of(study, here, study.method.name)
    (length,) = (
        method.at_round(1, study.method.rounds).expects(1, study.sites[0].name)["params"].shape
    )
    return length


def reason(answer):
    """Why a site refused; a refusal holds nothing else."""
    assert set(answer.header) == {"ok", "site", "reason"}, answer.header
    assert answer.header["ok"] is False
    assert answer.body == b""
    return answer.header["reason"]
