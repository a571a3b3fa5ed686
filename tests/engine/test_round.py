"""Who takes part is public, deterministic and known before training."""

from hypothesis import given
from hypothesis import strategies as st

from suture.engine.plan import participants, rounds_of


@given(st.integers(1, 40), st.integers(1, 50), st.floats(0.01, 1.0), st.integers(0, 2**31))
def test_participants_are_a_fixed_number_in_the_study_s_order(sites, round_, fraction, seed):
    names = [f"s{i}" for i in range(sites)]
    chosen = participants(names, round_, fraction, seed)
    assert len(chosen) == (sites if fraction >= 1 else max(1, round(fraction * sites)))
    assert chosen == sorted(chosen, key=names.index)
    assert chosen == participants(names, round_, fraction, seed)


def test_rounds_of_counts_the_schedule():
    names = ["a", "b", "c"]
    counts = rounds_of(names, 30, 0.34, 5)
    assert sum(counts.values()) == 30
    for site in names:
        assert counts[site] == sum(site in participants(names, r, 0.34, 5) for r in range(1, 31))
    assert rounds_of(names, 30, 1.0, 5) == {"a": 30, "b": 30, "c": 30}
