"""``suture release``: one noisy figure about one site, charged to its ledger first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from suture.cli.options import Json, answer, argument, command, group, option, say

app = group(
    "release",
    "Release a rate, a histogram or quantiles of one site's column: charged to its ledger, then "
    "noisy.",
    "suture release rate study.toml --site boston --column died --epsilon 0.5",
)

Epsilon = Annotated[float, option("What this release may cost.")]
Delta = Annotated[float | None, option("Default: the study's, or 1e-5.")]
Budget = Annotated[
    float | None,
    option(
        "What all releases of the study may spend at this site; fixed by the first. Default: the "
        "study's."
    ),
]


@dataclass(frozen=True)
class Asked:
    """What every question about one column needs."""

    study: Annotated[Path, argument("The study file.", "STUDY")]
    site: Annotated[str, option("The site.")]
    column: Annotated[str, option("A feature of the schema, or the outcome.")]
    epsilon: Epsilon
    delta: Delta = None
    budget: Budget = None
    mechanism: Annotated[
        str, option("discrete (exact, the default) or gaussian (floating point).")
    ] = "discrete"


@command(app, "suture release rate study.toml --site boston --column died --epsilon 0.5")
def rate(
    asked: Asked,
    above: Annotated[
        float | None, option("For a number: values above this count as an event.")
    ] = None,
    as_json: Json = False,
) -> None:
    """The share of patients with an event, with its interval."""
    _release("rate", asked, None, as_json, above=above)


@command(
    app, "suture release histogram study.toml --site boston --column age --epsilon 0.5 --bins 8"
)
def histogram(
    asked: Asked,
    bins: Annotated[int, option("Bins of a number, between its declared bounds.")] = 10,
    cap: Annotated[
        int | None, option("Count rows, at most this many per patient, instead of patients.")
    ] = None,
    plot: Annotated[Path | None, option("Draw it: a .png or .svg file.")] = None,
    as_json: Json = False,
) -> None:
    """Patients by bin (or rows, capped), each count with its interval."""
    _release("histogram", asked, plot, as_json, bins=bins, cap=cap)


@command(app, "suture release quantiles study.toml --site boston --column age --epsilon 1 --at 0.5")
def quantiles(
    asked: Asked,
    at: Annotated[list[float] | None, option("Quantiles; repeat. Default: the quartiles.")] = None,
    bins: Annotated[int, option("Steps between the declared bounds.")] = 64,
    as_json: Json = False,
) -> None:
    """Quantiles of a number from one noisy histogram, each with its interval."""
    chosen = {"at": tuple(at)} if at else {}
    _release("quantiles", asked, None, as_json, bins=bins, **chosen)


@command(app, "suture release percentiles runs/icu --epsilon 1 --budget 2")
def percentiles(
    folder: Annotated[Path, argument("The folder of a finished veil run.", "RUN")],
    epsilon: Epsilon,
    bins: Annotated[int, option("Steps between the declared bounds.")] = 40,
    delta: Delta = None,
    budget: Budget = None,
    as_json: Json = False,
) -> None:
    """Histograms of the model's numbers over all sites, for suture explain --percentiles
    federation; charged at each."""
    from suture.explain.percentiles import release_percentiles

    found = release_percentiles(
        folder, epsilon=epsilon, delta=delta, budget=budget, bins=bins, say=say
    )
    answer(
        found,
        as_json,
        f"{len(found['columns'])} numbers at {found['hospitals']} hospitals, epsilon "
        f"{found['epsilon']:g} at each",
        found["written"],
        f"next: suture explain {folder} --site S --patient ID --percentiles federation",
    )


def _release(kind: str, asked: Asked, plot: Path | None, as_json: bool, **more: Any) -> None:
    from suture.releases.query import release
    from suture.report.console import print_release
    from suture.study import Study

    found = release(
        Study.from_toml(asked.study),
        kind,
        asked.column,
        site=asked.site,
        epsilon=asked.epsilon,
        base=asked.study.resolve().parent,
        delta=asked.delta,
        budget=asked.budget,
        mechanism=asked.mechanism,
        **more,
    )
    if plot is not None:
        from suture.report.plans import histogram_chart
        from suture.report.theme import save

        save(histogram_chart(found), plot)
        found["plot"] = str(plot)
    answer(found, as_json, print_release)
