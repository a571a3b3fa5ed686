"""``suture attack``: what messages give away without protection, and what is left with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from suture.cli.options import Json, group, print_json, say
from suture.errors import StudyError

app = group(
    "attack",
    "Attack our own messages, against epsilon.",
    "suture attack gradient-inversion --out attacks/inversion",
)

Out = Annotated[
    Path | None,
    typer.Option(help="Folder for the page and the figures. Default: attacks/<attack>."),
]
Quick = Annotated[bool, typer.Option(help="Fewer records or runs: a look, not a result.")]
Epsilons = Annotated[str | None, typer.Option(help="Epsilons, separated by commas.")]


@app.command(
    "gradient-inversion",
    epilog="Example: suture attack gradient-inversion --study study.toml --out attacks/inversion --json",
)
def gradient_inversion(
    study: Annotated[
        Path | None, typer.Option(help="Also attack with the noise of this study's smallest site.")
    ] = None,
    epsilons: Epsilons = None,
    targets: Annotated[int, typer.Option(min=2, help="Records to reconstruct, of each kind.")] = 40,
    quick: Quick = False,
    seed: Annotated[int, typer.Option(help="Which generated patients.")] = 1,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Reconstruct records from updates: exactly without protection, then at each epsilon. Never on
    a site's rows."""
    from suture.attacks import gradient_inversion as attack

    chosen = _numbers(epsilons) or attack.EPSILONS
    found = attack.gradient_inversion(
        study=study, epsilons=chosen, targets=targets, quick=quick, seed=seed, say=say
    )
    _finish(found, out or Path("attacks") / "gradient-inversion", as_json)


@app.command(
    epilog="Example: suture attack membership --epsilons 8,4,2,1,0.5 --out attacks/membership --json"
)
def membership(
    epsilons: Epsilons = None,
    patients: Annotated[
        int, typer.Option(help="Generated patients of the hospital, a multiple of 5.")
    ] = 100,
    runs: Annotated[int, typer.Option(min=40, help="Trainings per world and epsilon.")] = 2000,
    quick: Quick = False,
    seed: Annotated[int, typer.Option(help="Which generated patients.")] = 1,
    threads: Annotated[int | None, typer.Option(help="Threads to use. Default: all cores.")] = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Was the carrier of a rare diagnosis in the table? Attack success against epsilon, with the
    bound of DP."""
    from suture.attacks import membership as attacked

    chosen = _numbers(epsilons) or attacked.EPSILONS
    found = attacked.membership(
        epsilons=chosen,
        patients=patients,
        runs=runs,
        quick=quick,
        seed=seed,
        threads=threads,
        say=say,
    )
    _finish(found, out or Path("attacks") / "membership", as_json)


def _numbers(text: str | None) -> tuple[float, ...]:
    if text is None:
        return ()
    try:
        found = tuple(
            sorted({float(part) for part in text.split(",") if part.strip()}, reverse=True)
        )
    except ValueError:
        found = ()
    if not found or not all(0 < value < float("inf") for value in found):
        raise StudyError(
            "--epsilons: expected numbers above 0 separated by commas, such as 8,4,2,1; found "
            f"{text!r}"
        )
    return found


def _finish(found: dict[str, Any], folder: Path, as_json: bool) -> None:
    from suture.attacks import page

    files = [str(folder / name) for name in page.write(found, folder)]
    subjects = [
        {k: v for k, v in subject.items() if k != "shown"} for subject in found.get("subjects", [])
    ]
    if as_json:
        print_json({**found, **({"subjects": subjects} if subjects else {}), "written": files})
        return
    page.print_attack(found)
    for name in files:
        typer.echo(name)
