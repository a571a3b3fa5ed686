"""DP-SGD on images: the same numbers as Opacus, clipped by patient, the same bits for the same
key."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batches import train_images_on_batches, train_on_batches

from suture.models.residual import Residual
from suture.privacy.noise.source import seeded_key
from suture.privacy.unit import Patients
from suture.training import imaging
from suture.training.local import Local, event
from suture.training.mechanism import train

torch = pytest.importorskip("torch", reason="trains on images: pip install 'suture[imaging]'")
opacus = pytest.importorskip("opacus", reason="trains on images: pip install 'suture[imaging]'")
NETWORK = Residual(8, 8, 4)
START = NETWORK.init(np.random.default_rng(3))


def images(counts: list[int], seed: int = 0) -> Patients:
    """One patient for each count, with so many images."""
    rng = np.random.default_rng(seed)
    rows = sum(counts)
    x = rng.random((rows, NETWORK.inputs), dtype=np.float32)
    return Patients(x, rng.integers(0, 2, rows), np.append(0, np.cumsum(counts)))


def by_hand(
    data: Patients, patients: list[int], push: np.ndarray | None = None
) -> list[np.ndarray]:
    """Each patient's summed gradient by plain autograd."""
    found = []
    for patient in patients:
        rows = slice(data.starts[patient], data.starts[patient + 1])
        module = NETWORK.module(torch.from_numpy(START.copy()))
        z = module(torch.from_numpy(data.x[rows]))[:, 0]
        y = torch.from_numpy(data.y[rows]).float()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(z, y, reduction="sum")
        if push is not None:
            loss = loss + (torch.from_numpy(push[rows]) * torch.sigmoid(z)).sum()
        parts = torch.autograd.grad(loss, list(module.parameters()))
        found.append(torch.cat([part.reshape(-1) for part in parts]).double().numpy())
    return found


@pytest.mark.filterwarnings("ignore")  # Opacus warns about its own hooks
def test_ten_steps_agree_with_opacus() -> None:
    """Opacus' own per-sample gradients, clipping, scaling and step; only its noise is replaced by
    the given one."""
    from opacus.optimizers import DPOptimizer

    local = Local(
        clip=0.3, noise_multiplier=0.8, rate=0.2, batch=12, momentum=0.5, class_weights=(0.7, 1.5)
    )
    data, rng = images([1] * 40), np.random.default_rng(5)
    batches = [np.flatnonzero(rng.random(40) < 0.3) for _ in range(10)]
    noise = rng.standard_normal((10, NETWORK.n_params)).astype(np.float32)
    rows = iter(noise)

    class GivenNoise(DPOptimizer):
        def add_noise(self) -> None:
            flat, at = torch.from_numpy(next(rows) * np.float32(0.8 * 0.3)), 0
            for p in self.params:
                p.grad = (p.summed_grad + flat[at : at + p.numel()].view_as(p)).view_as(p)
                at += p.numel()

    module = opacus.GradSampleModule(NETWORK.module(torch.from_numpy(START.copy())))
    optimizer = GivenNoise(
        torch.optim.SGD(module.parameters(), lr=0.2, momentum=0.5),
        noise_multiplier=0.8,
        max_grad_norm=0.3,
        expected_batch_size=12,
    )
    weight = torch.tensor([0.7, 1.5])
    for batch in batches:
        x, y = torch.from_numpy(data.x[batch]), torch.from_numpy(data.y[batch]).long()
        optimizer.zero_grad()
        losses = torch.nn.functional.binary_cross_entropy_with_logits(
            module(x)[:, 0], y.float(), reduction="none"
        )
        (losses * weight[y]).mean().backward()
        optimizer.step()
    theirs = torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    ours = train_images_on_batches(NETWORK, START, data, local, batches, noise)
    assert np.linalg.norm(ours - theirs) / np.linalg.norm(theirs - START) < 2e-4


@pytest.mark.parametrize("most", [128, 4])
def test_a_patients_images_are_summed_and_then_clipped(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Patients of 1, 3, 9 and 2 images against autograd; with virtual batches of 4, the third is
    worked on in pieces."""
    monkeypatch.setattr(imaging, "MOST_IMAGES", most)
    data, push = images([1, 3, 9, 2]), np.linspace(-2, 2, 15).astype(np.float32)
    clip = 12.0
    sums = by_hand(data, [0, 1, 2, 3], push)
    norms = [np.linalg.norm(s) for s in sums]
    assert min(norms) < clip < max(norms)
    expected = sum(s * min(1, clip / norm) for s, norm in zip(sums, norms, strict=True))
    local = Local(batch=4, rate=1.0, clip=clip, noise_multiplier=0.0)
    moved = START - train_images_on_batches(NETWORK, START, data, local, [np.arange(4)], push=push)
    np.testing.assert_allclose(4 * moved.astype(np.float64), expected, atol=2e-4)


@settings(max_examples=15, deadline=None)
@given(
    counts=st.lists(st.integers(1, 4), min_size=2, max_size=5),
    scale=st.sampled_from([1.0, 30.0, 1e4]),
    size=st.sampled_from([1.0, 1e3, 1e30]),
)
def test_one_patient_moves_the_sum_by_at_most_the_clip(
    counts: list[int], scale: float, size: float
) -> None:
    """Whatever the pixels and however hard the fairness penalty pushes."""
    data = images(counts, seed=len(counts))
    data = Patients(data.x * np.float32(size), data.y, data.starts)
    push = np.full(data.rows, scale, np.float32)
    local = Local(batch=len(counts), rate=1.0, clip=0.25, noise_multiplier=0.0)
    everybody = np.arange(len(counts))
    with_last = train_images_on_batches(NETWORK, START, data, local, [everybody], push=push)
    without = train_images_on_batches(NETWORK, START, data, local, [everybody[:-1]], push=push)
    assert (
        len(counts) * np.linalg.norm(with_last.astype(np.float64) - without)
        <= 0.25 * (1 + 1e-5) + 1e-4
    )


def test_patient_by_patient_gives_the_same_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    data = images([1] * 10 + [3])
    local = Local(batch=11, rate=1.0, clip=0.5, noise_multiplier=0.0)
    plain = START - train_images_on_batches(NETWORK, START, data, local, [np.arange(11)])
    monkeypatch.setattr(imaging, "LARGE", 0)
    alone = START - train_images_on_batches(NETWORK, START, data, local, [np.arange(11)])
    assert np.linalg.norm(alone - plain) / np.linalg.norm(plain) < 1e-5


@pytest.mark.parametrize("large", [False, True])
def test_an_image_that_is_not_finite_contributes_nothing(
    monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    monkeypatch.setattr(imaging, "LARGE", 0 if large else 10**9)
    data = images([1] * 4)
    broken = data.x.copy()
    broken[2] = np.inf
    local = Local(batch=4, rate=1.0, clip=0.5, noise_multiplier=0.0)
    with_it = train_images_on_batches(
        NETWORK, START, Patients(broken, data.y, data.starts), local, [np.arange(4)]
    )
    without = train_images_on_batches(NETWORK, START, data, local, [np.array([0, 1, 3])])
    np.testing.assert_allclose(with_it, without, atol=1e-6)


def test_the_same_key_gives_the_same_bits_and_another_key_other_noise() -> None:
    data, local = (
        images([1, 2, 1, 1, 3]),
        Local(epochs=2, batch=2, clip=1.0, noise_multiplier=1.0, rate=0.1),
    )
    first, again, other = (train(NETWORK, START, data, local, seeded_key(key)) for key in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.linalg.norm(first - other) > 0.1
    assert event(local, 5).count == 6  # the event is the one of tables


def test_training_without_privacy_is_plain_sgd() -> None:
    data = images([1, 1, 1])
    gradient = sum(by_hand(data, [0, 1, 2]))
    moved = START - train_images_on_batches(
        NETWORK, START, data, Local(rate=1.0, batch=3), [np.arange(3)]
    )
    np.testing.assert_allclose(3 * moved, gradient, atol=2e-4)


def test_a_push_on_tables_is_the_derivative_of_push_times_risk() -> None:
    """Dense networks, one logit and three classes, against central differences in float64."""
    from suture.models.dense import Dense

    rng = np.random.default_rng(2)
    for outputs in (1, 3):
        net = Dense((3, 4, outputs), "tanh")
        start = net.init(rng)
        data = Patients(
            rng.normal(size=(5, 3)), rng.integers(0, net.classes, 5), np.array([0, 2, 5])
        )
        push = rng.normal(size=5).astype(np.float32)
        local = Local(batch=2, rate=1.0, clip=1e6, noise_multiplier=0.0)
        plain, pushed = (
            2 * (start - train_on_batches(net, start, data, local, [np.arange(2)], push=p))
            for p in (None, push)
        )

        def penalty(
            params: np.ndarray, net: Dense = net, data: Patients = data, push: np.ndarray = push
        ) -> float:
            p = net.predict(params.astype(np.float32), data.x).astype(np.float64)
            return float(push @ (p if p.ndim == 1 else 1 - p[:, 0]))

        for i in rng.choice(net.n_params, 6, replace=False):
            step = np.zeros(net.n_params)
            step[i] = 1e-2
            slope = (penalty(start + step) - penalty(start - step)) / 2e-2
            assert pushed[i] - plain[i] == pytest.approx(slope, abs=2e-3)


@pytest.mark.slow
def test_resnet_34_takes_a_private_step_at_224_pixels_within_4_gb() -> None:
    script = """
import numpy as np, pathlib
from suture.models.residual import Residual
from suture.privacy.noise.source import seeded_key
from suture.privacy.unit import Patients
from suture.training.local import Local
from suture.training.mechanism import train
net, rng = Residual(224, 34, 64), np.random.default_rng(0)
data = Patients(rng.random((12, net.inputs), dtype=np.float32), rng.integers(0, 2, 12), np.arange(13))
start = net.init(rng)
new = train(net, start, data, Local(batch=12, clip=1.0, noise_multiplier=1.0), seeded_key(1))
risk = net.predict(new, data.x)
peak = next(int(l.split()[1]) for l in pathlib.Path("/proc/self/status").read_text().splitlines() if l.startswith("VmHWM"))
print(bool(np.all(np.isfinite(new)) and np.all(np.isfinite(risk))), peak)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    finite, peak = done.stdout.split()
    assert finite == "True"
    assert int(peak) < 4_000_000, f"peak {int(peak) / 1e6:.2f} GB"


def clipped(
    data: Patients, patients: np.ndarray, clip: float, start: np.ndarray = START
) -> np.ndarray:
    """The sum of these patients' clipped gradients, in float32 as it is computed."""
    step = imaging._Step(NETWORK, start, data, Local(batch=1, rate=0.0, clip=clip), None, None)
    step.take(patients, None)
    return step.velocity.numpy().astype(np.float64)


@pytest.mark.parametrize("large", [True, False])
def test_a_second_image_of_one_patient_leaves_everybody_elses_part_as_it_was(
    monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    """Issue 12: with the margin chosen for the whole table, 192 others moved by 0.2 C when one
    patient got an image more."""
    monkeypatch.setattr(imaging, "LARGE", 0 if large else 10**9)
    data, clip = images([1] * 193), 0.05
    more = Patients(
        np.concatenate([data.x, data.x[:1]]),
        np.concatenate([data.y, data.y[:1]]),
        np.append(data.starts[:-1], 194),
    )
    others, last = np.arange(192), np.array([192])
    before = clipped(data, np.arange(193), clip) - clipped(data, last, clip)
    after = clipped(more, np.arange(193), clip) - clipped(more, last, clip)
    # Measured: 8e-7 of C for 192 patients, the rounding of float32 sums.
    assert np.linalg.norm(after - before) <= 1e-5 * clip
    assert np.linalg.norm(after - clipped(more, others, clip)) <= 1e-5 * clip
    moved = clipped(more, np.arange(193), clip) - clipped(more, others, clip)
    assert np.linalg.norm(moved) <= clip * (1 + 1e-3)


@pytest.mark.parametrize("large", [True, False])
def test_a_patient_has_the_same_margin_however_many_images(
    monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    monkeypatch.setattr(imaging, "LARGE", 0 if large else 10**9)
    data, clip = images([1, 1, 3, 300]), 0.05
    for patient in range(4):
        norm = np.linalg.norm(clipped(data, np.array([patient]), clip))
        assert norm == pytest.approx(clip / (1 + imaging.ROUNDING), rel=2e-6)
    both = clipped(data, np.arange(4), clip)
    np.testing.assert_allclose(
        both, sum(clipped(data, np.array([p]), clip) for p in range(4)), atol=1e-5 * clip
    )


@pytest.mark.parametrize("large", [True, False])
def test_declared_sizes_and_empty_tables_of_images(
    monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    monkeypatch.setattr(imaging, "LARGE", 0 if large else 10**9)
    drawn = []
    monkeypatch.setattr(
        imaging, "normals", lambda count, stream: drawn.append(count) or np.zeros(count, np.float32)
    )
    local = Local(epochs=2, batch=4, clip=1.0, noise_multiplier=1.0, rate=0.1)
    for counts in ([], [1], [2, 1], [1] * 30):
        drawn.clear()
        data = images(counts)
        data = Patients(data.x, data.y, data.starts, declared=12)
        new = imaging.train_images(NETWORK, START, data, local, seeded_key(1))
        assert len(drawn) == event(local, 12).count == 6
        assert np.isfinite(new).all()
        if not counts:
            np.testing.assert_array_equal(new, START)
    np.testing.assert_array_equal(
        imaging.train_images(NETWORK, START, images([]), Local(), seeded_key(1)), START
    )


@pytest.mark.parametrize("large", [True, False])
@pytest.mark.parametrize("code", [-1, 2, 2**31 - 1])
def test_an_image_whose_outcome_is_outside_the_classes_counts_for_nothing(
    monkeypatch: pytest.MonkeyPatch, large: bool, code: int
) -> None:
    monkeypatch.setattr(imaging, "LARGE", 0 if large else 10**9)
    data = images([1] * 6)
    y = data.y.copy()
    y[3] = code
    broken = clipped(Patients(data.x, y, data.starts), np.arange(6), 0.5)
    np.testing.assert_allclose(broken, clipped(data, np.array([0, 1, 2, 4, 5]), 0.5), atol=1e-6)
