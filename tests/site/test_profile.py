"""Profiles: sums by hand, one patient's reach, noise, and standardising at the site."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from suture.privacy.door import Session
from suture.privacy.noise.source import seeded_key
from suture.protection.secure_sum import Grid, Share
from suture.schema.table import Category, Flag, Number, Schema
from suture.site.cohort import load
from suture.site.preprocess import MISSING
from suture.site.profile import Profile, contributions, from_sums, sensitivity, table, take, width

SCHEMA = Schema(
    features={"age": Number(low=0, high=100), "smoker": Flag(), "sex": Category(values=("F", "M"))},
    patient="id",
)


def vector(profile):
    numbers = profile.squares[:1]
    return np.concatenate(
        [part.ravel() for part in (profile.patients, profile.recorded, profile.total, numbers)]
    )


@settings(max_examples=60, deadline=None)
@given(
    ages=st.lists(st.floats(-1e6, 1e6) | st.just(float("nan")), min_size=1, max_size=5),
    seed=st.integers(0, 1000),
)
def test_one_patient_moves_the_sums_by_at_most_the_sensitivity(ages, seed):
    rng = np.random.default_rng(seed)
    count = len(ages)
    columns = {
        "age": np.array(ages),
        "smoker": rng.choice([MISSING, 0, 1], count).astype(np.int16),
        "sex": rng.choice([MISSING, 0, 1], count).astype(np.int16),
    }
    y = rng.integers(0, 2, count).astype(np.int32)
    found = take(columns, y, np.array([0, count]), SCHEMA, 2, clip=True)
    assert np.linalg.norm(vector(found)) <= sensitivity(SCHEMA) * (1 + 1e-12)
    assert sensitivity(SCHEMA) == np.sqrt(1 + 3 + 2 + 2)


def test_sums_by_hand_and_back_from_json():
    columns = {
        "age": np.array([50.0, 150.0, np.nan, 100.0]),
        "smoker": np.array([1, MISSING, 0, 1], np.int16),
        "sex": np.array([0, 1, MISSING, 1], np.int16),
    }
    found = take(columns, np.array([0, 1, 1, 1]), np.array([0, 1, 2, 4]), SCHEMA, 2, clip=False)
    assert found.patients.tolist() == [1, 2]
    assert found.recorded.tolist() == [[1, 1.5], [1, 1], [1, 1.5]]
    assert found.total.tolist() == [[0, 2.5], [1, 0.5], [1, 0], [0, 1.5]]
    assert found.squares[0].tolist() == [0, 4.5]
    assert found.outside[0].tolist() == [0, 1]
    again = Profile.from_dict(found.to_dict())
    assert again.total.tolist() == found.total.tolist()


def released(columns, y, starts, schema, noise):
    rows = table(columns, y, starts, schema)
    share = Share(
        Grid(sensitivity(schema), None if noise is None else 1 / (2 * noise**2), width(schema, 2))
    )
    session = Session(rows, share.event, seeded_key(1), round_=1, site="a", noise=noise)
    sealed = session.release("sums", share, lambda block: contributions(block, schema, 2))
    return from_sums(share.grid.open(sealed.value), schema, 2, share.grid.noise)


def test_sums_through_the_door_are_the_exact_profile_but_for_the_grid():
    rng = np.random.default_rng(4)
    columns = {
        "age": rng.normal(50, 80, 30),
        "smoker": rng.choice([MISSING, 0, 1], 30).astype(np.int16),
        "sex": rng.choice([MISSING, 0, 1], 30).astype(np.int16),
    }
    columns["age"][:4] = np.nan
    y, starts = rng.integers(0, 2, 30).astype(np.int32), np.array([0, 1, 4, 9, 30])
    exact, found = (
        take(columns, y, starts, SCHEMA, 2, clip=True),
        released(columns, y, starts, SCHEMA, None),
    )
    step = sensitivity(SCHEMA) / 1024
    np.testing.assert_allclose(vector(found), vector(exact), atol=step)
    assert found.squares[1:].tolist() == found.total[1:].tolist()


def test_noise_is_as_large_as_stated():
    schema = Schema(features={f"n{i}": Number(low=0, high=1) for i in range(400)})
    columns = {f"n{i}": np.full(5, 0.5) for i in range(400)}
    exact = take(columns, np.zeros(5, np.int32), np.arange(6), schema, 2, clip=True)
    noisy = released(columns, np.zeros(5, np.int32), np.arange(6), schema, 2.0)
    drawn = np.concatenate(
        [(noisy.total - exact.total).ravel(), (noisy.squares - exact.squares).ravel()]
    )
    # 1,600 draws: their deviation is within 8 % of the stated one but for 1 case in 200,000
    assert abs(drawn.std() / (2.0 * sensitivity(schema)) - 1) < 0.08
    assert abs(noisy.noise / (2.0 * sensitivity(schema)) - 1) < 0.001
    assert np.isnan(noisy.outside).all()


def test_a_site_standardises_by_its_training_rows_and_fills_with_the_mean():
    rng = np.random.default_rng(1)
    rows = {"id": np.arange(200), "age": rng.normal(50, 10, 200), "ill": rng.integers(0, 2, 200)}
    rows["age"][:20] = np.nan
    schema = Schema(patient="id", features={"age": Number(low=0, high=100)})
    data = load(rows, schema, "ill", site="a", holdout=0.3, split_key="k", scaling="site")
    age, missing = data.train.x.T
    assert abs(age[missing == 0].mean()) < 1e-6
    assert abs(age[missing == 0].std() - 1) < 1e-5
    assert np.all(age[missing == 1] == 0)
    unmarked = Schema(patient="id", missing="fill", features={"age": Number(low=0, high=100)})
    filled = load(rows, unmarked, "ill", site="a", holdout=0.3, split_key="k", scaling="site")
    np.testing.assert_array_equal(filled.train.x[:, 0], age)
    assert filled.train.features == 1
    assert filled.scales == data.scales
    plain = load(rows, schema, "ill", site="a", holdout=0.3, split_key="k")
    mean, spread = data.scales[0]
    there = plain.test.x[:, 1] == 0
    np.testing.assert_allclose(
        data.test.x[there, 0], (plain.test.x[there, 0] - mean) / spread, atol=1e-5
    )
