"""``suture card``: the model card of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from suture.cli.options import Json, answer, argument, command, group, option

app = group()


@command(app, "suture card runs/icu")
def card(
    folder: Annotated[Path, argument("The folder of a finished veil run.", "RUN")],
    out: Annotated[Path | None, option("Where to write. Default: the run folder.")] = None,
    as_json: Json = False,
) -> None:
    """The model card: every concept with weight, quorum, stability and warnings, as a page and a
    picture."""
    from suture.explain.model_card import model_card

    found = model_card(folder, out=out)
    counted = f"{found['concepts']} concepts, {found['trainings']} trainings"
    answer(found, as_json, counted, found["page"], found["picture"])
