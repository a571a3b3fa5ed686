"""A round's message holds exactly what the method declares: type, shape, range and order, each
checked."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from suture.errors import Reason, Refused
from suture.schema.message import LARGEST, Field, UpTo, check_message

FIELDS = {"params": Field("<f4", (3,), -2.0, 2.0)}
SPARSE = {
    "ids": Field("<i4", (UpTo("concepts", 4),), 0, 9, rising=True),
    "weights": Field("<f4", (UpTo("concepts", 4),), -1.0, 1.0),
}


def refused(message, fields, words):
    with pytest.raises(Refused, match=words) as found:
        check_message(message, fields)
    assert found.value.reason is Reason.MESSAGE


def params(*values):
    return {"params": np.array(values, np.float32)}


def sparse(ids, weights):
    return {"ids": np.array(ids, np.int32), "weights": np.array(weights, np.float32)}


def test_what_is_declared_passes():
    check_message(params(-2, 0, 2), FIELDS)
    check_message({}, {})
    check_message(sparse([], []), SPARSE)
    check_message(sparse([0, 3, 9], [-1, 0, 1]), SPARSE)
    check_message({"t": np.array(3, np.int64)}, {"t": Field("<i8", (), 0, 5)})


def test_nothing_is_missing_and_nothing_is_beside():
    refused({}, FIELDS, "should hold params; found nothing")
    refused(params(0, 0, 0), {}, "should hold nothing; found params")
    refused({**params(0, 0, 0), "more": np.zeros(1)}, FIELDS, "found more, params")
    refused({"Params": params(0, 0, 0)["params"]}, FIELDS, "found Params")


def test_names_that_are_sent_are_shortened():
    with pytest.raises(Refused) as found:
        check_message({f"{i:02}" + "x" * 1000: np.zeros(1) for i in range(100)}, FIELDS)
    assert len(str(found.value)) < 1000


@pytest.mark.parametrize("dtype", ["<f8", "<f2", ">f4", "<i4", "<c8", "|b1", "<U3", "|O"])
def test_the_type_is_exact(dtype):
    refused({"params": np.zeros(3).astype(dtype)}, FIELDS, "should be <f4 with 1 dimensions")


@pytest.mark.parametrize("shape", [(), (2,), (4,), (0,), (3, 1), (1, 3)])
def test_the_shape_is_exact(shape):
    refused({"params": np.zeros(shape, np.float32)}, FIELDS, "wrong length|1 dimensions")


@pytest.mark.parametrize("value", [2.0001, -2.0001, 3e38, np.inf, -np.inf, np.nan, -np.nan])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_the_range_is_kept_by_every_number(value, at):
    message = params(0, 0, 0)
    message["params"][at] = value
    refused(message, FIELDS, "outside -2 to 2")


def test_weights_have_a_largest_size_where_none_is_declared():
    fields = {"params": Field("<f4", (1,))}
    check_message(params(LARGEST), fields)
    check_message(params(-LARGEST), fields)
    refused(params(np.nextafter(np.float32(LARGEST), np.float32(np.inf))), fields, "outside")
    refused(params(np.nan), fields, "outside")


def test_a_length_that_the_sender_chooses_is_bounded_and_one():
    check_message(sparse([1, 2, 3, 4], [0] * 4), SPARSE)
    refused(sparse([1, 2, 3, 4, 5], [0] * 5), SPARSE, "wrong length")
    refused(sparse([1, 2], [0]), SPARSE, "wrong length")
    refused(sparse([], [0]), SPARSE, "wrong length")


@pytest.mark.parametrize("ids", [[1, 1], [2, 1], [0, 5, 5, 9], [0, 1, 0]])
def test_what_must_rise_rises(ids):
    refused(sparse(ids, [0] * len(ids)), SPARSE, "must rise")


@pytest.mark.parametrize("ids", [[-1], [10], [0, 2**31 - 1], [-(2**31), 0]])
def test_whole_numbers_have_a_range_too(ids):
    refused(sparse(ids, [0] * len(ids)), SPARSE, "outside 0 to 9")


def test_small_words_at_the_ends_of_their_type():
    fields = {"centre": Field("|i1", (2,), -127, 127)}
    check_message({"centre": np.array([-127, 127], np.int8)}, fields)
    refused({"centre": np.array([-128, 0], np.int8)}, fields, "outside")


ANY = arrays.arrays(
    st.sampled_from(["<f4", "<f8", "<i4", "|i1"]),
    arrays.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=5),
)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["ids", "weights", "params"]), ANY, max_size=3),
    st.sampled_from([FIELDS, SPARSE]),
)
def test_a_random_message_passes_only_if_it_keeps_every_rule(message, fields):
    def fine():
        if set(message) != set(fields):
            return False
        for name, field in fields.items():
            array = message[name]
            if array.dtype.str != field.dtype or array.ndim != len(field.shape):
                return False
            if not all(field.low <= float(value) <= field.high for value in array.ravel()):
                return False
            if field.rising and array.tolist() != sorted(set(array.tolist())):
                return False
        if fields is SPARSE:
            return message["ids"].shape == message["weights"].shape and len(message["ids"]) <= 4
        return message["params"].shape == (3,)

    if fine():
        check_message(message, fields)
    else:
        with pytest.raises(Refused) as found:
            check_message(message, fields)
        assert found.value.reason is Reason.MESSAGE


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 9), unique=True, max_size=4)
    .map(sorted)
    .flatmap(
        lambda ids: st.tuples(
            st.just(ids), st.lists(st.floats(-1, 1, width=32), min_size=len(ids), max_size=len(ids))
        )
    )
)
def test_every_message_within_the_rules_passes(found):
    check_message(sparse(*found), SPARSE)
