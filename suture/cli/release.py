"""``suture release``: one noisy figure about one site, charged to its ledger first."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from suture.cli.options import Json, group, print_json

app = group(
    "release",
    "Release a rate, a histogram or quantiles of one site's column: charged to its ledger, then "
    "noisy.",
    "suture release rate study.toml --site boston --column died --epsilon 0.5",
)

StudyFile = Annotated[Path, typer.Argument(metavar="STUDY", help="The study file.")]
Site = Annotated[str, typer.Option(help="The site.")]
Column = Annotated[str, typer.Option(help="A feature of the schema, or the outcome.")]
Epsilon = Annotated[float, typer.Option(help="What this release may cost.")]
Delta = Annotated[float | None, typer.Option(help="Default: the study's, or 1e-5.")]
Budget = Annotated[
    float | None,
    typer.Option(
        help="What all releases of the study may spend at this site; fixed by the first. Default: the study's."
    ),
]
Mechanism = Annotated[
    str, typer.Option(help="discrete (exact, the default) or gaussian (floating point).")
]


@app.command(
    epilog="Example: suture release rate study.toml --site boston --column died --epsilon 0.5"
)
def rate(
    study: StudyFile,
    site: Site,
    column: Column,
    epsilon: Epsilon,
    delta: Delta = None,
    budget: Budget = None,
    mechanism: Mechanism = "discrete",
    above: Annotated[
        float | None, typer.Option(help="For a number: values above this count as an event.")
    ] = None,
    as_json: Json = False,
) -> None:
    """The share of patients with an event, with its interval."""
    options = {"delta": delta, "budget": budget, "mechanism": mechanism, "above": above}
    _show(study, "rate", column, site, epsilon, options, None, as_json)


@app.command(
    epilog="Example: suture release histogram study.toml --site boston --column age --epsilon 0.5 --bins 8"
)
def histogram(
    study: StudyFile,
    site: Site,
    column: Column,
    epsilon: Epsilon,
    bins: Annotated[int, typer.Option(help="Bins of a number, between its declared bounds.")] = 10,
    cap: Annotated[
        int | None,
        typer.Option(help="Count rows, at most this many a patient, instead of patients."),
    ] = None,
    delta: Delta = None,
    budget: Budget = None,
    mechanism: Mechanism = "discrete",
    plot: Annotated[Path | None, typer.Option(help="Draw it: a .png or .svg file.")] = None,
    as_json: Json = False,
) -> None:
    """Patients by bin (or rows, capped), each count with its interval."""
    options = {"delta": delta, "budget": budget, "mechanism": mechanism, "bins": bins, "cap": cap}
    _show(study, "histogram", column, site, epsilon, options, plot, as_json)


@app.command(
    epilog="Example: suture release quantiles study.toml --site boston --column age --epsilon 1 --at 0.5"
)
def quantiles(
    study: StudyFile,
    site: Site,
    column: Column,
    epsilon: Epsilon,
    at: Annotated[
        list[float] | None, typer.Option(help="Quantiles; repeat. Default: the quartiles.")
    ] = None,
    bins: Annotated[int, typer.Option(help="Steps between the declared bounds.")] = 64,
    delta: Delta = None,
    budget: Budget = None,
    mechanism: Mechanism = "discrete",
    as_json: Json = False,
) -> None:
    """Quantiles of a number from one noisy histogram, each with its interval."""
    options: dict[str, Any] = {
        "delta": delta,
        "budget": budget,
        "mechanism": mechanism,
        "bins": bins,
    }
    options |= {"at": tuple(at)} if at else {}
    _show(study, "quantiles", column, site, epsilon, options, None, as_json)


@app.command(epilog="Example: suture release percentiles runs/icu --epsilon 1 --budget 2")
def percentiles(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a finished veil run.")
    ],
    epsilon: Epsilon,
    bins: Annotated[int, typer.Option(help="Steps between the declared bounds.")] = 40,
    delta: Delta = None,
    budget: Budget = None,
    as_json: Json = False,
) -> None:
    """Histograms of the model's numbers over all sites, for suture explain --percentiles
    federation; charged at each."""
    from suture.cli.options import say
    from suture.explain.percentiles import release_percentiles

    found = release_percentiles(
        folder, epsilon=epsilon, delta=delta, budget=budget, bins=bins, say=say
    )
    if as_json:
        print_json(found)
        return
    typer.echo(
        f"{len(found['columns'])} numbers at {found['hospitals']} hospitals, epsilon "
        f"{found['epsilon']:g} at each"
    )
    typer.echo(
        f"{found['written']}\nnext: suture explain {folder} --site S --patient ID --percentiles "
        "federation"
    )


def _show(
    path: Path,
    kind: str,
    column: str,
    site: str,
    epsilon: float,
    options: dict[str, Any],
    plot: Path | None,
    as_json: bool,
) -> None:
    from suture.releases.query import release
    from suture.study import Study

    base = path.resolve().parent
    found = release(
        Study.from_toml(path), kind, column, site=site, epsilon=epsilon, base=base, **options
    )
    if plot is not None:
        from suture.releases.console import histogram_chart
        from suture.report.theme import save

        save(histogram_chart(found), plot)
        found["plot"] = str(plot)
    if as_json:
        print_json(found)
    else:
        from suture.releases.console import print_release

        print_release(found)
