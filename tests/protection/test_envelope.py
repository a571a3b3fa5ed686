"""The envelope carries arrays exactly and refuses anything malformed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from suture.errors import RunError
from suture.protection.envelope import seal, unseal

ARRAYS = hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.int32, np.int64, np.uint8]), hnp.array_shapes(min_dims=0, min_side=0)
)


@given(st.dictionaries(st.text(max_size=8), ARRAYS, max_size=4))
def test_what_is_sealed_is_what_is_opened(payload):
    opened = unseal(seal(payload))
    assert set(opened) == set(payload)
    for name, array in payload.items():
        assert opened[name].dtype == array.dtype
        assert opened[name].tobytes() == array.tobytes()
        assert opened[name].shape == array.shape


def test_size_is_the_arrays_and_a_small_header():
    assert len(seal({"delta": np.zeros(2561, np.float32)})) == 4 * 2561 + 8 + len('[["delta","<f4",[2561]]]')


@given(st.binary(max_size=60))
def test_foreign_bytes_are_refused(data):
    with pytest.raises(RunError, match="could not be opened"):
        unseal(data)


@pytest.mark.parametrize("cut", [1, 4, 11, 40])
def test_a_cut_envelope_is_refused(cut):
    sealed = seal({"delta": np.ones(5, np.float32)})
    with pytest.raises(RunError, match="could not be opened"):
        unseal(sealed[:-cut])


def test_objects_cannot_be_sealed():
    with pytest.raises(RunError, match="does not carry"):
        seal({"delta": np.array([{}], dtype=object)})
