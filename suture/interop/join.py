"""`suture join`: a hospital that comes after training fits its own layers around a finished run's
network.

Runs at the hospital, on its rows alone. The network arrives and is not changed; only the affine
layers are fitted (iFedAvg, section 2.2, with f_shared held fixed), and they are written at the
hospital: nothing is sent to anybody.

With [privacy] in the hospital's study file the layers are fitted by DP-SGD and every round is
charged to its ledger, under ``<study>/join``, before it is computed; they may then be shown to
others at no further cost. Without it they are exact: what the folder holds is for the hospital's
own eyes, and says so.
"""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from suture.engine import federation
from suture.engine.plan import WITHOUT_PRIVACY, World, budget, method_of, reserved
from suture.errors import PrivacyError, RunError, StudyError
from suture.evaluation.metrics import Metrics, measure
from suture.interop.report import Report
from suture.methods.base import Weights
from suture.methods.ifedavg import IFedAvg, Joining
from suture.methods.registry import declared, readable
from suture.privacy.accounting.planner import Budget, SitePlan, plan_site
from suture.privacy.files import write_whole
from suture.privacy.ledger.ledger import Ledger
from suture.protection.envelope import seal, unseal
from suture.result import Result
from suture.site import gate
from suture.site.hospital import Hospital, Member
from suture.site.ready import charging
from suture.study import Study
from suture.training.local import at_round

SHOWN = ("f1_weighted", "auc", "auc_ovo", "accuracy")
"""What is measured on the hospital's held-out patients, with the identity and with the fitted
layers."""


def join(
    run: str | Path,
    study: str | Path,
    *,
    site: str,
    rounds: int = 100,
    out: str | Path | None = None,
) -> Report:
    """Fit the layers of one site of ``study`` around the network of a finished ``run``, and write
    them into ``out``."""
    if rounds < 1:
        raise StudyError(f"--rounds must be at least 1, found {rounds}")
    result = Result.load(Path(run))
    if declared(result.data["method"]).model != "layers" or "shared" not in result.model:
        raise RunError(
            f"a hospital can join a run of {readable('layers')}; this run's method is "
            f"{result.data['method']!r}"
        )
    path = Path(study).resolve()
    whole = Study.from_toml(path)
    asked = _only(whole, site)
    here = federation.survey(asked, path.parent, asked.seed)
    _matches(result, asked, here)
    place = next((place for place in here.places if place.name == site), None)
    if place is None:
        raise StudyError(
            f"--site: the study has no site {site!r}; expected one of {', '.join(here.sizes)}"
        )
    here = replace(here, places=(place,), sizes={site: here.sizes[site]})
    method = method_of(asked, here, asked.method.name)
    if not isinstance(method, IFedAvg):
        raise StudyError(f"expected the method {readable('layers')}, found {method.name!r}")
    shared = np.ascontiguousarray(result.model["shared"], np.float32)
    ledger = charging(place, None, whole.digest)
    try:
        gate.open_lifetime(place, ledger, private=asked.private)
        planned = _promise(asked, here, site, rounds, ledger)
        data, secret = federation.load_site(asked, here, place), gate.secret_of(place, here.seed)
        hospital = Hospital(site, data, (ledger,), secret)
        noise = planned.noise_multiplier if planned else None
        member = Member(hospital, _account(asked), noise, asked.seed, asked.digest)
        before = _measured(member, method, shared)
        _fit(member, method, shared, rounds)
        found = {
            "site": site,
            "run": str(result.data["name"]),
            "rounds": rounds,
            "patients": member.hospital.patients,
            "shared_sha256": hashlib.sha256(shared.tobytes()).hexdigest(),
            "before": before,
            "after": _measured(member, method, shared),
            "private": asked.private,
            "epsilon": member.spent() if asked.private else None,
            "delta": asked.privacy.delta if asked.privacy else None,
            "noise_multiplier": member.noise,
            "statement": _statement(asked, member),
        }
    finally:
        ledger.close()
    folder = Path(out) if out is not None else Path("joined") / site
    return {**found, "written": _write(folder, found, method, shared, member.own["layers"])}


def _only(study: Study, site: str) -> Study:
    """The study with this site alone, so that no other hospital's table is opened."""
    if study.cohort is not None:
        return study
    mine = [one for one in study.sites if one.name == site]
    if not mine:
        known = ", ".join(one.name for one in study.sites)
        raise StudyError(f"--site: the study file has no site {site!r}; expected one of {known}")
    return study.model_copy(update={"sites": tuple(mine)})


def _matches(result: Result, study: Study, here: World) -> None:
    """Refuse a study whose columns, network or layers are not those of the run, naming each
    difference."""
    ran, model = result.data["study"]["method"], result.data["model"]
    features = here.schema.model_dump(mode="json", exclude_none=True)["features"]
    name = result.data["method"]
    if study.method.name != name:
        raise StudyError(
            f'method.name must be "{name}" to join this run, found {study.method.name!r}'
        )
    own = study.method.own(declared(name).settings).model_dump()
    pairs = {
        "outcome": (result.data["outcome"], study.asked),
        "classes": (model["classes"], here.target.plain()["classes"]),
        "schema.features": (model["schema"]["features"], features),
        "encoded columns": (model["features"], list(here.features)),
        "model.hidden": (model["sizes"][1:-1], list(study.model.hidden)),
        "model.activation": (model["activation"], study.model.activation),
        "model.scaling": (model.get("scaling", "bounds"), study.model.scaling),
        "method.input_layer": (ran["input_layer"], own["input_layer"]),
        "method.output_layer": (ran["output_layer"], own["output_layer"]),
    }
    other = [name for name, (theirs, mine) in pairs.items() if theirs != mine]
    if other:
        raise StudyError(
            f"the study file differs from the run in {', '.join(other)}; a hospital joins with the "
            "run's own settings: copy them from study.toml in the run's folder"
        )


def _account(study: Study) -> str:
    return f"{study.name}/join" + ("" if study.private else WITHOUT_PRIVACY)


def _promise(study: Study, here: World, site: str, rounds: int, ledger: Ledger) -> SitePlan | None:
    """Plan the noise and write the budget into the ledger, before any clinical value is read."""
    if study.privacy is None:
        if ledger.promised(f"{study.name}/join"):
            raise PrivacyError(
                f"site {site!r} has promised privacy to {study.name!r}; keep the [privacy] table "
                "of the study file"
            )
        ledger.open_study(_account(study), Budget(float("inf"), 1e-5, "pld"))
        return None
    privacy = study.privacy
    planned = plan_site(
        site, here.sizes[site], study.method.batch, rounds=rounds, local_epochs=study.method.local_epochs,
        local_steps=study.method.local_steps,
        epsilon=privacy.epsilon, noise_multiplier=privacy.noise_multiplier, delta=privacy.delta,
        accountant=privacy.accountant,
    )  # fmt: skip
    ledger.open_study(_account(study), budget(study, planned), reserved([planned]))
    return planned


def _fit(member: Member, method: IFedAvg, shared: Weights, rounds: int) -> None:
    """Round after round: pay, then fit. An answer that is not empty would mean that something
    leaves."""
    message = seal({"shared": shared})
    for round_ in range(1, rounds + 1):
        now = Joining(replace(method, local=at_round(method.local, round_, rounds)))
        if unseal(member.step(now, message, round_)):
            raise RunError("joining sends nothing, and an answer was found: nothing was written")


def _measured(member: Member, method: IFedAvg, shared: Weights) -> Metrics | None:
    y, risk = member.scores(Joining(method), {"shared": shared})
    if not len(y):
        return None
    return {name: value for name, value in measure(y, risk, 0.5).items() if name in SHOWN}


def _statement(study: Study, member: Member) -> str:
    exact = "The metrics on held-out patients are exact, and for this hospital alone."
    if study.privacy is None:
        return (
            "The layers are exact figures of this hospital's rows and are not covered by privacy: "
            f"keep them here. {exact}"
        )
    return (
        f"The layers are ({member.spent():.3g}, {study.privacy.delta:g})-differentially private by "
        f"patient, charged to this hospital's ledger under {member.account!r}; no other hospital "
        f"pays. {exact}"
    )


def _write(
    folder: Path, found: Report, method: IFedAvg, shared: Weights, own: Weights
) -> list[str]:
    """``layers.npz``: the parts by name, and the network they fit; ``join.json``: the rest."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = method.network.sizes
    parts: dict[str, Any] = method.layers.split(own, sizes[0], sizes[-1])
    buffer = io.BytesIO()
    np.savez(buffer, layers=own, shared=shared, **parts)
    write_whole(folder / "layers.npz", buffer.getvalue())
    write_whole(folder / "join.json", json.dumps(found, indent=1, allow_nan=False).encode())
    return [str(folder / "layers.npz"), str(folder / "join.json")]
