"""`suture explain`: one patient's risk, one radiograph, or where a model looks at each hospital."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from suture.cli.options import Json, print_json, say
from suture.errors import StudyError

EXAMPLE = "Example: suture explain runs/icu --site hospital-007 --patient 60000123"


def explain(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    site: Annotated[
        str | None, typer.Option(help="The patient's site; only its rows are read.")
    ] = None,
    patient: Annotated[
        str | None, typer.Option(help="veil: the patient's identifier in the site's table.")
    ] = None,
    row: Annotated[Path | None, typer.Option(help="veil: a CSV or JSON file with one row.")] = None,
    percentiles: Annotated[
        str,
        typer.Option(
            help="veil: compare with the site's own patients, or the federation's (released before)."
        ),
    ] = "site",
    image: Annotated[
        Path | None, typer.Option(help="Imaging: a DICOM, PNG or NPZ file to explain.")
    ] = None,
    regions: Annotated[
        bool, typer.Option("--regions", help="Imaging: where the model looks at each hospital.")
    ] = False,
    unet: Annotated[
        Path | None,
        typer.Option(help="With --image: weights from suture segment; without, a fixed grid."),
    ] = None,
    background: Annotated[
        str | None,
        typer.Option(
            help="With --image: what an absent region shows, site (its mean image) or blur."
        ),
    ] = None,
    identify: Annotated[
        bool,
        typer.Option(
            "--identify", help="With --image: copy patient and study into the DICOM capture."
        ),
    ] = False,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="With --image: Kernel SHAP with 512 sets only, for large networks."
        ),
    ] = False,
    images: Annotated[int, typer.Option(help="With --regions: images of each hospital.")] = 20,
    out: Annotated[
        Path | None, typer.Option(help="Where to write. Default: explanations inside RUN.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Explain a risk at its own site, as a page and a picture (a radiograph also as a DICOM
    secondary capture)."""
    if sum((patient is not None, row is not None, image is not None, regions)) != 1:
        raise StudyError(
            "give one of --patient ID, --row FILE, --image FILE and --regions: suture explain "
            "--help"
        )
    if image is None and (unet is not None or background is not None or identify or quick):
        raise StudyError("--unet, --background, --identify and --quick belong to --image FILE")
    if percentiles != "site" and (image is not None or regions):
        raise StudyError("--percentiles belongs to --patient and --row")
    if image is not None:
        from suture.explain.image import explain_file

        found = explain_file(
            folder,
            image=image,
            site=site,
            unet=unet,
            background=background,
            identify=identify,
            quick=quick,
            out=out,
        )
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
    if as_json:
        print_json(found)
    else:
        _tell(found)


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
    for region in (
        sorted(found["regions"], key=lambda r: -abs(r["value"]))[:5] if "base" in found else ()
    ):
        typer.echo(f"  {region['value']:+.2f}  {region['name']}")
    for line in (*found.get("findings", ()), *(found.get("notes", ()) if "base" in found else ())):
        typer.echo(f"note: {line}")
    if found.get("dice"):
        dice = found["dice"]
        typer.echo(
            f"Dice of top regions and {dice['images']} lesions: regions {dice['regions']:.2f}, "
            f"pixels {dice['pixels']:.2f} "
            f"(at most {dice['ceiling']:.2f})"
        )
    for key in ("page", "picture", "capture"):
        if key in found:
            typer.echo(found[key])
