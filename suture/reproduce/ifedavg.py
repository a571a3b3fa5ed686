"""Paper 003, iFedAvg: Tables 1 to 4 and 6, and its figures in kind, on generated and public federations.

The Ebola data are not public: `outbreak` is generated with the printed sizes and rates, so figures on it compare
methods with each other and not with the paper's numbers. HAR here has 261 features computed from the raw recording
instead of the published 561, VSN one public split of it. The four heart-disease hospitals are ours to add.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from suture.conduct import Progress, Step
from suture.errors import RunError
from suture.interop import shifts
from suture.reproduce import detection, ifedavg_private, ifedavg_tables
from suture.reproduce.ifedavg_runs import Job, kept, of_study, rows_of, train_all
from suture.reproduce.ifedavg_tables import FEWEST, LAYERED, METHODS, PRIOR
from suture.runfolder import write_whole
from suture.site.schema import feature_names
from suture.study import Study

TITLE = "iFedAvg: interpretable data interoperability"
SEEDS = (2934384, 10231938, 8273, 2019231, 62739)
PAPER_SPLIT = {"split": "paper", "test_fraction": 0.0}
DATASETS: dict[str, tuple[dict[str, Any], str]] = {
    "outbreak prognosis": ({"name": "outbreak", "task": "prognosis", "missing": "fill", **PAPER_SPLIT}, "outcome"),
    "outbreak diagnosis": ({"name": "outbreak", "task": "diagnosis", "missing": "fill", **PAPER_SPLIT}, "outcome"),
    "vsn": ({"name": "vsn", "split": "paper"}, "vehicle"),
    "har": ({"name": "har", "split": "paper"}, "activity"),
    "heart": ({"name": "heart", "missing": "fill", "split": "paper"}, "high_risk"),
}
BATCH, RATE = 16, 0.002 * 16
"""The paper prints a rate of 0.002 and no batch size. The authors' published code (github.com/davidroschewitz/ifedavg,
configs/sample.yml and the loss's reduction="sum") sums the loss over batches of 16; ours is the mean, so the same step
is 16 times the rate."""

OWN: dict[str, dict[str, Any]] = {"heart": {"rate": 0.008, "class_weights": None}}
"""The heart hospitals are not in the paper. Their rate and class weights are the best of six pairs (1, 4 and 16 times the
printed rate; the paper's class weights or none) on patients set apart *inside* training, mean weighted F1 over the five
seeds: FedAvg 0.823 (with weights 0.784 to 0.799), iFedAvg 0.835 (with weights 0.795 to 0.801).

Not a blind choice: the three pairs with weights came first, and test scores with the best of them (iFedAvg 0.775, FedAvg
0.786) had been seen when the three without were added. And the five splits overlap: a patient set apart in one is tested
on in another. `more_jobs` repeats the comparison at twenty splits that nothing was chosen on."""
SEEDS_OF = {"vsn": 2, "har": 1, "outbreak prognosis": 3}
"""How many of the five seeds the larger sets are run with; the others with all."""

SPREAD, SPREAD_OF = 0.5, {"heart": 0.1}
"""`method.layer_spread` of the row with a prior, ours and not the paper's; four values were tried (none, and three).

Chosen on the generated outbreak's diagnosis at seeds 101 to 103, which are in no table: mean weighted F1 0.8134, 0.8124,
0.8095 and 0.8098 with 0.5, 0.25, 0.1 and none; lowest client of a seed 0.751, 0.728, 0.738, 0.742. FedAvg had four tries
too, its rate (0.008 to 0.064: 0.8073, 0.8087, 0.8086, 0.8079; lowest 0.741 to 0.745), and keeps the paper's.

The heart hospitals are trained at a quarter of the rate, and their layers stay nearer to the identity: 0.5 hardly holds
them. It was tried there first, and seen to change nothing for VA Long Beach at the five seeds and at seeds 21 to 31. Then
0.1 was chosen at seeds 101 to 108: mean 0.837, 0.833, 0.830 and 0.827 with 0.1, 0.2, 0.5 and none (FedAvg 0.819), VA Long
Beach 0.758, 0.756, 0.739, 0.743 (FedAvg 0.761). Splits of the same 920 patients overlap."""
MORE = {"heart": tuple(range(41, 61)), "outbreak diagnosis": (*range(201, 209), 218, 219, 220)}
"""Further seeds, at which nothing was looked at before, where clients are few or small: five splits say little. Twenty of
the outbreak (201 to 220) were planned and trained from both ends; these were there when time was up, and only then was
any of their scores read."""

NOTES = (
    "Ebola rows: the paper's figures are on real patients who are not public, ours on generated ones. Compare methods "
    "within a row of ours, not ours with the paper's.",
    "F1 is weighted by class, on each client's own held-out rows; mean over clients, then over seeds. Worst client: the "
    "lowest of the clients' means over seeds. The interval of a difference is Student's, over seeds.",
    "Each client holds out 33 % of its rows and at least 100, drawn within classes, as the paper and its code do. The "
    "floor needs 133 rows (their code leaves smaller clients out); smaller clients stay, with 33 % held out.",
    f"Clients with fewer than {FEWEST} held-out rows (small VSN sensors) are trained with and left out of the tables.",
    "The paper prints a rate of 0.002 and no batch size. The authors' code sums the loss over batches of 16; our loss is "
    "a mean, so the same steps are 0.032 at batches of 16. APFL has no momentum, as in the paper. The heart hospitals are "
    "not in the paper: their rate (0.008) and no class weights, for every method, were chosen on patients set apart inside "
    "training, where both FedAvg and iFedAvg did best with them; leaving weights out was tried only after test scores with "
    "them had been seen. 'Further seeds' are splits that nothing was chosen on.",
    f"'iFedAvg, prior' is ours: layers expected within an SD of {SPREAD:g} of the identity (method.layer_spread), chosen on "
    f"three other seeds of the generated outbreak; {SPREAD_OF['heart']:g} at the heart hospitals, chosen on eight other splits "
    "of them. The paper's method is 'iFedAvg'.",
    "'Lowest client': the lowest of each seed, whichever client it is, then the mean over seeds; its difference is fair to "
    "both. The gain at FedAvg's worst client flatters iFedAvg, because FedAvg's worst is partly bad luck.",
    "Missing values are filled as in the paper: the site's mean for numbers, 0.5 for yes/no, and not marked.",
    "Class weights are each client's own inverse prevalences, scaled to sum to the number of classes (appendix A.3).",
    "Pooled has no personal part and sees every client's rows with that client's own scaling, as the paper's does.",
    "Seeds: all five of the paper for the outbreak's diagnosis and heart, the first three for its prognosis, the first two "
    "for VSN, the first for HAR, so that everything takes little more than an hour on two cores.",
    "Quick runs use 150 rounds at twice the rate, one seed, and no HAR. A turned outcome does not always show in f_out "
    "then: the steps are large enough for a site to turn the network itself round. The tests on profiles find it.",
)


def study(dataset: str, seed: int, *, quick: bool = False, name: str = "", **changes: Any) -> Study:
    """The paper's setting on one data set; ``changes`` are further settings of the method."""
    cohort, outcome = DATASETS[dataset]
    cohort = {**cohort, **changes.pop("cohort", {})}
    faster = {"rate": 2 * OWN.get(dataset, {}).get("rate", RATE)} if quick else {}
    compare = changes.pop("compare", list(METHODS[1:]))
    return Study(
        name=f"ifedavg {name or dataset} {seed}",
        outcome=outcome,
        seed=seed,
        cohort=cohort,
        model={"hidden": [128, 64], "activation": "tanh", "dropout": 0.2, "scaling": "site"},
        method={
            "name": "ifedavg",
            "rounds": 150 if quick else 1000,
            "local_epochs": 1,
            "batch": BATCH,
            "rate": RATE,
            "momentum": 0.5,
            "rate_decay": 0.9,
            "rate_steps": 50,
            "class_weights": "inverse",
            "weighting": "uniform",
            "share_layers": True,
            **OWN.get(dataset, {}),
            **faster,
            **changes,
        },
        evaluation={"holdout": 0.33, "compare": compare, "metric": "f1_weighted", "describe": False},
    )


def seeds_of(dataset: str, quick: bool) -> tuple[int, ...]:
    """The seeds that a data set is run with."""
    return SEEDS[2:3] if quick else SEEDS[: SEEDS_OF.get(dataset, len(SEEDS))]


def jobs(dataset: str, quick: bool) -> dict[int, dict[str, Job]]:
    """The trainings of one data set, by seed and method; what needs no other setting shares one study."""
    found = {}
    for seed in seeds_of(dataset, quick):
        plain = study(dataset, seed, quick=quick)
        layered = study(dataset, seed, quick=quick, name=f"{dataset} f_out", compare=[], output_layer="vector")
        found[seed] = {
            **{method: Job(plain, method) for method in METHODS},
            LAYERED: Job(layered, "ifedavg"),
            PRIOR: prior_job(dataset, seed, quick),
        }
    return found


def prior_job(dataset: str, seed: int, quick: bool) -> Job:
    """iFedAvg whose layers are expected near the identity."""
    wanted = study(
        dataset, seed, quick=quick, name=f"{dataset} prior", compare=[], layer_spread=SPREAD_OF.get(dataset, SPREAD)
    )
    return Job(wanted, "ifedavg")


def more_jobs(quick: bool) -> dict[str, dict[int, dict[str, Job]]]:
    """iFedAvg, with a prior and without, and FedAvg at further seeds; a quick run looks at two of them."""
    return {
        dataset: {
            seed: {
                **{method: Job(study(dataset, seed, quick=quick), method) for method in ("ifedavg", "fedavg")},
                PRIOR: prior_job(dataset, seed, quick),
            }
            for seed in (seeds[:2] if quick else seeds)
        }
        for dataset, seeds in MORE.items()
        if not quick or dataset == "heart"
    }


def flip_jobs(quick: bool) -> list[Job]:
    """iFedAvg with one scale after the network, on the clean twin with Kalihun's outcome turned round (Figure 19)."""
    clean = {"flip": "Kalihun", "faults": "none"}
    return [
        Job(
            study(
                "outbreak diagnosis",
                seed,
                quick=quick,
                name="flip",
                compare=[],
                output_layer="scalar",
                cohort=clean,
            ),
            "ifedavg",
        )
        for seed in (SEEDS[:2] if quick else SEEDS)
    ]


def every_job(quick: bool) -> list[Job]:
    """All trainings without privacy, long ones first."""
    names = [name for name in reversed(DATASETS) if not quick or name != "har"]
    found = [job for name in names for by_method in jobs(name, quick).values() for job in by_method.values()]
    more = [job for by_seed in more_jobs(quick).values() for by in by_seed.values() for job in by.values()]
    return found + flip_jobs(quick) + more


def reproduce(
    out: Path, *, quick: bool = False, threads: int | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Train what is not there yet, then write tables (JSON, CSV), figures (PNG, SVG) and one page."""
    wanted = every_job(quick)

    def say(done: int, text: str) -> None:
        if progress:
            progress(Step(text, 0, done, len(wanted), 1, 1, None))

    train_all(wanted, out / "runs", workers=threads, say=say)
    names = [name for name in DATASETS if not (quick and name == "har")]
    found = {
        name: {seed: {key: result_of(job, out) for key, job in by.items()} for seed, by in jobs(name, quick).items()}
        for name in names
    }
    more = {
        name: {seed: {key: result_of(job, out) for key, job in by.items()} for seed, by in by_seed.items()}
        for name, by_seed in more_jobs(quick).items()
    }
    turned = [report_of(job, out) for job in flip_jobs(quick)]
    # The first seed's layers are looked at: with f_in alone, and with f_out as well.
    first = {name: next(iter(jobs(name, quick).values())) for name in names}
    reports = {name: report_of(by["ifedavg"], out) for name, by in first.items()}
    layered = report_of(first["outbreak diagnosis"][LAYERED], out)
    tables = ifedavg_tables.tables(found, more, reports["heart"], turned, SEEDS)

    def look(done: int, count: int) -> None:
        if progress:
            progress(Step("federations looked at for planted faults", 0, done, count, 1, 1, None))

    tables |= detection.tables(out, quick=quick, workers=threads, say=look)
    tables |= ifedavg_private.tables(out, quick=quick, threads=threads, progress=progress)
    content: dict[str, Any] = {"paper": "ifedavg", "title": TITLE, "quick": quick, "tables": tables, "notes": NOTES}
    from suture.reproduce import ifedavg_figures, pages

    federations = {name: of_study(by["ifedavg"].study) for name, by in first.items()}
    drawn, captions = ifedavg_figures.charts(found, reports, turned[0], layered, federations)
    content["figures"] = pages.save_figures(drawn, out)
    content["page"] = str(pages.write(content, drawn, captions, out))
    pages.write_csv(tables, out)
    write_whole(out / "tables.json", json.dumps(content, indent=1, allow_nan=False).encode())
    return content


def result_of(job: Job, out: Path) -> dict[str, Any]:
    """A training that is there."""
    found = kept(job, out / "runs")
    if found is None:
        raise RunError(f"{out} has no training {job.key}; run the reproduction again, finished parts are kept")
    return found


def report_of(job: Job, out: Path) -> dict[str, Any]:
    """What `suture interop` would say of a training: its layers, and exact profiles of all of the clients' rows."""
    found, cohort = result_of(job, out), of_study(job.study, split="hash")  # unsplit: all rows
    profiles = {name: data.profile for name, data in rows_of(cohort, profile="exact").items() if data.profile}
    run = {
        "name": job.study.name,
        "method": "ifedavg",
        "study": {"method": job.study.method.model_dump()},
        "model": {
            "schema": cohort.schema.model_dump(mode="json", exclude_none=True),
            "features": list(feature_names(cohort.schema)),
            "classes": list(cohort.classes) if isinstance(cohort.classes, tuple) else cohort.classes,
        },
        "profiles": {name: profile.to_dict() for name, profile in profiles.items()},
        "privacy": {},
    }
    model = {"sites": np.array(found["clients"], np.str_), "layers": np.array(found["layers"], np.float32)}
    return shifts.of_run(run, model)
