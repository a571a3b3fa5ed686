"""Fused training of a dense network between two element-wise affine layers, with dropout: the model
of iFedAvg.

    f_in(x) = (x + b_in) * w_in  ->  dropout  ->  [affine, activation, dropout] ...  ->  affine
    ->  f_out(z) = (z + b_out) * w_out

Workspace, products and clipping are those of `dpsgd`; added here are the derivative with respect to
the inputs, which the two layers need, and the dropout masks. Either layer can be absent, so this
also trains plain networks with dropout.

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
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suture.models.compiled import compiled
from suture.models.forward import (
    A_STRIDE,
    BLOCK,
    D_STRIDE,
    SIZE,
    W_STRIDE,
    A,
    D,
    G,
    Layout,
    T,
    W,
    _activate,
    layout,
)
from suture.models.lanes import aligned, padded, product, transpose
from suture.training.dpsgd import (
    ROUNDING,
    SMALLEST,
    TINY,
    _accumulate,
    _outcome_derivatives,
    _rescale,
    _row_squares,
    _update,
    turn,
)
from suture.training.draws import fill_normals

NONE, VECTOR, SCALAR = 0, 1, 2
"""How a layer is present: not at all, with one number per column, or with one for all columns."""

# Columns of the table of offsets; row 0 is f_in, row 1 is f_out.
KIND, COUNT, STRIDE, SHIFT, SCALE, G_SHIFT, G_SCALE, V_SHIFT, V_SCALE, RAW, DERIVATIVE, TIED = (
    range(12)
)


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


def affine_workspace(
    sizes: tuple[int, ...], kind_in: int, kind_out: int
) -> tuple[NDArray[np.float32], Layout, NDArray[np.int64], NDArray[np.int64]]:
    """A zeroed workspace, its layout, and the offsets of both affine layers and of each layer's
    dropout mask."""
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
    """Steele, Lea, Flood: Fast splittable pseudorandom number generators (2014), the finaliser of
    SplitMix64."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@compiled
def draw_masks(m, t, masks, rows, seed, dropout):  # type: ignore[no-untyped-def]
    """For every input of every layer, 0 with probability ``dropout``, else 1 / (1 - dropout); four
    from each word."""
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
def _put_rows(m, t, e, x, y, rows, count, labels):  # type: ignore[no-untyped-def]
    """Rows of ``x`` through f_in into A[0]; x + b is kept for the derivative of the scale."""
    size, layered = t[0, SIZE], e[0, KIND] != NONE
    shift = m[e[0, SHIFT] : e[0, SHIFT] + size]
    scale = m[e[0, SCALE] : e[0, SCALE] + size]
    for r in range(count):
        at = t[0, A] + r * t[0, A_STRIDE]
        values = m[at : at + size]
        row = x[rows[r]]
        if layered:
            raw = m[e[0, RAW] + r * e[0, STRIDE] : e[0, RAW] + r * e[0, STRIDE] + size]
            for c in range(size):
                raw[c] = row[c] + shift[c]
                values[c] = raw[c] * scale[c]
        else:
            for c in range(size):
                values[c] = row[c]
        m[at + size] = np.float32(1)
        labels[r] = y[rows[r]]


@compiled
def _forward(m, t, e, masks, rows, relu, dropped):  # type: ignore[no-untyped-def]
    """From A[0] to the outputs in A[last], f_out included; z + b_out is kept for the derivative of
    its scale."""
    last = len(t) - 1
    for i in range(last):
        if dropped:
            apply_mask(m, t[i, A], t[i, A_STRIDE], masks[i], t[i, A_STRIDE], rows, t[i, SIZE])
        product(
            m, rows, t[i, W_STRIDE], t[i, SIZE] + 1, t[i, A], t[i, A_STRIDE], np.int64(1),
            t[i, W], t[i, W_STRIDE], t[i + 1, A], t[i + 1, A_STRIDE], np.bool_(False),
        )  # fmt: skip
        if i + 1 < last:
            _activate(m, t[i + 1, A], t[i + 1, A_STRIDE], rows, t[i + 1, SIZE], relu)
    if e[1, KIND] != NONE:
        for r in range(rows):
            z, raw = t[last, A] + r * t[last, A_STRIDE], e[1, RAW] + r * e[1, STRIDE]
            for c in range(t[last, SIZE]):
                m[raw + c] = m[z + c] + m[e[1, SHIFT] + c]
                m[z + c] = m[raw + c] * m[e[1, SCALE] + c]


@compiled
def _backward(m, t, e, masks, rows, relu, dropped, kept):  # type: ignore[no-untyped-def]
    """D[last] from the outputs to the logits, D[l] of the hidden layers, and the derivative at
    f_in's output."""
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
    """Squared norm of one row's gradient of one affine layer; a shared number's derivative is
    formed here, and kept."""
    kind, size = e[row, KIND], e[row, COUNT]
    raw = m[e[row, RAW] + r * e[row, STRIDE] : e[row, RAW] + r * e[row, STRIDE] + size]
    d = m[e[row, DERIVATIVE] + r * e[row, STRIDE] : e[row, DERIVATIVE] + r * e[row, STRIDE] + size]
    scale = m[e[row, SCALE] : e[row, SCALE] + size]
    square = 0.0
    if kind != SCALAR:
        for c in range(size):
            shift, stretch = np.float64(d[c] * scale[c]), np.float64(d[c] * raw[c])
            square += shift * shift + stretch * stretch
        return square
    of_shift, of_scale = 0.0, 0.0
    for c in range(size):
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
    """Add the rows' clipped gradients of one affine layer: column by column, a shared number's in
    the first."""
    size, kind = e[row, COUNT], e[row, KIND]
    tied = m[e[row, TIED] : e[row, TIED] + 2 * BLOCK]
    of_shift = m[e[row, G_SHIFT] : e[row, G_SHIFT] + size]
    of_scale = m[e[row, G_SCALE] : e[row, G_SCALE] + size]
    scale = m[e[row, SCALE] : e[row, SCALE] + size]
    for r in range(rows):
        factor = factors[r]
        if factor == 0:
            continue  # 0 times infinity is not 0
        raw = m[e[row, RAW] + r * e[row, STRIDE] : e[row, RAW] + r * e[row, STRIDE] + size]
        d = m[
            e[row, DERIVATIVE] + r * e[row, STRIDE] : e[row, DERIVATIVE] + r * e[row, STRIDE] + size
        ]
        if kind != SCALAR:
            for c in range(size):
                of_shift[c] += factor * (d[c] * scale[c])
                of_scale[c] += factor * (d[c] * raw[c])
            continue
        of_scale[0] += factor * tied[BLOCK + r]
        if row == 0:
            of_shift[0] += factor * tied[r]
        else:
            for c in range(size):
                of_shift[c] += factor * (d[c] * scale[c])


@compiled
def _tie(gradient, noise):  # type: ignore[no-untyped-def]
    """One number for all columns: every column gets the gradient and the noise of the first."""
    for c in range(1, len(gradient)):
        gradient[c] = gradient[0]
        noise[c] = noise[0]


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
        values = m[e[row, SHIFT + part] : e[row, SHIFT + part] + size]
        gradient = m[e[row, G_SHIFT + part] : e[row, G_SHIFT + part] + size]
        velocity = m[e[row, V_SHIFT + part] : e[row, V_SHIFT + part] + size]
        drawn = noise[part * size : (part + 1) * size]
        if kind == SCALAR and (row == 0 or part == 1):
            _tie(gradient, drawn)
        for c in range(size):
            velocity[c] = (
                hold * velocity[c] + (gradient[c] + np.float32(noise_scale) * drawn[c]) * share
            )
            values[c] = (values[c] - step * velocity[c] + back * np.float32(part)) / (
                np.float32(1) + back
            )
            gradient[c] = np.float32(0)


@compiled
def _differentiate(m, t, affine, data, block, count, seed):  # type: ignore[no-untyped-def]
    """Forward and backward pass of the first ``count`` rows of a block, and the squared norm of
    each row's whole gradient."""
    e, masks, squares = affine.offsets, affine.masks, block.squares
    dropped = affine.dropout > 0.0
    if dropped:
        draw_masks(m, t, masks, count, seed, affine.dropout)
    bound = round(affine.dropout * 65536.0)
    kept = np.float32((65536.0 - bound) / 65536.0)
    _put_rows(m, t, e, data.x, data.y, block.rows, count, block.labels)
    _forward(m, t, e, masks, count, data.relu, dropped)
    _outcome_derivatives(m, t, count, block.labels, data.class_weights)
    _backward(m, t, e, masks, count, data.relu, dropped, kept)
    if affine.frozen:
        for r in range(count):
            squares[r] = TINY
    else:
        _row_squares(m, t, count, squares)
    for row in range(2):
        if e[row, KIND] != NONE:
            for r in range(count):
                squares[r] += _affine_square(m, e, row, r)


@compiled
def _add_block(m, t, e, count, factors, frozen):  # type: ignore[no-untyped-def]
    """Add a block's clipped gradients; the affine ones first, because rescaling clears rows that
    count for nothing."""
    for row in range(2):
        if e[row, KIND] != NONE:
            _affine_add(m, e, row, count, factors)
    if not frozen:
        _rescale(m, t, count, factors)
        _accumulate(m, t, count, np.int64(G))


@compiled
def _factor(norm, clip):  # type: ignore[no-untyped-def]
    """What a patient is multiplied by, as in `dpsgd._factors`."""
    if not math.isfinite(norm):
        return np.float32(0)
    if norm <= clip:
        return np.float32(1)
    return np.float32(clip / norm) if clip / norm >= SMALLEST else np.float32(0)


@compiled
def _add_batch(m, t, affine, data, batch, seed, clip, block):  # type: ignore[no-untyped-def]
    """Sum the clipped gradients of a batch of patients; returns how many rows there were."""
    e, frozen, starts = affine.offsets, affine.frozen, data.starts
    rows, ends, squares, factors = block.rows, block.ends, block.squares, block.factors
    p, seen = np.int64(0), np.int64(0)
    while p < len(batch):
        count, patients = np.int64(0), np.int64(0)
        while p < len(batch):
            start, end = starts[batch[p]], starts[batch[p] + 1]
            if count + end - start > BLOCK:
                break
            for row in range(start, end):
                rows[count] = row
                count += 1
            ends[patients] = count
            patients += 1
            p += 1
        seed = mix(seed + np.uint64(0x9E3779B97F4A7C15))
        if count == 0:
            # More rows than a block: once through for the norm, once more, with the same masks, for
            # the sum.
            start, end = starts[batch[p]], starts[batch[p] + 1]
            norm, factor = 0.0, np.float32(0)
            for again in range(2):
                for part in range(start, end, BLOCK):
                    count = np.int64(min(BLOCK, end - part))
                    for r in range(count):
                        rows[r] = part + r
                    own = mix(seed + np.uint64(part))
                    _differentiate(m, t, affine, data, block, count, own)
                    if again == 1:
                        for r in range(count):
                            factors[r] = factor
                        _add_block(m, t, e, count, factors, frozen)
                    else:
                        for r in range(count):
                            norm += math.sqrt(squares[r])
                factor = _factor(norm * (1.0 + ROUNDING), clip)
            seen += end - start
            p += 1
            continue
        seen += count
        _differentiate(m, t, affine, data, block, count, seed)
        first = np.int64(0)
        for patient in range(patients):
            norm = 0.0
            for r in range(first, ends[patient]):
                norm += math.sqrt(squares[r])
            factor = _factor(norm * (1.0 + ROUNDING), clip)
            for r in range(first, ends[patient]):
                factors[r] = factor
            first = ends[patient]
        _add_block(m, t, e, count, factors, frozen)
    return seen


@compiled
def turn_first(m, t):  # type: ignore[no-untyped-def]
    """Refresh T of the first layer, which only f_in's derivative crosses."""
    transpose(m, t[0, W], t[0, SIZE], t[1, SIZE], t[0, W_STRIDE], t[0, T], t[0, D_STRIDE])


@compiled
def run_affine(m, t, affine, data, picks, ends, words, noise, seeds, rule, block):  # type: ignore[no-untyped-def]
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
        drawn = noise[s % len(noise)]
        if len(words) > 0:
            fill_normals(words[s], noise[0])
            drawn = noise[0]
        if not affine.frozen:
            _update(m, t, drawn, divisor, rule)
            turn(m, t)
            if e[0, KIND] != NONE:
                turn_first(m, t)
        at = affine.n_params
        for row in range(2):
            if e[row, KIND] != NONE:
                size = 2 * e[row, COUNT]
                _affine_update(m, e, row, drawn[at : at + size], divisor, rule, affine.pull)
                at += size
