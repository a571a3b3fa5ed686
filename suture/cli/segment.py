"""`suture segment`: the U-Net for lungs and heart, trained on generated radiographs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from suture.cli.options import Json, print_json, say

EXAMPLE = "Example: suture segment --out lungs.npz"


def segment(
    out: Annotated[Path, typer.Option(help="Where to write the weights (.npz).")] = Path(
        "lungs.npz"
    ),
    images: Annotated[int, typer.Option(help="Generated radiographs to train on.")] = 600,
    epochs: Annotated[int, typer.Option(help="Passes over them.")] = 4,
    seed: Annotated[int, typer.Option(help="Of the generated patients and the first weights.")] = 0,
    as_json: Json = False,
) -> None:
    """Train a small U-Net for lung and heart regions on generated radiographs, for suture explain
    --unet."""
    from suture.explain.regions import train_segmentation

    found = train_segmentation(out, images=images, epochs=epochs, seed=seed, say=say)
    if as_json:
        print_json(found)
        return
    told = ", ".join(f"{name} {value:.3f}" for name, value in found["dice"].items())
    typer.echo(f"Dice on {found['tested']} generated images of other patients: {told}")
    typer.echo(str(found["weights"]))
