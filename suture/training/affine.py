"""Fused training of a dense network between two element-wise affine layers of a site's own, with
dropout: the model of iFedAvg.

    f_in(x) = (x + b_in) * w_in  ->  dropout  ->  [affine, activation, dropout] ...  ->  affine
    ->  f_out(z) = (z + b_out) * w_out

Workspace, products and clipping are those of `dpsgd`; added here are the derivative with respect to
the inputs, which the two layers need, and the dropout masks. Either layer can be absent, so this
also trains plain networks with dropout.

The layers and the network are one model with one gradient: clipped together, noised together,
counted once. That is why the layers of a private training may be shown, and cannot carry a
patient's influence past the noise.

The privacy proof needs this of the file (docs/interoperability.md): one patient adds at most C in
L2 norm to the sum of the *joint* gradient of everything that is trained here, network and affine
layers together.
- A row's squared norm is the sum over layers of ||a||^2 ||d||^2 plus the squares of its affine
  gradients.
- A number that all columns share has one derivative per row. It is formed once, in float64, rounded
  once, and kept: the norm is taken of that float32, and that float32 is added. Sums by column would
  round differently from the norm's sum, and where large parts cancel the difference exceeds C.
- A patient's norm is bounded by the sum of the norms of the patient's rows: never smaller than the
  norm of their sum.
- A patient whose gradient is not finite contributes exactly zero.
Dropout masks do not depend on rows. The bound holds for every fixed draw of them, hence for the
mixture over draws; they need no secret, so a fast counter-based hash draws them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suture.errors import StudyError
from suture.models.dense import (
    A_STRIDE,
    BLOCK,
    D_STRIDE,
    SIZE,
    A,
    D,
    Dense,
    Floats,
    G,
    T,
    layer,
    layout,
    put_rows,
)
from suture.models.kernels import aligned, compiled, padded, product
from suture.privacy.unit import Patients
from suture.training.dpsgd import (
    ROUNDING,
    TINY,
    Fused,
    Seeds,
    Words,
    accumulate,
    factor,
    list_rows,
    outcome_derivatives,
    rescale,
    row_squares,
    turn,
    update,
)
from suture.training.local import Indices, Local, fill_normals

Kind = Literal["none", "vector", "scalar", "bias", "weight"]
_KINDS: dict[Kind, int] = {"none": 0, "vector": 1, "scalar": 2, "bias": 3, "weight": 4}
"""How a layer is present: not at all, with one number per column, with one for all columns, or with
only its shifts or only its scales trained."""
NONE, _, SCALAR, BIAS, WEIGHT = _KINDS.values()
NOTHING = np.zeros(0, np.float32)

# Columns of the table of offsets; row 0 is f_in, row 1 is f_out.
KIND, COUNT, STRIDE, SHIFT, SCALE, G_SHIFT, G_SCALE, V_SHIFT, V_SCALE, RAW, DERIVATIVE, TIED = (
    range(12)
)


@dataclass(frozen=True)
class Layers:
    """Which affine layers there are: f_in and f_out, each none, vector (one number per column),
    scalar (one for all), or a vector of which only the bias or only the weight is trained.

    A scalar f_out has one scale for all logits and a shift for each (iFedAvg, appendix A.4).

    ``spread`` is a prior for every number: normal around the identity with this standard deviation.
    None is the paper's method, without a prior. With it, the most probable layers minimise the
    site's loss plus the squared distance from the identity / (2 spread^2): a site with few patients
    stays near the federation's model, and one with many moves as far as its rows say. (The authors'
    code has such a term, switched off in its published settings.)

    >>> Layers("vector", "scalar").length(5, 3)
    16
    >>> Layers(spread=0.5).pull(40), Layers().pull(40)
    (0.1, 0.0)
    """

    into: Kind = "vector"
    out: Kind = "none"
    spread: float | None = None

    def __post_init__(self) -> None:
        if self.spread is not None and not (math.isfinite(self.spread) and self.spread > 0):
            raise StudyError(f"expected a layer_spread above 0 and finite, found {self.spread}")

    def pull(self, patients: int) -> float:
        """The pull to the identity, beside a loss that is a mean over the public size."""
        return 0.0 if self.spread is None else 1.0 / (self.spread * self.spread * max(1, patients))

    def _sizes(self, features: int, outputs: int) -> list[tuple[str, int]]:
        ends = (("in", self.into, features), ("out", self.out, outputs))
        return [(name, size) for name, kind, size in ends if kind != "none"]

    def length(self, features: int, outputs: int) -> int:
        """How many numbers the layers keep."""
        return sum(2 * size for _, size in self._sizes(features, outputs))

    def identity(self, features: int, outputs: int) -> Floats:
        """Where every site starts: shifts 0, scales 1.

        >>> Layers().identity(2, 1).tolist()
        [0.0, 0.0, 1.0, 1.0]
        """
        start = np.array([0, 1], np.float32)
        parts = [np.repeat(start, size) for _, size in self._sizes(features, outputs)]
        return np.concatenate([NOTHING, *parts])

    def split(self, flat: Floats, features: int, outputs: int) -> dict[str, Floats]:
        """The layers that exist, by name: ``b_in``, ``w_in``, ``b_out``, ``w_out``; views of
        ``flat``.

        >>> {name: part.tolist() for name, part in Layers().split(np.arange(4.0), 2, 1).items()}
        {'b_in': [0.0, 1.0], 'w_in': [2.0, 3.0]}
        """
        length = self.length(features, outputs)
        if flat.shape != (length,):
            raise StudyError(f"expected {length} numbers in the layers, found {flat.shape}")
        found, at = {}, 0
        for name, size in self._sizes(features, outputs):
            for part in ("b", "w"):
                found[f"{part}_{name}"] = flat[at : at + size]
                at += size
        return found


PLAIN = Layers("none", "none")


class Affine(NamedTuple):
    """The affine layers and dropout around a network."""

    offsets: NDArray[np.int64]
    """Where both layers stand in the workspace."""
    masks: NDArray[np.int64]
    """Where each layer's dropout mask stands."""
    n_params: int
    """Numbers of the network, which come first in a step's noise."""
    dropout: float
    frozen: bool
    """Only the affine layers are trained."""
    pull: float
    """How strongly they are drawn to the identity."""


def _workspace(
    sizes: tuple[int, ...], kind_in: int, kind_out: int
) -> tuple[Floats, Indices, Indices, Indices]:
    """A zeroed workspace, its layout, and the offsets of affine layers and of dropout masks."""
    table, floats = layout(sizes, training=True)
    offsets = np.zeros((2, 12), np.int64)
    at = padded(floats)

    def room(count: int) -> int:
        nonlocal at
        start, at = at, at + padded(count)
        return start

    for row, kind, size in ((0, kind_in, sizes[0]), (1, kind_out, sizes[-1])):
        stride = padded(size)
        offsets[row, :3] = kind, size, stride
        for column in (SHIFT, SCALE, G_SHIFT, G_SCALE, V_SHIFT, V_SCALE):
            offsets[row, column] = room(stride)
        for column in (RAW, DERIVATIVE):
            offsets[row, column] = room(BLOCK * stride)
        # For each row of a block: the shared shift's derivatives, then the scale's.
        offsets[row, TIED] = room(2 * BLOCK)
    masks = [room(BLOCK * int(stride)) for stride in table[:-1, A_STRIDE]]
    return aligned(at), table, offsets, np.array(masks, np.int64)


@compiled
def mix(word):  # type: ignore[no-untyped-def]
    """SplitMix64's finaliser (Steele, Lea, Flood: Fast splittable generators, 2014)."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@compiled
def draw_masks(m, t, masks, rows, seed, dropout):  # type: ignore[no-untyped-def]
    """0 with probability ``dropout``, else 1 / (1 - dropout); four from each word."""
    bound = np.uint64(round(dropout * 65536.0))
    kept = np.float32(65536.0 / (65536.0 - float(bound)))
    zero, few = np.float32(0), np.uint64(0xFFFF)
    word = seed
    for i in range(len(masks)):
        count = rows * t[i, A_STRIDE]
        part = m[masks[i] : masks[i] + count]
        for c in range(0, count, 4):
            word += np.uint64(0x9E3779B97F4A7C15)
            bits = mix(word)
            part[c] = kept if (bits & few) >= bound else zero
            part[c + 1] = kept if ((bits >> np.uint64(16)) & few) >= bound else zero
            part[c + 2] = kept if ((bits >> np.uint64(32)) & few) >= bound else zero
            part[c + 3] = kept if (bits >> np.uint64(48)) >= bound else zero
    return word


@compiled
def apply_mask(m, at, stride, mask, width, rows, size):  # type: ignore[no-untyped-def]
    """Multiply a block's values by its mask."""
    for r in range(rows):
        values = m[at + r * stride : at + r * stride + size]
        factors = m[mask + r * width : mask + r * width + size]
        for c in range(size):
            values[c] *= factors[c]


@compiled
def _part(m, e, row, column, r):  # type: ignore[no-untyped-def]
    """What one column of the table says of an affine layer, for row ``r`` of the block."""
    at = e[row, column] + r * e[row, STRIDE]
    return m[at : at + e[row, COUNT]]


@compiled
def _put_rows(m, t, e, data, block, count):  # type: ignore[no-untyped-def]
    """Rows through f_in into A[0]; x + b is kept for the derivative of the scale."""
    shift, scale = _part(m, e, 0, SHIFT, 0), _part(m, e, 0, SCALE, 0)
    put_rows(m, t, data.x, block.rows, count)
    for r in range(count):
        block.labels[r] = data.y[block.rows[r]]
        if e[0, KIND] != NONE:
            at = t[0, A] + r * t[0, A_STRIDE]
            values, raw = m[at : at + t[0, SIZE]], _part(m, e, 0, RAW, r)
            for c in range(len(raw)):
                raw[c] = values[c] + shift[c]
                values[c] = raw[c] * scale[c]


@compiled
def _forward(m, t, e, masks, rows, relu, dropped):  # type: ignore[no-untyped-def]
    """From A[0] to the outputs in A[last], f_out included; z + b_out is kept."""
    last = len(t) - 1
    for i in range(last):
        if dropped:
            apply_mask(m, t[i, A], t[i, A_STRIDE], masks[i], t[i, A_STRIDE], rows, t[i, SIZE])
        layer(m, t, i, rows, relu)
    if e[1, KIND] != NONE:
        for r in range(rows):
            z, raw = t[last, A] + r * t[last, A_STRIDE], e[1, RAW] + r * e[1, STRIDE]
            for c in range(t[last, SIZE]):
                m[raw + c] = m[z + c] + m[e[1, SHIFT] + c]
                m[z + c] = m[raw + c] * m[e[1, SCALE] + c]


@compiled
def _backward(m, t, e, masks, rows, relu, dropped, kept):  # type: ignore[no-untyped-def]
    """D[last] at the logits, D[l] of the hidden layers, and the derivative at f_in's output."""
    last = len(t) - 1
    if e[1, KIND] != NONE:
        for r in range(rows):
            d, own = t[last, D] + r * t[last, D_STRIDE], e[1, DERIVATIVE] + r * e[1, STRIDE]
            for c in range(t[last, SIZE]):
                m[own + c] = m[d + c]
                m[d + c] *= m[e[1, SCALE] + c]
    down_to = 0 if e[0, KIND] != NONE else 1
    one = np.float32(1)
    for i in range(last - 1, down_to - 1, -1):
        lanes, size = t[i, D_STRIDE], t[i, SIZE]
        d = t[i, D] if i > 0 else e[0, DERIVATIVE]
        product(
            m, rows, lanes, t[i + 1, SIZE], t[i + 1, D], t[i + 1, D_STRIDE], np.int64(1),
            t[i, T], lanes, d, lanes, np.bool_(False),
        )  # fmt: skip
        if dropped:
            apply_mask(m, d, lanes, masks[i], t[i, A_STRIDE], rows, size)
        if i == 0:
            continue
        for r in range(rows):
            values = m[t[i, A] + r * t[i, A_STRIDE] : t[i, A] + r * t[i, A_STRIDE] + size]
            slopes = m[d + r * lanes : d + r * lanes + size]
            for c in range(size):
                # A holds what dropout left, the activation times 1 / kept; where it left nothing
                # the mask is zero.
                if relu:
                    slopes[c] = slopes[c] if values[c] > 0 else np.float32(0)
                else:
                    a = values[c] * kept
                    slopes[c] *= one - a * a


@compiled
def _affine_square(m, e, row, r):  # type: ignore[no-untyped-def]
    """Squared norm of a row's gradient; a shared number's derivative is formed here and kept."""
    raw, d = _part(m, e, row, RAW, r), _part(m, e, row, DERIVATIVE, r)
    scale = _part(m, e, row, SCALE, 0)
    square, kind = 0.0, e[row, KIND]
    if kind in (BIAS, WEIGHT):
        for c in range(len(d)):
            slope = np.float64(d[c] * scale[c] if kind == BIAS else d[c] * raw[c])
            square += slope * slope
        return square
    if kind != SCALAR:
        for c in range(len(d)):
            shift, stretch = np.float64(d[c] * scale[c]), np.float64(d[c] * raw[c])
            square += shift * shift + stretch * stretch
        return square
    of_shift, of_scale = 0.0, 0.0
    for c in range(len(d)):
        of_scale += np.float64(d[c]) * np.float64(raw[c])
        if row == 0:
            of_shift += np.float64(d[c]) * np.float64(scale[c])
        else:
            shift = np.float64(d[c] * scale[c])
            square += shift * shift
    tied = m[e[row, TIED] : e[row, TIED] + 2 * BLOCK]
    tied[r], tied[BLOCK + r] = np.float32(of_shift), np.float32(of_scale)
    return square + np.float64(tied[r]) ** 2 + np.float64(tied[BLOCK + r]) ** 2


@compiled
def _affine_add(m, e, row, rows, factors):  # type: ignore[no-untyped-def]
    """Add clipped gradients of one layer, by column; a shared number's in the first."""
    kind, tied = e[row, KIND], m[e[row, TIED] : e[row, TIED] + 2 * BLOCK]
    of_shift, of_scale = _part(m, e, row, G_SHIFT, 0), _part(m, e, row, G_SCALE, 0)
    scale = _part(m, e, row, SCALE, 0)
    for r in range(rows):
        share = factors[r]
        if share == 0:
            continue  # 0 times infinity is not 0
        raw, d = _part(m, e, row, RAW, r), _part(m, e, row, DERIVATIVE, r)
        if kind != SCALAR:
            for c in range(len(d)):
                of_shift[c] += share * (d[c] * scale[c])
                of_scale[c] += share * (d[c] * raw[c])
            continue
        of_scale[0] += share * tied[BLOCK + r]
        if row == 0:
            of_shift[0] += share * tied[r]
        else:
            for c in range(len(d)):
                of_shift[c] += share * (d[c] * scale[c])


@compiled
def _affine_update(m, e, row, noise, divisor, rule, pull):  # type: ignore[no-untyped-def]
    """Noise, mean, momentum and step for one affine layer; ``noise`` holds the shift's, then the
    scale's.

    ``pull`` draws the layer towards the identity: pull / 2 times the squared distance from it is
    added to the loss. The implicit form is stable however strong the pull is. With momentum a
    gradient counts 1 / (1 - momentum) times in all, so the pull must too. It depends on the layer
    alone: under privacy it is post-processing.
    """
    noise_scale, momentum, rate = rule.noise_scale, rule.momentum, rule.rate
    size, kind = e[row, COUNT], e[row, KIND]
    share, hold, step = np.float32(1.0 / divisor), np.float32(momentum), np.float32(rate)
    back = np.float32(rate * pull / (1.0 - momentum)) if momentum < 1.0 else np.float32(rate * pull)
    for part in range(2):
        values, gradient = _part(m, e, row, SHIFT + part, 0), _part(m, e, row, G_SHIFT + part, 0)
        velocity, drawn = _part(m, e, row, V_SHIFT + part, 0), noise[part * size :]
        if kind == (WEIGHT, BIAS)[part]:
            gradient[:] = np.float32(0)
            continue  # this part stays as it is, and what it would have added was not clipped
        # One number for all columns: every column gets the gradient and the noise of the first.
        tied = kind == SCALAR and (row == 0 or part == 1)
        first, noise_of_first = gradient[0], drawn[0]
        for c in range(size):
            slope, random = gradient[c], drawn[c]
            if tied:
                slope, random = first, noise_of_first
            velocity[c] = hold * velocity[c] + (slope + np.float32(noise_scale) * random) * share
            values[c] = (values[c] - step * velocity[c] + back * np.float32(part)) / (
                np.float32(1) + back
            )
            gradient[c] = np.float32(0)


@compiled
def _differentiate(m, t, affine, data, block, count, seed):  # type: ignore[no-untyped-def]
    """Forward and backward pass of ``count`` rows, and each row's whole squared norm."""
    e, masks, squares = affine.offsets, affine.masks, block.squares
    dropped = affine.dropout > 0.0
    if dropped:
        draw_masks(m, t, masks, count, seed, affine.dropout)
    kept = np.float32((65536.0 - round(affine.dropout * 65536.0)) / 65536.0)
    _put_rows(m, t, e, data, block, count)
    _forward(m, t, e, masks, count, data.relu, dropped)
    outcome_derivatives(m, t, count, block.labels, data.class_weights)
    _backward(m, t, e, masks, count, data.relu, dropped, kept)
    if affine.frozen:
        squares[:count] = TINY
    else:
        row_squares(m, t, count, squares)
    for row in range(2):
        if e[row, KIND] != NONE:
            for r in range(count):
                squares[r] += _affine_square(m, e, row, r)


@compiled
def _add_block(m, t, e, count, factors, frozen):  # type: ignore[no-untyped-def]
    """Add clipped gradients; the affine ones first, because `rescale` clears dropped rows."""
    for row in range(2):
        if e[row, KIND] != NONE:
            _affine_add(m, e, row, count, factors)
    if not frozen:
        rescale(m, t, count, factors)
        accumulate(m, t, count, np.int64(G))


@compiled
def _add_long_patient(m, t, affine, data, start, end, seed, clip, block):  # type: ignore[no-untyped-def]
    """A patient with more rows than a block: once through for the norm, once more, with the same
    masks, for the sum."""
    norm, share = 0.0, np.float32(0)
    for again in range(2):
        for part in range(start, end, BLOCK):
            count = np.int64(min(BLOCK, end - part))
            for r in range(count):
                block.rows[r] = part + r
            _differentiate(m, t, affine, data, block, count, mix(seed + np.uint64(part)))
            if again == 1:
                block.factors[:count] = share
                _add_block(m, t, affine.offsets, count, block.factors, affine.frozen)
            else:
                for r in range(count):
                    norm += math.sqrt(block.squares[r])
        share = factor(norm * (1.0 + ROUNDING), clip)


@compiled
def _add_batch(m, t, affine, data, batch, seed, clip, block):  # type: ignore[no-untyped-def]
    """Sum the clipped gradients of a batch of patients; returns how many rows there were."""
    p, seen = np.int64(0), np.int64(0)
    while p < len(batch):
        p, count, patients = list_rows(data.starts, batch, p, BLOCK, block.rows, block.ends)
        seed = mix(seed + np.uint64(0x9E3779B97F4A7C15))
        if count == 0:
            start, end = data.starts[batch[p]], data.starts[batch[p] + 1]
            _add_long_patient(m, t, affine, data, start, end, seed, clip, block)
            seen += end - start
            p += 1
            continue
        seen += count
        _differentiate(m, t, affine, data, block, count, seed)
        first = np.int64(0)
        for end in block.ends[:patients]:
            norm = 0.0
            for r in range(first, end):
                norm += math.sqrt(block.squares[r])
            block.factors[first:end] = factor(norm * (1.0 + ROUNDING), clip)
            first = end
        _add_block(m, t, affine.offsets, count, block.factors, affine.frozen)
    return seen


@compiled
def run(m, t, affine, data, picks, ends, words, noise, seeds, rule, block):  # type: ignore[no-untyped-def]
    """Take one step for each entry of ``ends``, as `dpsgd.run` does; ``seeds[s]`` draws the dropout
    masks of step s.

    The noise of a step is one vector: the network's, then f_in's shift and scale, then f_out's.
    """
    first, e = np.int64(0), affine.offsets
    for s in range(len(ends)):
        batch = picks[first : ends[s]]
        seen = _add_batch(m, t, affine, data, batch, seeds[s], rule.clip, block)
        first = ends[s]
        divisor = rule.expected if rule.expected > 0 else max(1.0, float(seen))
        drawn = noise[s % len(noise)] if len(words) == 0 else noise[0]
        if len(words) > 0:
            fill_normals(words[s], drawn)
        if not affine.frozen:
            update(m, t, drawn, divisor, rule)
            turn(m, t, 0 if e[0, KIND] != NONE else 1)
        at = affine.n_params
        for row in range(2):
            if e[row, KIND] != NONE:
                size = 2 * e[row, COUNT]
                _affine_update(m, e, row, drawn[at : at + size], divisor, rule, affine.pull)
                at += size


class FusedAffine(Fused):
    """The same with affine layers around the network, and dropout."""

    crossed = 0  # f_in's derivative needs the first layer too

    def __init__(
        self,
        network: Dense,
        params: Floats,
        layers: Layers,
        own: Floats,
        data: Patients,
        local: Local,
        frozen: bool,
    ) -> None:
        self.kinds, self.own, self.frozen = layers, np.asarray(own, np.float32), frozen
        super().__init__(network, params, data, local)

    def _workspace(self) -> tuple[Floats, Indices]:
        kinds = _KINDS[self.kinds.into], _KINDS[self.kinds.out]
        memory, table, self.offsets, self.masks = _workspace(self.network.sizes, *kinds)
        return memory, table

    def _ready(self) -> None:
        for name, values in self._split(self.own).items():
            self._place(name)[:] = values
        self.numbers += len(self.own)
        dropout, pull = float(self.local.dropout), float(self.kinds.pull(self.patients.size))
        size = self.network.n_params
        self.affine = Affine(self.offsets, self.masks, size, dropout, self.frozen, pull)
        super()._ready()

    def _split(self, flat: Floats) -> dict[str, Floats]:
        return self.kinds.split(flat, self.network.sizes[0], self.network.sizes[-1])

    def _place(self, name: str) -> Floats:
        row, column = int(name.endswith("out")), SHIFT if name.startswith("b") else SCALE
        at = int(self.offsets[row, column])
        return self.memory[at : at + int(self.offsets[row, 1])]

    def run(self, picks: Indices, ends: Indices, words: Words, noise: Floats, seeds: Seeds) -> None:
        place, how = (self.memory, self.table, self.affine), (self.rule, self.block)
        run(*place, self.data, picks, ends, words, noise, seeds, *how)

    def layers(self) -> Floats:
        return np.concatenate([NOTHING, *map(self._place, self._split(self.own))])


def train_affine(
    network: Dense,
    params: Floats,
    layers: Layers,
    own: Floats,
    data: Patients,
    local: Local,
    key: bytes,
    *,
    frozen: bool = False,
) -> tuple[Floats, Floats]:
    """Network and layers after local training; the randomness is a function of ``key`` alone, and
    the arguments are left as they are.

    With ``frozen`` the network is left alone and only the layers are fitted: this is how a new
    hospital joins.
    """
    fused = FusedAffine(network, params, layers, own, data, local, frozen)
    fused.train(key)
    return fused.params(), fused.layers()
