"""Residual networks: shapes, starting points, ImageNet weights, and life without PyTorch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from suture.errors import StudyError
from suture.models.network import rebuilt
from suture.models.residual import Residual, converted, digest

torch = pytest.importorskip("torch", reason="residual networks: pip install 'suture[imaging]'")
SMALL = Residual(16, 8, 4)


def test_parameter_counts_are_the_published_ones() -> None:
    """torchvision's ResNet-34 and ResNet-18, less two colours and 999 classes; both numbers are in
    its documentation."""
    for depth, published in ((34, 21_797_672), (18, 11_689_512)):
        grey, one_class = 64 * 2 * 49, 512 * 999 + 999
        assert Residual(224, depth, 64).n_params == published - grey - one_class


@pytest.mark.parametrize(
    "shape", [SMALL, Residual(28, 20, 8, 3), Residual(64, 10, 8), Residual(70, 18, 4)]
)
def test_the_flat_vector_is_the_modules_parameters(shape: Residual) -> None:
    params = shape.init(np.random.default_rng(0))
    flat = torch.from_numpy(params.copy())
    module = shape.module(flat)
    assert [(name, tuple(p.shape)) for name, p in module.named_parameters()] == list(shape.shapes)
    np.testing.assert_array_equal(
        torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy(), params
    )
    flat += 1
    assert float(next(iter(module.parameters())).detach().flatten()[0]) == pytest.approx(
        params[0] + 1
    )


def test_an_image_is_scored_by_itself() -> None:
    """To the last bit: with weights of someone else's choice a bit that depends on other images
    tells of them."""
    rng = np.random.default_rng(1)
    params, x = SMALL.init(rng), rng.random((7, 256), dtype=np.float32)
    together = SMALL.predict(params, x)
    for part in (slice(3, 4), slice(0, 3), slice(2, 7)):
        np.testing.assert_array_equal(SMALL.predict(params, x[part]), together[part])
    assert SMALL.logits(params, x[:0]).shape == (0, 1)
    three = Residual(16, 8, 4, outputs=3)
    np.testing.assert_allclose(three.predict(three.init(rng), x).sum(axis=1), 1, rtol=1e-6)


def test_the_start_is_the_same_for_the_same_seed_and_keeps_the_scale() -> None:
    first, again = (SMALL.init(np.random.default_rng(4)) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    at = SMALL.shapes[0][1]
    assert np.std(first[: np.prod(at)]) == pytest.approx(np.sqrt(2 / (4 * 9)), rel=0.3)


def imagenet_like(path: Path) -> dict[str, torch.Tensor]:
    """A file as torchvision saves ResNet-18, with random values."""
    torch.manual_seed(0)
    saved = {
        name: torch.randn(shape)
        for name, shape in Residual(64, 18, 64).shapes
        if not name.startswith("fc.")
    }
    saved["conv1.weight"] = torch.randn(64, 3, 7, 7)
    saved |= {
        "bn1.running_mean": torch.zeros(64),
        "fc.weight": torch.randn(1000, 512),
        "fc.bias": torch.randn(1000),
    }
    torch.save(saved, path)
    return saved


def test_imagenet_weights_are_converted(tmp_path: Path) -> None:
    path = tmp_path / "resnet18.pth"
    saved = imagenet_like(path)
    shape = Residual(64, 18, 64, weights=str(path))
    start = shape.init(np.random.default_rng(0))
    np.testing.assert_allclose(
        start[: 64 * 49].reshape(64, 1, 7, 7),
        saved["conv1.weight"].mean(1, keepdim=True),
        rtol=1e-6,
    )
    at = 64 * 49
    np.testing.assert_array_equal(start[at : at + 64], saved["bn1.weight"])
    fresh = Residual(64, 18, 64).init(np.random.default_rng(0))
    np.testing.assert_array_equal(start[-513:], fresh[-513:])  # the classifier is ours
    assert shape.described()["weights_sha256"] == digest(path)
    assert rebuilt(shape.described()) == Residual(64, 18, 64)


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="does not exist"):
        converted(tmp_path / "none.pth", dict(SMALL.shapes))
    (tmp_path / "text.pth").write_text("not tensors")
    with pytest.raises(StudyError, match="not a file of plain tensors"):
        converted(tmp_path / "text.pth", dict(SMALL.shapes))
    imagenet_like(tmp_path / "r18.pth")
    with pytest.raises(StudyError, match=r"layer1\.2\.conv1\.weight .* found nothing"):
        converted(tmp_path / "r18.pth", dict(Residual(64, 34, 64).shapes))
    with pytest.raises(StudyError, match="weights fit depth 18 or 34"):
        Residual(28, 8, 8, weights="x.pth")
    for wrong in ({"depth": 9}, {"width": 6}, {"size": 4}):
        with pytest.raises(StudyError):
            Residual(**{"size": 28, **wrong})


def test_everything_else_works_without_torch() -> None:
    """Torch is not imported by a study of tables, and images without it end in a sentence with the
    command."""
    script = """
import sys
class Without:  # as if it were not installed
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "opacus"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Without())
import numpy as np, suture
from suture.errors import MissingExtra
from suture.models.residual import Residual
suture.run(suture.Study(name="t", outcome="high_risk", cohort={"name": "cardio", "patients": 400},
    method={"name": "fedavg", "rounds": 1}), threads=1)
shape = Residual(28)
try:
    shape.predict(shape.init(np.random.default_rng(0)), np.zeros((1, 784), np.float32))
except MissingExtra as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "pip install 'suture[imaging]'" in done.stdout
