"""PneumoniaMNIST, real chest radiographs of children, dealt out to hospitals (Yang et al.,
Scientific Data 2023, CC BY 4.0).

5,856 pictures of 28 x 28 pixels, pneumonia or not, with the official training, validation and test
parts (4,708 / 524 / 624; Kermany et al., Cell 2018). The training part is dealt out to
``hospitals``; the official test part (or, with ``part = "validation"``, the validation part, to
choose settings on) is dealt out evenly and becomes the sites' test tables, so all sites together
are tested on exactly the official part.

The set names no patients. Each picture is its own unit here, and a promise made on it is a promise
to a picture: some children of the original collection have several, and nothing in the published
file says which.

The dealing is the same for every seed: real patients' ledgers outlive a run, so a hospital must
keep its patients.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from suture.cohorts.cohort import Cohort, CohortSite, one_of, within
from suture.cohorts.public import DOWNLOADS, data_folder
from suture.cohorts.radiographs import LOOKS, in_bytes, scanned
from suture.errors import DataError
from suture.schema.table import Image, Schema

OUTCOME = "pneumonia"
SPLITS = {
    "iid": "evenly",
    "label": "with uneven shares of each class",
    "scanner": "evenly, each with a scanner's look",
}
SIDE = 28
SKEW = 0.5
"""Weight of the Dirichlet distribution behind ``split = "label"``: the smaller, the more hospitals
differ."""
FEWEST = 20
"""Training pictures that a hospital has at least."""
SCHEMA = Schema(
    patient="patient_id", features={"image": Image(size=SIDE, label="Chest radiograph")}
)


def pneumonia(seed: int, *, hospitals: int = 10, split: str = "iid", part: str = "test") -> Cohort:
    """The federation. ``split``: "iid"; "label" (each class dealt out unevenly); "scanner" (iid, and
    each hospital's pictures, training and test, have one of the looks of cohort `radiographs`)."""
    one_of("pneumonia", "split", split, *SPLITS)
    one_of("pneumonia", "part", part, "test", "validation")
    within("pneumonia", "hospitals", hospitals, 1, 50)
    images, labels = _part("train")
    tested, tested_labels = _part("val" if part == "validation" else "test")
    rng = np.random.default_rng(0x9E0)
    skewed = split == "label"
    deal = _by_label(labels, hospitals, rng) if skewed else _evenly(len(labels), hospitals, rng)
    test_deal = _evenly(len(tested_labels), hospitals, rng)
    members = []
    for i, (mine, test) in enumerate(zip(deal, test_deal, strict=True)):
        shown, shown_test = images[mine], tested[test]
        if split == "scanner":
            look, noise = LOOKS[i % len(LOOKS)], np.random.default_rng([0x9E0, i])
            shown, shown_test = (
                in_bytes(scanned(some.astype(np.float32) / np.float32(255), look, noise))
                for some in (shown, shown_test)
            )
        table = {"patient_id": _names("train", mine), "image": shown, OUTCOME: labels[mine]}
        names, truth = _names(part, test), tested_labels[test]
        held = {"patient_id": names, "image": shown_test, OUTCOME: truth}
        members.append(CohortSite(f"hospital-{i + 1:02d}", "", table, held))
    words = (
        f"PneumoniaMNIST: {len(labels):,} real radiographs dealt out to {hospitals} hospitals, "
        f"{SPLITS[split]}; tested on the official {part} part"
    )
    return Cohort("pneumonia", OUTCOME, SCHEMA, tuple(members), words, generated=False)


def public_images(size: int) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    """The training and validation parts as public pictures of ``size`` x ``size`` within 0..1, to
    start networks from.

    Bilinear, because 28 pixels do not divide evenly into other sizes.
    """
    from scipy.ndimage import zoom

    parts = [_part(name) for name in ("train", "val")]
    shown = np.concatenate([images for images, _ in parts]).astype(np.float32) / 255
    scaled = zoom(shown, (1, size / SIDE, size / SIDE), order=1, grid_mode=True, mode="nearest")
    return np.asarray(scaled, np.float32), np.concatenate([labels for _, labels in parts])


def _names(part: str, index: NDArray[np.intp]) -> NDArray[np.str_]:
    return np.array([f"{part}-{i}" for i in index.tolist()])


def _part(name: str) -> tuple[NDArray[np.uint8], NDArray[np.int8]]:
    path = data_folder("pneumoniamnist") / "pneumoniamnist_28.npz"
    try:
        with np.load(path, allow_pickle=False) as archive:
            images, labels = archive[f"{name}_images"], archive[f"{name}_labels"]
    except (OSError, KeyError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read ({type(error).__name__}); it is: {DOWNLOADS['pneumoniamnist']}"
        ) from None
    return np.asarray(images, np.uint8), np.asarray(labels, np.int8).reshape(-1)


def _evenly(count: int, hospitals: int, rng: np.random.Generator) -> list[NDArray[np.intp]]:
    return [np.sort(some) for some in np.array_split(rng.permutation(count), hospitals)]


def _by_label(
    labels: NDArray[np.int8], hospitals: int, rng: np.random.Generator
) -> list[NDArray[np.intp]]:
    """Each class dealt out by shares of its own, drawn anew until no hospital is too small."""
    while True:
        parts: list[list[NDArray[np.intp]]] = [[] for _ in range(hospitals)]
        for value in (0, 1):
            mine = rng.permutation(np.flatnonzero(labels == value))
            shares = np.cumsum(rng.dirichlet(np.full(hospitals, SKEW)))
            ends = np.rint(shares * len(mine)).astype(int)
            for i, some in enumerate(np.split(mine, ends[:-1])):
                parts[i].append(some)
        deal = [np.sort(np.concatenate(some)) for some in parts]
        if min(map(len, deal)) >= FEWEST:
            return deal
