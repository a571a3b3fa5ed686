"""Canonical bytes: they can be read back, so two different values never share them."""

import dataclasses
import hashlib
import struct
from enum import Enum

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from suture.errors import PrivacyError
from suture.privacy.canonical import canonical, digest


@dataclasses.dataclass(frozen=True)
class Pair:
    first: object
    second: object


@dataclasses.dataclass(frozen=True)
class Riap:
    first: object
    second: object


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=4)
    | st.binary(max_size=4)
    | arrays.arrays(
        st.sampled_from(["<f4", "<f8", ">f8", "<i4", ">i2", "|u1", "|b1"]),
        arrays.array_shapes(max_dims=3, max_side=3, min_side=0),
    )
)
KEYS = st.none() | st.booleans() | st.integers(-2, 2) | st.text(max_size=2) | st.binary(max_size=2)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.builds(Pair, inner, inner)
        | st.builds(Riap, inner, inner)
    ),
    max_leaves=8,
)


def plain(value):
    """A value as nested tuples that are equal exactly when the values are the same, bit for bit."""
    if isinstance(value, np.ndarray):
        little = value.astype(value.dtype.newbyteorder("<"))
        return "array", little.dtype.str, value.shape, little.tobytes()
    if isinstance(value, float):
        return "float", struct.pack("<d", value)
    if isinstance(value, list | tuple):
        return "list", tuple(map(plain, value))
    if isinstance(value, dict):
        return "map", frozenset((plain(key), plain(item)) for key, item in value.items())
    if dataclasses.is_dataclass(value):
        fields = tuple(
            (field.name, plain(getattr(value, field.name))) for field in dataclasses.fields(value)
        )
        return "class", type(value).__name__, fields
    return type(value).__name__, value


class Reader:
    """Reads canonical bytes back: what can be read back was not confused with anything else."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        self.at += count
        assert self.at <= len(self.data)
        return self.data[self.at - count : self.at]

    def length(self):
        return int.from_bytes(self.take(8), "little")

    def sized(self):
        return self.take(self.length())

    def value(self):
        kind = self.take(1)
        if kind in b"ntf":
            return plain({b"n": None, b"t": True, b"f": False}[kind])
        if kind == b"s":
            return "str", self.sized().decode(errors="surrogatepass")
        if kind == b"i":
            return "int", int(self.sized())
        if kind == b"d":
            return "float", self.take(8)
        if kind == b"b":
            return "bytes", self.sized()
        if kind == b"a":
            dtype = np.dtype(self.sized().decode())
            shape = tuple(length for _, length in self.value()[1])
            return (
                "array",
                dtype.str,
                shape,
                self.take(int(np.prod(shape, dtype=int)) * dtype.itemsize),
            )
        if kind == b"l":
            return "list", tuple(self.value() for _ in range(self.length()))
        if kind == b"m":
            return "map", frozenset((self.value(), self.value()) for _ in range(self.length()))
        assert kind == b"c"
        name = self.sized().decode()
        return "class", name, tuple((self.value()[1], self.value()) for _ in range(self.length()))


@settings(max_examples=300, deadline=None)
@given(VALUES)
def test_every_value_can_be_read_back(value):
    reader = Reader(canonical(value))
    assert reader.value() == plain(value)
    assert reader.at == len(reader.data)


@settings(max_examples=300, deadline=None)
@given(VALUES, VALUES)
def test_values_share_bytes_only_when_they_are_the_same(one, two):
    assert (canonical(one) == canonical(two)) == (plain(one) == plain(two))
    assert (digest((one, two)) == digest((two, one))) == (plain(one) == plain(two))


@given(st.dictionaries(KEYS, st.integers(), max_size=6), st.randoms())
def test_the_order_of_a_mapping_does_not_matter(value, random):
    names = list(value)
    random.shuffle(names)
    assert canonical({name: value[name] for name in names}) == canonical(value)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (1, 1.0),
        (1, True),
        (0, None),
        ("1", 1),
        ("a", b"a"),
        (0.0, -0.0),
        ((1, 2), (1, (2,))),
        ((), ((),)),
        ({}, []),
        ({"a": 1}, (("a", 1),)),
        ({1: 0}, {"1": 0}),
        (("ab", "c"), ("a", "bc")),
        (Pair(1, 2), Riap(1, 2)),
        (Pair(1, 2), Pair(2, 1)),
        (Pair(1, 2), {"first": 1, "second": 2}),
        (np.zeros(2), np.zeros(2, np.float32)),
        (np.zeros(2), np.zeros((2, 1))),
        (np.zeros((1, 2)), np.zeros((2, 1))),
        (np.zeros(0), np.zeros((0, 3))),
        (np.zeros(1), 0.0),
        (np.array([1, 2]), np.array([2, 1])),
        (np.array([1, 0], np.uint8), np.array([1, 0], np.int8)),
        (np.array([1, 0], np.uint8), np.array([True, False])),
        (np.array([1, 2]), [1, 2]),
    ],
)
def test_near_values_differ(one, two):
    assert canonical(one) != canonical(two)


def test_an_array_is_its_numbers_and_not_how_they_lie_in_memory():
    square = np.arange(6.0).reshape(2, 3)
    same = [
        np.asfortranarray(square),
        square.astype(">f8"),
        np.arange(12.0).reshape(2, 6)[:, :3] * 0 + square,
        square[::1],
    ]
    assert {canonical(array) for array in same} == {canonical(square)}
    assert canonical(square.T) != canonical(square)
    assert canonical(square[::-1]) != canonical(square)


def test_numbers_of_numpy_are_numbers():
    assert canonical(np.int32(7)) == canonical(7)
    assert canonical(np.float64(0.5)) == canonical(np.float32(0.5)) == canonical(0.5)
    assert canonical(np.bool_(True)) == canonical(True)


class Colour(Enum):
    RED = 1


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1, 2},
        frozenset({1}),
        1j,
        np.complex128(1j),
        Colour.RED,
        Pair,
        canonical,
        range(3),
        bytearray(b"a"),
        np.array(["a"]),
        np.array([None]),
        np.array([1j]),
        np.array(["2020-01-01"], "datetime64[D]"),
        np.zeros(1, [("a", "f8")]),
    ],
)
@pytest.mark.parametrize(
    "wrap", [lambda v: v, lambda v: (v,), lambda v: {"a": v}, lambda v: Pair(0, v)]
)
def test_what_has_no_rule_is_refused_however_deep(value, wrap):
    with pytest.raises(PrivacyError, match="no canonical bytes"):
        canonical(wrap(value))


def test_the_digest_is_that_of_the_bytes():
    assert digest(Pair("a", 1)) == hashlib.sha256(canonical(Pair("a", 1))).digest()
