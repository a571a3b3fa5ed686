"""``suture segment``: the U-Net for lungs and heart, trained on generated radiographs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from suture.cli.options import Json, answer, command, group, option, say

app = group()


@command(app, "suture segment --out lungs.npz")
def segment(
    out: Annotated[Path, option("Where to write the weights (.npz).")] = Path("lungs.npz"),
    images: Annotated[int, option("Generated radiographs to train on.")] = 600,
    epochs: Annotated[int, option("Passes over them.")] = 4,
    seed: Annotated[int, option("Of the generated patients and the first weights.")] = 0,
    as_json: Json = False,
) -> None:
    """Train a small U-Net for lung and heart regions on generated radiographs, for suture explain
    --unet."""
    from suture.explain.regions import train_segmentation

    found = train_segmentation(out, images=images, epochs=epochs, seed=seed, say=say)
    dice = ", ".join(f"{name} {value:.3f}" for name, value in found["dice"].items())
    shown = f"Dice on {found['tested']} generated images of other patients: {dice}"
    answer(found, as_json, shown, str(found["weights"]))
