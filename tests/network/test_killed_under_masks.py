"""A site that is killed again and again in the middle of masked sums, with real processes: spare
rounds make it good."""

import pytest

pytest.importorskip("flwr", reason="pip install 'suture[flower]'")
from support.rig import ROUNDS, SITES, Nursery, Rig, the_study, the_tables

FIRST = SITES[0]


@pytest.mark.slow
def test_three_kills_between_mask_and_unmask_and_every_round_is_done(tmp_path):
    study = the_study().replace(protection={"sum": "masked"})
    the_tables(tmp_path / "tables")
    nursery = Nursery(tmp_path / "nursery.log")
    try:
        with Rig(tmp_path / "rig", tmp_path / "tables", nursery) as rig:
            rig.introduce()
            for name in SITES:
                rig.enrol(name)
                rig.start_site(
                    name,
                    accepts=[study.digest],
                    **({"where": "masked", "round_": 1} if name == FIRST else {}),
                )
            run = rig.run(study)
            for kill, again in enumerate(
                (2, 2, None), 1
            ):  # in round 1, in round 2, and in the sum that made that one good
                rig.reached(FIRST)
                rig.kill(FIRST)
                assert rig.charged(FIRST) == (1, 3, 4)[kill - 1]
                rig.start_site(
                    FIRST,
                    accepts=[study.digest],
                    **({"where": "masked", "round_": again} if again else {}),
                )
            found = run.end(120.0).data
            told = found["methods"]["fedadam"]
            charges = {name: rig.rounds_charged(name) for name in SITES}
    finally:
        nursery.close()
    print("rounds_done", told["rounds_done"], "of", ROUNDS, "protection", told["protection"])
    print("charges", charges, "epsilon", found["privacy"]["sites"])
    assert told["rounds_done"] == ROUNDS
    assert told["protection"]["spare"] == 3
    assert charges == {name: [1, 1, 2, 2, 2, 3] for name in SITES}  # three rounds and three spares
    assert max(found["privacy"]["sites"].values()) <= 8.0
