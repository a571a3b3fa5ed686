"""``suture attack``: what messages give away without protection, and what is left with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from suture.cli.options import Json, Quick, Threads, answer, command, group, listed, option, say
from suture.errors import StudyError

app = group(
    "attack",
    "Attack our own messages, against epsilon.",
    "suture attack gradient-inversion --out attacks/inversion",
)

Out = Annotated[
    Path | None, option("Folder for the page and the figures. Default: attacks/<attack>.")
]
Epsilons = Annotated[str | None, option("Epsilons, separated by commas.")]
Seed = Annotated[int, option("Which generated patients.")]


@command(
    app,
    "suture attack gradient-inversion --study study.toml --out attacks/inversion --json",
    "gradient-inversion",
)
def gradient_inversion(
    study: Annotated[
        Path | None, option("Also attack with the noise of this study's smallest site.")
    ] = None,
    epsilons: Epsilons = None,
    targets: Annotated[int, option("Records to reconstruct, of each kind.", least=2)] = 40,
    quick: Quick = False,
    seed: Seed = 1,
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


@command(app, "suture attack membership --epsilons 8,4,2,1,0.5 --out attacks/membership --json")
def membership(
    epsilons: Epsilons = None,
    patients: Annotated[int, option("Generated patients of the hospital, a multiple of 5.")] = 100,
    runs: Annotated[int, option("Trainings per world and epsilon.", least=40)] = 2000,
    quick: Quick = False,
    seed: Seed = 1,
    threads: Threads = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Was the carrier of a rare diagnosis in the table? Attack success against epsilon, with the
    bound of DP."""
    from suture.attacks import membership as attacked

    found = attacked.membership(
        epsilons=_numbers(epsilons) or attacked.EPSILONS,
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
        found = tuple(sorted({float(part) for part in listed(text)}, reverse=True))
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
    shown = {**found, "written": files}
    if found.get("subjects"):
        shown["subjects"] = [
            {key: value for key, value in subject.items() if key != "shown"}
            for subject in found["subjects"]
        ]
    answer(shown, as_json, lambda _: page.print_attack(found), *files)
