"""The unit of privacy: patients, their rows, their group."""

from __future__ import annotations

import numpy as np
import pytest

from suture.attacks.audit import with_patient
from suture.privacy.unit import Patients, concatenate


def table(group: list[int] | None = None) -> Patients:
    return Patients(np.arange(6).reshape(3, 2), np.array([0, 1, 1]), np.array([0, 1, 3]), group)  # type: ignore[arg-type]


def test_a_group_is_one_number_a_patient_and_part_of_the_fingerprint() -> None:
    plain, zero, one = table(), table([0, 0]), table([0, 1])
    assert one.group is not None
    assert one.group.dtype == np.int32
    assert len({plain.fingerprint(), zero.fingerprint(), one.fingerprint()}) == 3
    with pytest.raises(ValueError, match="one group per patient"):
        table([0, 1, 1])
    with pytest.raises(ValueError, match="-1 or more"):
        table([0, -2])


def test_unions_keep_groups_where_every_part_has_them() -> None:
    both = concatenate([table([0, 1]), table([1, -1])])
    assert both.group is not None
    assert both.group.tolist() == [0, 1, 1, -1]
    assert both.starts.tolist() == [0, 1, 3, 4, 6]
    assert concatenate([table([0, 1]), table()]).group is None


def test_a_canary_has_a_group_where_patients_have() -> None:
    more = with_patient(table([0, 1]), np.ones((2, 2), np.float32), np.ones(2, np.int32), group=1)
    assert more.group is not None
    assert more.group.tolist() == [0, 1, 1]
    assert with_patient(table(), np.ones((1, 2), np.float32), np.ones(1, np.int32)).group is None


def test_a_declared_size_is_not_the_count_and_is_part_of_the_fingerprint() -> None:
    arrays = np.zeros((3, 2), np.float32), np.array([0, 1, 1]), np.array([0, 1, 3])
    counted, declared, other = (
        Patients(*arrays),
        Patients(*arrays, declared=64),
        Patients(*arrays, declared=65),
    )
    assert (counted.patients, counted.size, counted.declared) == (2, 2, None)
    assert (declared.patients, declared.size) == (2, 64)
    assert len({counted.fingerprint(), declared.fingerprint(), other.fingerprint()}) == 3
    with pytest.raises(ValueError, match="at least 1"):
        Patients(*arrays, declared=0)


def test_a_table_may_be_empty() -> None:
    nobody = Patients(
        np.zeros((0, 2), np.float32), np.zeros(0), np.zeros(1), np.zeros(0), declared=64
    )
    assert (nobody.patients, nobody.rows, nobody.features, nobody.size) == (0, 0, 2, 64)
    assert len(nobody.fingerprint()) == 32


def test_unions_add_up_declared_sizes() -> None:
    part = table()
    large = Patients(part.x, part.y, part.starts, declared=100)
    assert concatenate([part, part]).declared is None
    assert concatenate([large, large]).size == 200
    assert concatenate([large, part]).size == 102  # whoever declares nothing is counted
