"""The picture, the page of one image and the page of hospitals."""

import io
import re
from pathlib import Path

import numpy as np
import pytest

from suture.explain import hospitals
from suture.explain.image_page import ImageExplanation, Interval, notes_of, outside_share, page
from suture.explain.image_picture import HEAD, LOWERS, MARGIN, PANEL, RAISES, draw, png
from suture.explain.regions import grid
from suture.explain.run import FinishedRun
from suture.explain.shapley import RegionValues
from suture.result import Result

pil = pytest.importorskip("PIL.Image", reason="pictures need the imaging extra")
REGIONS = grid(32)
RECORD = {
    "name": "films <b>",
    "outcome": "abnormal",
    "method": "fedavg",
    "methods": {"fedavg": {"label": "FedAvg"}},
    "privacy": {"protected": True, "epsilon": 7.5, "delta": 1e-5},
}
RUN = FinishedRun(Path(), Result(RECORD), None, None, Path())


def values_with(**given):
    values = np.zeros(13)
    for name, value in given.items():
        values[REGIONS.names.index(name.replace("_", " "))] = value
    return values


def found_with(values, base=-1.0):
    return RegionValues(
        REGIONS.names, values, base, base + float(values.sum()), values + 0.004, True, 2048
    )


def explanation(values, interval=True):
    found = found_with(values)
    reach = Interval(0.4, 0.3, 0.5, "Calibrated here.") if interval else "No interval."
    image = np.random.default_rng(0).random((32, 32), np.float32)
    return ImageExplanation(found, REGIONS, "a mean image", reach, notes_of(found, image))


def test_colours_say_what_raises_and_what_lowers_on_the_right_side():
    flat = np.full((32, 32), 0.5, np.float32)
    values = values_with(left_upper_zone=1.0, right_upper_zone=-1.0)
    raster = draw(flat, REGIONS, values, ("t", "s", "n"))
    panel = raster[HEAD : HEAD + PANEL, 2 * MARGIN + PANEL : 2 * MARGIN + 2 * PANEL].astype(int)
    step = PANEL // 32
    left, right = (
        panel[6 * step, 24 * step],
        panel[6 * step, 7 * step],
    )  # the patient's left is on the image's right
    grey = 127.5
    assert np.abs(left - (0.38 * grey + 0.62 * np.array(RAISES))).max() <= 2
    assert np.abs(right - (0.38 * grey + 0.62 * np.array(LOWERS))).max() <= 2
    heart = panel[20 * step, 17 * step - 30]
    assert np.ptp(heart) <= 1  # no value, no colour
    back = np.asarray(pil.open(io.BytesIO(png(raster))))
    assert np.array_equal(back, raster)


def test_the_page_is_self_contained_and_shows_prediction_interval_and_every_region():
    found = explanation(values_with(heart=0.75, right_top_corner=1.25))
    text = page(found, RUN, ("hôpital <i>", "film & 1"), b"png", ["a.png"])
    body = text[text.index("<header") : text.index('<script type="application/json"')]
    assert "40.0 %" in body
    assert "30.0 % to 50.0 %" in body
    for name in REGIONS.names:
        assert f'<th scope="row">{name}' in body
    assert "+1.250" in body
    assert "× 3.49" in body  # exp(1.25)
    assert "<i>" not in body
    assert "<b>" not in body
    assert "https://" not in body
    assert "differs by at most 0.004" in body
    assert "right top corner of the image is among the 3 regions" in body
    assert not re.search(r'(src|href)="(?!data:|#)', body)


def test_without_an_interval_the_page_says_why():
    found = explanation(values_with(heart=0.1), interval=False)
    text = page(found, RUN, ("s", "f"), b"", [])
    assert "No interval." in text
    assert "95 % interval</span>" not in text


def test_notes():
    values = values_with(
        heart=3.0, left_top_corner=-2.0, right_upper_zone=1.0, left_upper_zone=1.5, mediastinum=0.5
    )
    flat = np.zeros((32, 32), np.float32)
    notes = " ".join(notes_of(found_with(values), flat))
    assert "left top corner" in notes
    assert "flat grey" in notes
    assert outside_share(values, REGIONS.names) == pytest.approx(2 / 8)
    calm = found_with(values_with(heart=3.0, right_upper_zone=1.0, left_upper_zone=1.5))
    assert notes_of(calm, np.eye(32, dtype=np.float32)) == ()


def test_hospitals_page():
    weights = np.full((2, 13), 0.1)
    weights[0, 8] = 0.9
    facts = {
        "intro": "Intro.",
        "findings": ["corner!"],
        "dice": None,
        "notes": ["note"],
        "footer": [("a", "b")],
    }
    text = hospitals.page("films", REGIONS.names, ["north", "south"], weights, facts)
    body = text[text.index("<header") :]
    assert "corner!" in body
    row = re.search(r"north</th>(.*?)</tr>", body).group(1)
    assert re.findall(r">([\d.]+)<", row) == ["5"] * 8 + ["43"] + ["5"] * 4 + ["2.10"]
