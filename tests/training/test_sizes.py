"""Declared sizes: two tables with one patient more or less run the same mechanism, and an empty
table trains."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from support.batches import train_affine_on_batches, train_on_batches

from suture.models.dense import Dense
from suture.privacy.noise.source import Keystream, seeded_key
from suture.privacy.unit import Patients
from suture.training import affine as with_layers
from suture.training import dpsgd, pairs
from suture.training import local as training
from suture.training.affine import Layers, train_affine
from suture.training.contrastive import train_contrastive
from suture.training.contributions import row_gradients
from suture.training.local import Local, event, sampling_rate, steps, weights_of
from suture.training.mechanism import train

NETWORK = Dense((3, 4, 1))
START = NETWORK.init(np.random.default_rng(0))
LOCAL = Local(epochs=2, batch=8, rate=0.1, clip=1.0, noise_multiplier=1.0)
COUNTS = [0, 1, 63, 64, 65, 640]


def patients(count: int, declared: int | None = 64, rows: int = 1) -> Patients:
    rng = np.random.default_rng(count)
    x = rng.standard_normal((count * rows, 3)).astype(np.float32)
    return Patients(
        x, rng.integers(0, 2, count * rows), np.arange(0, count * rows + 1, rows), declared=declared
    )


class Spy:
    """Every word that noise is made of, and every step that is taken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.words: list[bytes] = []
        self.steps = 0
        fill = Keystream.fill

        def seen(stream: Keystream, out: np.ndarray) -> None:
            fill(stream, out)
            if out.dtype == np.uint32:
                self.words.append(out.tobytes())

        monkeypatch.setattr(Keystream, "fill", seen)
        for module, name, at in ((dpsgd, "run", 4), (with_layers, "run", 5)):
            kernel = module.__dict__[name]

            def counted(*arguments, kernel=kernel, at=at):
                self.steps += len(arguments[at])
                kernel(*arguments)

            monkeypatch.setattr(module, name, counted)


def plain(data: Patients, local: Local) -> None:
    train(NETWORK, START, data, local, seeded_key(1))


def dropout(data: Patients, local: Local) -> None:
    train(NETWORK, START, data, replace(local, dropout=0.3), seeded_key(1))


def affine(data: Patients, local: Local) -> None:
    layers = Layers("scalar", "scalar", spread=0.5)
    train_affine(NETWORK, START, layers, layers.identity(3, 1), data, local, seeded_key(1))


def mixed(data: Patients, local: Local) -> None:
    pairs.train_mixed(NETWORK, START, START, 0.5, True, data, local, seeded_key(1))


def tied(data: Patients, local: Local) -> None:
    pairs.train_tied(NETWORK, START, START, 0.1, data, local, seeded_key(1))


@pytest.mark.parametrize("kind", [plain, dropout, affine, mixed, tied])
@pytest.mark.parametrize("local", [LOCAL, replace(LOCAL, batch=200), replace(LOCAL, most_steps=3)])
def test_steps_and_noise_follow_the_declared_size_alone(kind, local, monkeypatch):
    found = set()
    for count in COUNTS:
        with monkeypatch.context() as patch:
            spy = Spy(patch)
            kind(patients(count), local)
            found.add((spy.steps, b"".join(spy.words)))
    assert len(found) == 1
    (taken, words), *_ = found
    assert taken == steps(64, local) * (2 if kind in (mixed, tied) else 1)
    assert words


def test_the_divisor_is_the_declared_batch():
    """A step on one patient of gradient (-1/2, -1/2) at rate 1, whatever the count."""
    for count, declared, divisor in (
        (1, 4, 4),
        (10, 4, 4),
        (10, 100, 8),
        (10, None, 8),
        (3, None, 3),
    ):
        data = Patients(
            np.ones((count, 1)), np.ones(count), np.arange(count + 1), declared=declared
        )
        local = Local(rate=1.0, clip=10.0, batch=8)
        for moved in (
            train_on_batches(Dense((1, 1)), np.zeros(2, np.float32), data, local, [np.array([0])]),
            train_affine_on_batches(
                Dense((1, 1)), np.zeros(2, np.float32), Layers("none"), np.zeros(0, np.float32), data, local,
                [np.array([0])],
            )[0],
        ):  # fmt: skip
            np.testing.assert_allclose(moved, 0.5 / divisor, rtol=1e-6)


def test_the_prior_of_layers_weighs_against_the_declared_size():
    """`test_affine`'s step by hand: pull = 1 / (spread^2 size) = 1, whatever the count."""
    for count in (1, 2, 8):
        data = Patients(np.ones((count, 1)), np.ones(count), np.arange(count + 1), declared=4)
        layers, start = Layers(spread=0.5), np.array([1.0, 0.0], np.float32)
        _, own = train_affine_on_batches(
            Dense((1, 1)),
            start,
            layers,
            layers.identity(1, 1),
            data,
            Local(rate=1.0),
            [np.arange(count)],
        )
        np.testing.assert_allclose(own, [0.268941 / 2, 1 + 0.268941 / 2], atol=1e-5)


def test_a_patient_is_drawn_at_the_declared_rate():
    local = replace(LOCAL, epochs=400)
    for count, rate in ((1, 0.125), (640, 0.125)):
        taken = [p for p, _ in training.batches(patients(count), local, seeded_key(5), 64)]
        drawn = sum(map(len, taken)) / (steps(64, local) * count)
        assert abs(drawn - rate) < 5 * np.sqrt(rate * (1 - rate) / (steps(64, local) * count))


@pytest.mark.parametrize("declared", [None, 64])
@pytest.mark.parametrize("local", [LOCAL, Local(epochs=2, batch=8, momentum=0.5)])
def test_an_empty_table_trains_everywhere(declared, local):
    nobody = patients(0, declared)
    for kind in (plain, dropout, affine, mixed, tied):
        kind(nobody, local)
    assert np.isfinite(
        train_contrastive(NETWORK, START, START, nobody, Local(), 1.0, 0.5, seeded_key(1))
    ).all()
    assert row_gradients(NETWORK, START, nobody, local).shape == (
        0,
        NETWORK.n_params,
    )
    assert steps(0, local) == 0
    assert sampling_rate(0, 8) == 1.0
    for named in ("balanced", "inverse"):
        assert weights_of(Local(class_weights=named), nobody.y, 2) == (0.0, 0.0)


def test_without_privacy_an_empty_table_changes_nothing():
    np.testing.assert_array_equal(train(NETWORK, START, patients(0), Local(), seeded_key(1)), START)


@pytest.mark.parametrize("sizes", [(3, 4, 1), (3, 16), (3, 5, 3)])
@pytest.mark.parametrize("code", [-1, 2**31 - 1, -(2**31), 99])
def test_an_outcome_outside_the_classes_counts_for_nothing(sizes, code):
    """No error says so; the row adds zero, and the patient's other rows count as ever."""
    rng = np.random.default_rng(1)
    network = Dense(sizes)
    start, x = network.init(rng), rng.standard_normal((70, 3)).astype(np.float32)
    y = np.zeros(70, np.int32)
    for several in (False, True):
        starts = np.array([0, 1, 3, 30, 70]) if several else np.arange(71)
        bad = np.zeros(70, bool)
        bad[[2, 40] if several else [2, 69]] = True
        broken = Patients(x, np.where(bad, code, y), starts, declared=64)
        counts = [int(np.sum(~bad[a:b])) for a, b in pairwise(starts)]
        rest = Patients(x[~bad], y[~bad], np.cumsum([0] + [c for c in counts if c]), declared=64)
        local = Local(
            rate=0.5, clip=0.7, batch=8, class_weights=tuple(np.linspace(1, 2, network.classes))
        )
        everyone = [np.arange(t.patients) for t in (broken, rest)]
        one, two = (
            train_on_batches(network, start, t, local, [e], push=np.ones(t.rows, np.float32))
            for t, e in zip((broken, rest), everyone, strict=True)
        )
        np.testing.assert_allclose(one, two, atol=2e-6)
        empty = np.zeros(0, np.float32)
        one, two = (
            train_affine_on_batches(network, start, Layers("none"), empty, t, local, [e])[0]
            for t, e in zip((broken, rest), everyone, strict=True)
        )
        np.testing.assert_allclose(one, two, atol=2e-6)
        gradients = [row_gradients(network, start, t, local).sum(axis=0) for t in (broken, rest)]
        np.testing.assert_allclose(*gradients, atol=1e-9)
        for table in (broken, rest):
            train(network, start, table, LOCAL, seeded_key(1))
            if len(sizes) > 2:
                train_contrastive(network, start, start, table, Local(), 1.0, 0.5, seeded_key(1))
        for named in ("balanced", "inverse"):
            weights = weights_of(Local(class_weights=named), broken.y, network.classes)
            assert len(weights) == network.classes


def test_the_event_of_a_size_is_that_of_what_runs():
    assert event(LOCAL, 64).count == steps(64, LOCAL) == 16
    assert event(LOCAL, 64).event.sampling_probability == 0.125
    assert training.words_for(NETWORK.n_params) == 48


@pytest.mark.parametrize("most", [1, 3, 8, 11])
def test_a_training_that_ends_early_takes_no_patient_beyond_its_last_batch(most):
    """Whoever splits the picks at the ends used to get the rest of the table as a last batch."""
    local = Local(epochs=2, batch=8, most_steps=most)
    sizes = [
        len(batch)
        for picks, ends in training.batches(patients(64), local, seeded_key(1), 64)
        for batch in np.split(picks, ends[:-1])
    ]
    assert sizes == [8] * most
