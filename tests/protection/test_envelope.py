"""The envelope carries arrays exactly and refuses anything malformed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from suture.errors import RunError
from suture.protection.envelope import seal, unseal

ARRAYS = hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.int32, np.int64, np.uint8]),
    hnp.array_shapes(min_dims=0, min_side=0),
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
    # magic 2, count 1, length of the name 1, name 5, dtype and dimensions 1, 2561 as a varint 2
    assert len(seal({"delta": np.zeros(2561, np.float32)})) == 4 * 2561 + 12
    assert seal({"w": np.array([[7, 8, 9]], np.uint8)}) == bytes(
        [83, 50, 1, 1, 119, 0x42, 1, 3, 7, 8, 9]
    )


@given(st.binary(max_size=60).filter(lambda data: not data.startswith(b"S2")))
def test_foreign_bytes_are_refused(data):
    with pytest.raises(RunError, match="could not be opened"):
        unseal(data)


@given(
    st.dictionaries(st.text(max_size=3), ARRAYS, max_size=3),
    st.integers(2, 40),
    st.integers(0, 255),
)
def test_what_opens_is_what_would_have_been_sealed(payload, at, byte):
    """An envelope with one byte changed is refused, or is exactly that of what it opens to: there
    is one for a payload."""
    forged = bytearray(seal(payload))
    forged[at % len(forged)] = byte
    try:
        opened = unseal(bytes(forged))
    except RunError:
        return
    assert seal(opened) == bytes(forged)


@pytest.mark.parametrize(
    "header",
    [
        b"\x01\x01w\x41\x83\x00abc",  # 3 written in two bytes
        b"\x01\x01w\x71\x03abc",  # no such dtype
        b"\x01\x01w\x41" + b"\xff" * 12 + b"\x01",  # a number that never ends
        b"\x02\x01w\x41\x01\x01w\x41\x01ab",  # one name twice
        b"\x02\x01w\x41\x01\x01v\x41\x01ab",  # names out of order
        b"\x01\x01\xff\x41\x01a",  # a name that is no text
        b"\x7f",  # more arrays than there are
    ],
)
def test_a_forged_header_is_refused(header):
    with pytest.raises(RunError, match="could not be opened"):
        unseal(b"S2" + header)


@pytest.mark.parametrize("cut", [1, 4, 11, 29])
def test_a_cut_envelope_is_refused(cut):
    sealed = seal({"delta": np.ones(5, np.float32)})
    with pytest.raises(RunError, match="could not be opened"):
        unseal(sealed[:-cut])


def test_objects_cannot_be_sealed():
    with pytest.raises(RunError, match="has type object"):
        seal({"delta": np.array([{}], dtype=object)})
