"""Paper 004's "SHAP Dice" on the generated radiographs, whose lesions are known: the paper's column beside ours.

Paper and we may not measure the same: the paper does not say how many regions count or what is compared (see
`suture.explanation.lesions`), and its regions are a U-Net's. Ours are the fixed grid's zones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from suture.evaluation.significance import interval
from suture.explain_regions import lesion_dice
from suture.study import Study

PAPER = {"Centralised": 0.728, "FedAvg": 0.695, "FedAvg + DP": 0.660, "Full pipeline": 0.753}
ROWS: dict[str, tuple[str, str | None]] = {
    "Centralised": ("pooled", None),
    "FedAvg": ("fedavg", None),
    "FedAvg + DP": ("dp", "global model"),
    "FedAvg + DP + ensemble": ("dp", None),
    "Full pipeline": ("fair", None),
}
"""Configuration: which run, and which part of its ensemble."""
NOTE = (
    "Dice: top regions against the regions with the lesion, and their pixels against the lesion's beside the most that any "
    "choice of the 13 regions reaches. The paper gives no definition, so its column is not the same figure."
)


def explanations(folders: dict[str, Path], *, quick: bool = False) -> list[dict[str, Any]]:
    """One row a configuration: Dice on test images with a lesion at every hospital, mean and interval over seeds."""
    rows = []
    for name, (key, piece) in ROWS.items():
        seeds = Study.from_toml(folders[key] / "study.toml").evaluation.seeds
        found = [
            lesion_dice(folders[key], images=2 if quick else 10, seed=seed, piece=piece, samples=128 if quick else 512)
            for seed in range(seeds)
        ]
        mean, low, high = interval([one["regions"] for one in found])
        rows.append(
            {
                "configuration": name,
                "our Dice, regions": mean,
                "our Dice, regions 95% low": low,
                "our Dice, regions 95% high": high,
                "our Dice, pixels": sum(one["pixels"] for one in found) / seeds,
                "ceiling, pixels": sum(one["ceiling"] for one in found) / seeds,
                "images": sum(one["images"] for one in found),
                "paper's SHAP Dice": PAPER.get(name),
            }
        )
    return rows
