"""The U-Net: shapes against PyTorch's own count, sides, another size, and weights that fit or are
refused."""

import numpy as np
import pytest

from suture.errors import DataError
from suture.models.unet import (
    CLASSES,
    forward,
    init,
    inputs,
    load_weights,
    masks,
    measured_dice,
    segment,
    shapes,
    train_unet,
)

torch = pytest.importorskip("torch", reason="the U-Net needs the torch extra")


def chests(count, seed, size=64):
    """Two dark ovals and a bright one, which is what lungs and a heart are to a network."""
    r = np.random.default_rng(seed)
    y, x = np.mgrid[:size, :size] / size
    images, classes = [], []
    for _ in range(count):
        dy, dx, scale = r.normal(0, 0.03), r.normal(0, 0.03), r.uniform(0.9, 1.15)

        def oval(cy, cx, h, w, dy=dy, dx=dx, scale=scale):
            return ((y - cy - dy) / h / scale) ** 2 + ((x - cx - dx) / w / scale) ** 2 < 1

        right, left, heart = (
            oval(0.45, 0.28, 0.28, 0.13),
            oval(0.45, 0.72, 0.28, 0.13),
            oval(0.62, 0.55, 0.12, 0.12),
        )
        image = 0.6 - 0.3 * (right | left) + 0.2 * heart + r.normal(0, 0.04, (size, size))
        known = np.zeros((size, size), np.int8)
        known[right], known[left], known[heart] = 1, 2, 3
        images.append(np.clip(image, 0, 1))
        classes.append(known)
    return np.array(images, np.float32), np.array(classes)


def test_the_network_is_the_one_that_its_shapes_say():
    weights = init(0)
    assert {name: value.shape for name, value in weights.items()} == shapes()
    params = {name: torch.from_numpy(value) for name, value in weights.items()}
    out = forward(params, inputs(torch.zeros(2, 1, 64, 64)))
    assert tuple(out.shape) == (2, len(CLASSES), 64, 64)
    assert all(np.array_equal(init(0)[name], value) for name, value in weights.items())


def test_it_learns_and_names_sides_as_the_patient_does(tmp_path):
    torch.set_num_threads(1)
    told = []
    weights = train_unet(*chests(80, 1), epochs=5, seed=3, say=told.append)
    assert told[-1].startswith("epoch 5 of 5")
    test_images, test_classes = chests(20, 2)
    dice = measured_dice(weights, test_images, test_classes)
    assert min(dice.values()) > 0.9, dice
    # Another size: brought to 64 x 64 and back.
    large, known = chests(1, 3, size=100)
    found = masks(weights, large[0])
    assert np.nonzero(found["left lung"])[1].mean() > 50 > np.nonzero(found["right lung"])[1].mean()
    overlap = (
        2
        * (found["heart"] & (known[0] == 3)).sum()
        / (found["heart"].sum() + (known[0] == 3).sum())
    )
    assert overlap > 0.85
    assert segment(weights, large[:0]).shape == (0, 100, 100)
    np.savez(tmp_path / "w.npz", **weights)
    again = load_weights(tmp_path / "w.npz")
    assert np.array_equal(segment(again, test_images[:1]), segment(weights, test_images[:1]))


def test_other_files_are_refused(tmp_path):
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(DataError, match="other arrays"):
        load_weights(tmp_path / "other.npz")
    (tmp_path / "text.npz").write_text("no")
    with pytest.raises(DataError, match="cannot be read"):
        load_weights(tmp_path / "text.npz")
