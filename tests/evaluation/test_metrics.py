"""Binary and multi-class metrics against scikit-learn, hand-computed cases, and the stated
speed."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from suture.evaluation.metrics import LIGHT, NAMES, binary, light, multiclass, roc_curve

# Few distinct values give many ties; the extremes meet the clipping of the loss and the closed last
# bin.
tied = st.sampled_from([0.0, 1e-20, 1e-10, 0.05, 0.1, 0.25, 0.3, 0.5, 0.7, 0.9, 1.0 - 1e-12, 1.0])
free = st.floats(0.0, 1.0, allow_subnormal=True)
rows = st.lists(st.tuples(st.booleans(), st.one_of(tied, free)), min_size=1, max_size=60)


def reference(y: np.ndarray, p: np.ndarray, threshold: float) -> dict[str, float | None]:
    hat = p >= threshold
    found = {
        "accuracy": sk.accuracy_score(y, hat),
        "precision": sk.precision_score(y, hat, zero_division=0.0),
        "recall": sk.recall_score(y, hat) if y.any() else None,
        "f1": sk.f1_score(y, hat, zero_division=0.0) if y.any() else None,
        "specificity": sk.recall_score(y, hat, pos_label=0) if not y.all() else None,
        "auc": None,
        "auprc": None,
        "recall_at_90_specificity": None,
        "brier": np.mean((p - y) ** 2),
        "loss": sk.log_loss(y, p, labels=[0, 1]),
    }
    if y.any() and not y.all():
        fpr, tpr, _ = sk.roc_curve(y, p, drop_intermediate=False)
        found["auc"] = sk.roc_auc_score(y, p)
        found["auprc"] = sk.average_precision_score(y, p)
        found["recall_at_90_specificity"] = tpr[fpr <= 0.1].max()
    bins = np.array([sum(v >= e / 10 for e in range(1, 10)) for v in p])
    found["ece"] = sum(abs((p - y)[bins == b].sum()) for b in range(10)) / len(y)
    return found


def same(found: dict[str, float | None], expected: dict[str, float | None]) -> None:
    for name, value in expected.items():
        if value is None:
            assert found[name] is None, name
        else:
            assert found[name] == pytest.approx(value, abs=1e-10), name


@settings(max_examples=300, deadline=None)
@given(rows, st.sampled_from([0.1, 0.3, 0.5, 0.9]))
def test_equal_to_scikit_learn_with_ties(data: list[tuple[bool, float]], threshold: float) -> None:
    y, p = np.array([a for a, _ in data], dtype=np.int32), np.array([b for _, b in data])
    expected = reference(y, p, threshold)
    found = binary(y, p, threshold)
    assert tuple(found) == NAMES
    same(found, expected)
    quick = light(y, p, threshold)
    assert tuple(quick) == LIGHT
    assert quick == {name: found[name] for name in LIGHT}


def test_equal_to_scikit_learn_on_many_rows() -> None:
    rng = np.random.default_rng(1)
    for decimals in (1, 3, 17):
        y = (rng.random(20_000) < 0.17).astype(np.int32)
        p = np.round(np.clip(rng.normal(0.3 + 0.2 * y, 0.2), 0, 1), decimals)
        same(binary(y, p), reference(y, p, 0.5))


@pytest.mark.parametrize("kind", [bool, np.int8, np.int32, np.int64, np.float32, np.float64])
def test_label_and_prediction_types_do_not_matter(kind: type) -> None:
    y, p = np.array([0, 1, 0, 1]), np.array([0.25, 0.5, 0.75, 0.875])
    assert binary(y.astype(kind), p.astype(np.float32)) == binary(y, p)


def test_hand_computed() -> None:
    # Two of three positives found at 0.5, one of two negatives wrongly flagged.
    found = binary([1, 1, 1, 0, 0], [0.9, 0.6, 0.2, 0.8, 0.1])
    assert found["accuracy"] == 3 / 5
    assert found["precision"] == 2 / 3
    assert found["recall"] == 2 / 3
    assert found["f1"] == 2 / 3
    assert found["specificity"] == 1 / 2
    assert found["auc"] == 4 / 6
    assert found["auprc"] == pytest.approx((1 + 2 / 3 + 3 / 4) / 3)
    assert found["recall_at_90_specificity"] == 1 / 3
    assert found["brier"] == pytest.approx((0.01 + 0.16 + 0.64 + 0.64 + 0.01) / 5)
    assert found["ece"] == pytest.approx((0.1 + 0.4 + 0.8 + 0.8 + 0.1) / 5)


def test_undefined_is_none_and_json() -> None:
    negatives = binary([0, 0], [0.1, 0.7])
    assert {k for k, v in negatives.items() if v is None} == {
        "recall", "f1", "auc", "auprc", "recall_at_90_specificity"
    }  # fmt: skip
    positives = binary([1, 1], [0.1, 0.7])
    assert {k for k, v in positives.items() if v is None} == {
        "specificity",
        "auc",
        "auprc",
        "recall_at_90_specificity",
    }
    silent = binary([0, 1], [0.1, 0.2])
    assert silent["precision"] == 0.0
    assert silent["f1"] == 0.0
    assert set(binary([], []).values()) == {None}
    assert set(binary([0, 1], [0.5, np.nan]).values()) == {None}
    assert set(light([0, 1], [-np.nan, 0.5]).values()) == {None}
    json.dumps(negatives, allow_nan=False)


def test_refuses_what_is_not_a_probability_or_a_label() -> None:
    with pytest.raises(ValueError, match="logits"):
        binary([0, 1], [-1.5, 2.0])
    with pytest.raises(ValueError, match="labels 0 and 1"):
        binary([1, 2], [0.1, 0.2])
    with pytest.raises(ValueError, match="labels 0 and 1"):
        binary([0.5, 1.0], [0.1, 0.2])
    with pytest.raises(ValueError, match="one prediction per label"):
        binary([0, 1, 1], [0.1, 0.2])


def test_roc_curve_points_are_true_points() -> None:
    rng = np.random.default_rng(3)
    y = (rng.random(5000) < 0.2).astype(np.int32)
    p = np.clip(rng.normal(0.3 + 0.2 * y, 0.2), 0, 1)
    curve = roc_curve(y, p, points=200)
    fpr, tpr, _ = sk.roc_curve(y, p, drop_intermediate=False)
    truth = {(round(a, 12), round(b, 12)) for a, b in zip(fpr, tpr, strict=True)}
    ours = [(round(a, 12), round(b, 12)) for a, b in zip(curve["fpr"], curve["tpr"], strict=True)]
    assert set(ours) <= truth
    assert len(ours) <= 200
    assert ours[0] == (0.0, 0.0)
    assert ours[-1] == (1.0, 1.0)
    assert abs(np.trapezoid(curve["tpr"], curve["fpr"]) - sk.roc_auc_score(y, p)) < 2e-4
    assert roc_curve([1, 1], [0.2, 0.3]) == {"fpr": [], "tpr": []}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(3, 6), st.sampled_from([1, 2, 12]))
def test_multiclass_equals_scikit_learn(seed: int, classes: int, decimals: int) -> None:
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.concatenate([np.arange(classes), rng.integers(0, classes, 80)]))
    table = np.round(rng.random((len(y), classes)) + 0.6 * np.eye(classes)[y], decimals) + 0.01
    table /= table.sum(axis=1, keepdims=True)
    found = multiclass(y, table)
    top = table.argmax(axis=1)
    assert found["accuracy"] == pytest.approx(sk.accuracy_score(y, top), abs=1e-12)
    assert found["f1_weighted"] == pytest.approx(sk.f1_score(y, top, average="weighted"), abs=1e-12)
    assert found["f1_macro"] == pytest.approx(sk.f1_score(y, top, average="macro"), abs=1e-12)
    assert found["auc_ovo"] == pytest.approx(
        sk.roc_auc_score(y, table, multi_class="ovo"), abs=1e-10
    )
    assert found["loss"] == pytest.approx(sk.log_loss(y, table), abs=1e-10)


def test_multiclass_undefined_and_refused() -> None:
    one = multiclass([1, 1], [[0.2, 0.8], [0.6, 0.4]])
    assert one["auc_ovo"] is None
    assert one["accuracy"] == 0.5
    with pytest.raises(ValueError, match="adding up to 1"):
        multiclass([0], [[2.0, 1.0]])
    with pytest.raises(ValueError, match="labels from 0 to 1"):
        multiclass([2], [[0.5, 0.5]])


def test_safe_in_threads() -> None:
    rng = np.random.default_rng(4)
    y = (rng.random(6000) < 0.17).astype(np.int32)
    p = rng.random(6000).astype(np.float32)
    expected = binary(y, p)
    with ThreadPoolExecutor(4) as pool:
        assert all(found == expected for found in pool.map(lambda _: binary(y, p), range(64)))
