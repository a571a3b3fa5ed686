"""``suture describe``: Table 1 of all sites together, charged and noisy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

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

app = group()


@command(app, "suture describe study.toml --epsilon 1 --by sex --out runs/table1")
def describe(
    study: StudyFile,
    epsilon: Annotated[float, option("What the whole table may cost at each site.")],
    engines: Engines,
    by: Annotated[
        str | None, option("Also by these categories or flags, separated by commas.")
    ] = None,
    out: Annotated[Path, option("Folder for the table.")] = Path("table1"),
    as_json: Json = False,
) -> None:
    """Counts, means, deviations, quartiles and missing values of all patients, by site, outcome and
    group, from one noisy sum that is charged once."""
    from suture.report.console import print_tables
    from suture.statistics.publish import ask, figures_of, narrow, publish
    from suture.statistics.table_one import tables
    from suture.study import Study

    asked = Study.from_toml(study)
    words = "suture " + " ".join(sys.argv[1:])
    with (
        progress_bar() as progress,
        interruptible("ask again: what is paid for is not charged again"),
    ):
        result = ask(
            asked,
            "describe",
            epsilon=epsilon,
            base=study.resolve().parent,
            engine=engines.open(),
            progress=progress,
            command=words,
            by=tuple(listed(by)),
        )
    found = figures_of(result)
    intro = f"{asked.name}: epsilon {result.privacy['epsilon']:.2f} at each site."
    made = tables(found, asked.outcome)
    files = [str(path) for path in publish(result, out, "table1", "Table 1", intro, made)]
    answer(
        {"figures": found, "privacy": dict(result.privacy), "written": files},
        as_json,
        lambda _: print_tables([narrow(table, 4) for table in made]),
        *files,
    )
