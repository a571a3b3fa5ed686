"""``suture describe``, ``suture survive`` and ``suture associate``: figures about all sites' patients,
charged once and noisy."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from suture.cli.options import (
    Engines,
    Json,
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

app = group()


@dataclass(frozen=True)
class Asked(Engines):
    """What every statistic needs."""

    study: StudyFile = Path()
    epsilon: Annotated[float, option("What it may cost at each site, all figures together.")] = 1.0
    out: Annotated[
        Path | None, option("Folder for tables and figures. Default: the command's name.")
    ] = None

    def ask(self, name: str, rounds: int = 1, **settings: object) -> Result:
        """The statistic, run."""
        from suture.statistics.publish import ask
        from suture.study import Study

        again = "ask again: what was paid for is not charged again"
        with progress_bar() as progress, interruptible(again):
            study = Study.from_toml(self.study)
            return ask(
                study,
                name,
                epsilon=self.epsilon,
                rounds=rounds,
                base=self.study.resolve().parent,
                engine=self.open(signed_as=study.digest),
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

    result = asked.ask("describe", by=tuple(listed(by)))
    made = tables(figures_of(result), result.data["outcome"])
    asked.show(result, "Table 1", made, {}, as_json)


@command(app, "suture survive study.toml --time days --by treated --epsilon 1 --horizon 365")
def survive(
    asked: Asked,
    time: Annotated[str, option("The number that holds the follow-up; the outcome is the event.")],
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
    result = asked.ask("survive", 2 if by else 1, **settings)
    found = figures_of(result)
    unit = result.data["model"]["schema"]["features"][time]["unit"]
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
        str, option("none, or fixed: an intercept for every site but the first.")
    ] = "none",
    as_json: Json = False,
) -> None:
    """A regression over all sites, with odds or rate ratios, intervals and p-values that count the
    noise."""
    from suture.statistics.publish import figures_of
    from suture.statistics.regression import STEPS, forest, tables

    settings = {"family": family, "of": of, "offset": offset, "sites": sites}
    result = asked.ask("associate", STEPS + 2, on=tuple(listed(on)), **settings)
    found = figures_of(result)
    drawn = {} if found["withheld"] else {"forest": forest(found)}
    asked.show(result, "Association", tables(found), drawn, as_json)
