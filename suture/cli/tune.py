"""``suture tune``: search a method's settings on patients whom the study never tests on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from suture.cli.options import Json, print_json, say

EXAMPLE = "Example: suture tune study.toml --trials 50 --method fedavg,veil --out tuned"


def tune(
    study: Annotated[Path, typer.Argument(help="The study file.")],
    trials: Annotated[
        int, typer.Option(help="Trials for each method, those of an interrupted search included.")
    ] = 50,
    method: Annotated[
        str | None,
        typer.Option(
            help="Methods, separated by commas, as many trials each. Default: the study's."
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(help="Search on this generated federation instead of the study's sites."),
    ] = None,
    size: Annotated[
        float | None,
        typer.Option(
            help="Share of a generated federation's hospitals. Default: a quarter of a large one."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of the generated patients. Default: the study's plus 1000.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder; a search in it goes on. Default: tuned/<study>.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads to use; the numbers do not depend on it.")
    ] = None,
    frugal: Annotated[
        bool,
        typer.Option(
            help="Take the trial that sends least of those within one standard error of the best."
        ),
    ] = False,
    most_bytes: Annotated[
        float | None,
        typer.Option(
            help="Take, and steer towards, settings with which a hospital sends at most this."
        ),
    ] = None,
    most_ece: Annotated[
        float | None,
        typer.Option(help="Take only settings whose calibration error (ECE) is at most this."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Search only these values of a setting, as rounds=4,5. Can be repeated."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Search settings with Optuna; ends with a study file ready to run. Refused on a site's own
    patients."""
    from suture.study import Study
    from suture.tune.search import tune as search

    asked = Study.from_toml(study)
    names = [name.strip() for name in (method or asked.method.name).split(",") if name.strip()]
    folder = out or Path("tuned") / asked.name
    found = []
    try:
        for name in dict.fromkeys(names):
            where = folder / name
            found.append(
                search(
                    asked,
                    out=where,
                    trials=trials,
                    method=name,
                    on=on,
                    size=size,
                    seed=seed,
                    threads=threads,
                    frugal=frugal,
                    most_bytes=most_bytes,
                    most_ece=most_ece,
                    only={
                        key: values.split(",")
                        for key, _, values in (text.partition("=") for text in only or [])
                    },
                    say=say,
                )
            )
    except KeyboardInterrupt:
        say("\ninterrupted; the same command goes on with the search")
        raise typer.Exit(130) from None
    if as_json:
        print_json({"methods": found})
        return
    for one in found:
        _show(one)


def _show(found: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console = console if console.is_terminal else Console(width=140)
    rows = sorted(
        (row for row in found["rows"] if row["state"] in ("best", "finished")),
        key=lambda row: row["state"],
    )
    best, metric = rows[0], found["metric"]
    rows = [best, *sorted(rows[1:], key=lambda row: -row[metric])]
    table = Table(
        title=f"{found['method']}: {found['trials']} trials; taken: {found['rule']}",
        title_justify="left",
    )
    for name in best:
        table.add_column(name.split(".")[-1], justify="left" if name == "state" else "right")
    for row in rows[:10]:
        table.add_row(*(_text(value) for value in row.values()))
    console.print(table)
    ended = f"{found['ended_early']} ended early, {found['failed']} failed, {found['seconds']:.0f} s of training"
    console.print(f"{ended}. Searched on {found['searched_on']}.", highlight=False)
    console.print(f"Privacy cost of the search: {found['privacy_cost']}.", highlight=False)
    console.print(f"table: {found['table']}", highlight=False, soft_wrap=True)
    console.print(f"next: suture run {found['study']}", highlight=False, soft_wrap=True)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
