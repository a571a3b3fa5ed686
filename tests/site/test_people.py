"""People of several hospitals: each takes part at one, and one person more changes nobody else."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from suture.site.people import attended, joint_secret, kept_elsewhere
from suture.site.reading import NOBODY, among, hashed

SITES = ("boston", "lyon", "nice")
SECRET = joint_secret({site: site.encode() * 4 for site in SITES})
ATTENDING = st.dictionaries(
    st.text(st.characters(codec="ascii"), min_size=1, max_size=6),
    st.sets(st.sampled_from(SITES), min_size=1),
    max_size=12,
)


def tables(people):
    found = {site: [who for who, at in people.items() if site in at] for site in SITES}
    return {site: hashed(who, "k") if who else NOBODY for site, who in found.items()}


def places(people):
    """Where each person takes part."""
    keys = tables(people)
    away = kept_elsewhere(keys, SECRET)
    found = {who: set() for who in people}
    for who, at in people.items():
        for site in at:
            if not among(hashed([who], "k"), away[site])[0]:
                found[who].add(site)
    return found


@settings(max_examples=60, deadline=None)
@given(people=ATTENDING)
def test_each_person_takes_part_at_one_of_their_hospitals(people):
    for who, kept in places(people).items():
        assert len(kept) == 1
        assert kept <= people[who]
    several = sum(len(at) > 1 for at in people.values())
    assert int((attended(tables(people)).x >= 2).sum()) == several


@settings(max_examples=40, deadline=None)
@given(people=ATTENDING, at=st.sets(st.sampled_from(SITES), min_size=1))
def test_one_person_more_moves_nobody_else_and_the_count_by_one_at_most(people, at):
    without = {who: where for who, where in people.items() if who != "new one"}
    joined = {**without, "new one": at}
    before, after = places(without), places(joined)
    assert {who: after[who] for who in without} == before
    counts = [int((attended(tables(some)).x >= 2).sum()) for some in (without, joined)]
    assert counts[1] - counts[0] == (len(at) > 1)


def test_the_choice_is_spread_over_the_hospitals():
    people = {f"p{i}": set(SITES) for i in range(3000)}
    kept = np.array([next(iter(one)) for one in places(people).values()])
    # 3,000 people over 3 hospitals: 1,000 each, give or take 6 deviations of 26
    assert all(abs(np.count_nonzero(kept == site) - 1000) < 155 for site in SITES)
