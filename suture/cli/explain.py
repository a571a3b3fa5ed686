"""``suture explain``: one patient's risk, one radiograph, or where a model looks at each hospital; and
``suture segment``, the U-Net for lungs and heart that it can use."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from suture.cli.options import Json, Run, answer, command, group, option, say
from suture.errors import StudyError

app = group()


@dataclass(frozen=True)
class OfImage:
    """What goes with ``--image``."""

    unet: Annotated[
        Path | None, option("With --image: weights from suture segment; without, a fixed grid.")
    ] = None
    background: Annotated[
        str | None,
        option("With --image: what an absent region shows, site (its mean image) or blur."),
    ] = None
    identify: Annotated[
        bool, option("With --image: copy patient and study into the DICOM capture.", "--identify")
    ] = False
    quick: Annotated[
        bool, option("With --image: Kernel SHAP with 512 sets only, for large networks.", "--quick")
    ] = False


@command(app, "suture explain runs/icu --site hospital-007 --patient 60000123")
def explain(
    folder: Run,
    *,
    site: Annotated[str | None, option("The patient's site; only its rows are read.")] = None,
    patient: Annotated[
        str | None, option("veil: the patient's identifier in the site's table.")
    ] = None,
    row: Annotated[Path | None, option("veil: a CSV or JSON file with one row.")] = None,
    percentiles: Annotated[
        str,
        option(
            "veil: compare with the site's own patients, or the federation's (released before)."
        ),
    ] = "site",
    image: Annotated[Path | None, option("Imaging: a DICOM, PNG or NPZ file to explain.")] = None,
    regions: Annotated[
        bool, option("Imaging: where the model looks at each hospital.", "--regions")
    ] = False,
    of_image: OfImage,
    images: Annotated[int, option("With --regions: images of each hospital.")] = 20,
    out: Annotated[Path | None, option("Where to write. Default: explanations inside RUN.")] = None,
    as_json: Json = False,
) -> None:
    """Explain a risk at its own site, as a page and a picture (a radiograph also as a DICOM
    secondary capture)."""
    if sum((patient is not None, row is not None, image is not None, regions)) != 1:
        raise StudyError(
            "give one of --patient ID, --row FILE, --image FILE and --regions: suture explain "
            "--help"
        )
    if image is None and of_image != OfImage():
        raise StudyError("--unet, --background, --identify and --quick belong to --image FILE")
    if percentiles != "site" and (image is not None or regions):
        raise StudyError("--percentiles belongs to --patient and --row")
    if image is not None:
        from suture.explain.image import explain_file

        found = explain_file(folder, image=image, site=site, out=out, **asdict(of_image))
    elif regions:
        from suture.explain.hospitals import explain_hospitals

        found = explain_hospitals(folder, site=site, images=images, out=out, say=say)
    else:
        from suture.explain.patient import explain_patient

        if site is None:
            raise StudyError(
                "--patient and --row need --site: a patient is explained at their own site"
            )
        found = explain_patient(
            folder, site=site, patient=patient, row=row, out=out, percentiles=percentiles
        )
    answer(found, as_json, _tell)


def _tell(found: dict[str, Any]) -> None:
    if "risk" in found:
        shown = found["risk"] if found["calibrated"] is None else found["calibrated"]
        low_high = found["interval"]
        reach = (
            f", 95 % interval {100 * low_high[0]:.1f} to {100 * low_high[1]:.1f} %"
            if low_high
            else ""
        )
        typer.echo(f"risk {100 * shown:.1f} %{reach}  (model {100 * found['risk']:.1f} %)")
    notes = list(found.get("findings", ()))
    if "base" in found:
        for region in sorted(found["regions"], key=lambda r: -abs(r["value"]))[:5]:
            typer.echo(f"  {region['value']:+.2f}  {region['name']}")
        notes += found.get("notes", ())
    for line in notes:
        typer.echo(f"note: {line}")
    if found.get("dice"):
        dice = found["dice"]
        typer.echo(
            f"Dice of top regions and {dice['images']} lesions: regions {dice['regions']:.2f}, "
            f"pixels {dice['pixels']:.2f} (at most {dice['ceiling']:.2f})"
        )
    for key in ("page", "picture", "capture"):
        if key in found:
            typer.echo(found[key])


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
