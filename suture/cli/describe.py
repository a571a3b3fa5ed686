"""``suture describe``, ``survive``, ``associate`` and ``evaluate``: figures about all sites' patients,
charged once and noisy."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from suture.cli.options import (
    Engines,
    Json,
    Run,
    StudyFile,
    answer,
    command,
    group,
    interruptible,
    listed,
    option,
    progress_bar,
)

if TYPE_CHECKING:
    from suture.report.theme import Figure
    from suture.report.words import Table
    from suture.result import Result
    from suture.study import Study

app = group()


@dataclass(frozen=True, kw_only=True)
class Cost(Engines):
    """What every statistic needs: a cost, a place for files, and where the sites are."""

    epsilon: Annotated[float, option("What it may cost at each site, all figures together.")]
    out: Annotated[
        Path | None, option("Folder for tables and figures. Default: the command's name.")
    ] = None
    draft: Annotated[
        Path | None,
        option("Write the study that sites behind a hub accept to this file, and ask nothing."),
    ] = None

    def ask(self, study: Study, base: Path, name: str, rounds: int = 1, **settings: Any) -> Result:
        """The statistic, run; or what its sites are asked to accept, written."""
        from suture.privacy.files import write_whole
        from suture.statistics.publish import ask, asking

        apart = self.draft is not None or self.hub is not None or self.engine == "flower"
        if apart and study.sites and study.protection.sum != "masked":
            # Without masks the server sees each site's answer: it must hold all of the noise.
            settings["honest"] = 1 / len(study.sites)
        if self.draft is not None:
            settings.pop("begin", None)
            asked = asking(study, name, self.epsilon, rounds, **settings).public()
            write_whole(self.draft, asked.to_toml().encode())
            typer.echo(f"{self.draft}: study {asked.digest[:16]}; at each site: suture site accept")
            raise typer.Exit
        again = "ask again: what was paid for is not charged again"
        with progress_bar() as progress, interruptible(again):
            return ask(
                study,
                name,
                epsilon=self.epsilon,
                rounds=rounds,
                base=base,
                engine=self.open(),
                progress=progress,
                command="suture " + " ".join(sys.argv[1:]),
                **settings,
            )

    def show(
        self,
        result: Result,
        title: str,
        tables: list[Table],
        figures: dict[str, Figure],
        as_json: bool,
    ) -> None:
        """Write the files, and print the first columns."""
        from suture.report.console import print_tables
        from suture.statistics.publish import figures_of, narrow, publish

        out = self.out or Path(result.data["method"])
        files = [str(path) for path in publish(result, out, title, tables, figures)]
        found: dict[str, Any] = {
            "figures": figures_of(result),
            "privacy": dict(result.privacy),
            "written": files,
        }
        answer(found, as_json, lambda _: print_tables([narrow(t, 4) for t in tables]), *files)


@dataclass(frozen=True, kw_only=True)
class Asked(Cost):
    """A statistic of a study's patients."""

    study: StudyFile

    def of_study(self, name: str, rounds: int = 1, **settings: Any) -> Result:
        """The statistic of the study."""
        from suture.study import Study

        base = self.study.resolve().parent
        return self.ask(Study.from_toml(self.study), base, name, rounds, **settings)


@command(app, "suture describe study.toml --epsilon 1 --by sex --out table1")
def describe(
    asked: Asked,
    by: Annotated[
        str | None, option("Also by these categories or flags, separated by commas.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Table 1: counts, means, deviations, quartiles and missing values of all sites' patients, by
    outcome, group and site."""
    from suture.statistics.publish import figures_of
    from suture.statistics.table_one import tables

    result = asked.of_study("describe", by=tuple(listed(by)))
    made = tables(figures_of(result), result.data["outcome"])
    asked.show(result, "Table 1", made, {}, as_json)


@command(app, "suture survive study.toml --time days --by treated --epsilon 1 --horizon 365")
def survive(
    asked: Asked,
    time: Annotated[
        str, option("The number that holds the follow-up, unless the study's outcome names it.")
    ] = "",
    by: Annotated[str, option("A category or flag whose groups are compared.")] = "",
    intervals: Annotated[int, option("Equal intervals up to the horizon.")] = 10,
    horizon: Annotated[
        float | None, option("Follow-up beyond counts as ended there. Default: the upper bound.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Survival by Kaplan-Meier's estimate in declared intervals, restricted means, and the log-rank
    test between groups."""
    from suture.statistics.publish import figures_of
    from suture.statistics.survival import curve, tables

    settings = {"time": time, "by": by, "intervals": intervals, "horizon": horizon}
    result = asked.of_study("survive", 2 if by else 1, **settings)
    found = figures_of(result)
    unit = result.data["model"]["schema"]["features"][time]["unit"] if time else ""
    asked.show(result, "Survival", tables(found, unit), {"survival": curve(found, unit)}, as_json)


@command(app, "suture associate study.toml --on age,sex,smoker --epsilon 1")
def associate(
    asked: Asked,
    on: Annotated[
        str | None, option("Covariates, separated by commas. Default: all features.")
    ] = None,
    family: Annotated[str, option("logistic (of the outcome), linear or poisson.")] = "logistic",
    of: Annotated[str, option("With linear and poisson: the number that is explained.")] = "",
    offset: Annotated[str, option("With poisson: the number that holds the exposure.")] = "",
    sites: Annotated[
        str, option("none; fixed: an intercept for every site; random: intercepts that are draws.")
    ] = "none",
    as_json: Json = False,
) -> None:
    """A regression over all sites, with odds or rate ratios, intervals and p-values that count the
    noise."""
    from suture.statistics.publish import figures_of
    from suture.statistics.regression import STEPS, forest, tables

    settings = {"family": family, "of": of, "offset": offset, "sites": sites}
    result = asked.of_study("associate", STEPS + 2, on=tuple(listed(on)), **settings)
    found = figures_of(result)
    drawn = {} if found["withheld"] else {"forest": forest(found)}
    asked.show(result, "Association", tables(found), drawn, as_json)


@command(app, "suture evaluate runs/icu --epsilon 0.5 --sites elsewhere.toml --out validation")
def evaluate(
    folder: Run,
    asked: Cost,
    sites: Annotated[
        Path | None,
        option("A study file of sites that did not train, all of whose patients are tested on."),
    ] = None,
    threshold: Annotated[float, option("Risks from here on are called positive.")] = 0.5,
    by: Annotated[
        str | None, option("Also by the groups of these categories or flags, separated by commas.")
    ] = None,
    against: Annotated[
        Path | None, option("evaluate.json of an earlier evaluation: has the model drifted?")
    ] = None,
    as_json: Json = False,
) -> None:
    """A finished model on held-out patients, or at other sites: AUC, calibration, sensitivity, net
    benefit and more (for survival the C-index, calibration at the horizon and the integrated Brier
    score), from noisy counts that are charged once."""
    from suture.errors import StudyError
    from suture.explain.run import FinishedRun
    from suture.statistics import prognosis
    from suture.statistics.evaluation import against_earlier, external, model_of, tables
    from suture.statistics.publish import figures_of
    from suture.study import Study

    run = FinishedRun.open(folder)
    settings: dict[str, Any] = {"of": run.method, "begin": model_of(run.result)}
    name, made_by = "evaluate", tables
    if run.study.survival is None:
        settings |= {"threshold": threshold, "by": tuple(listed(by))}
    else:
        if by or against is not None:
            raise StudyError("--by and --against are for models of classes; leave them out")
        settings["begin"] |= prognosis.baseline(run.result)
        name, made_by = "prognosis", prognosis.tables
    if sites is None:
        held = run.study.evaluation.holdout
        result = asked.ask(run.study, run.base, name, 2, holdout=held, **settings)
    else:
        other = external(run.study, Study.from_toml(sites), run.record)
        base = sites.resolve().parent
        result = asked.ask(other, base, name, 2, tests=False, **settings)
    found = figures_of(result)
    made = made_by(found)
    if against is not None:
        made.append(against_earlier(against, found))
    asked.show(result, "Evaluation", made, {}, as_json)
