"""Fused training of a dense network between two element-wise affine layers, with dropout: iFedAvg's model (paper 003).

    f_in(x) = (x + b_in) * w_in  ->  dropout  ->  [affine, activation, dropout] ...  ->  affine  ->  (z + b_out) * w_out

Same workspace, products and clipping as `dpsgd`; what is new here is the derivative with respect to the inputs, which
the two layers need, and the masks of dropout. Either layer can be absent, so this is also dropout for plain networks.

What the privacy proof needs of this file (docs/interoperability.md): one patient adds at most C in L2 norm to the sum
of the *joint* gradient of everything that is trained here, network and affine layers together.
- A row's squared norm is the sum over layers of ||a||^2 ||d||^2 plus the squares of its affine gradients.
- A patient's norm is bounded by the sum of the norms of the patient's rows: never smaller than the norm of their sum.
- A patient whose gradient is not finite contributes exactly zero.
Masks of dropout do not depend on rows. For every fixed draw of them the bound holds, hence it holds for the mixture;
they need no secret, so a fast counter-based hash draws them.
"""

from __future__ import annotations

import math

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
    TINY,
    _accumulate,
    _outcome_derivatives,
    _rescale,
    _row_squares,
    _update,
    turn,
)
from suture.training.dropout import apply_mask, draw_masks, mix
from suture.training.noise import fill_normals

NONE, VECTOR, SCALAR = 0, 1, 2
"""How a layer is present: not at all, one number a column, or one number for all columns."""

# Columns of the table of offsets; row 0 is f_in, row 1 is f_out.
KIND, COUNT, STRIDE, SHIFT, SCALE, G_SHIFT, G_SCALE, V_SHIFT, V_SCALE, RAW, DERIVATIVE = range(11)


def affine_workspace(
    sizes: tuple[int, ...], kind_in: int, kind_out: int
) -> tuple[NDArray[np.float32], Layout, NDArray[np.int64], NDArray[np.int64]]:
    """A zeroed workspace, its layout, the offsets of both affine layers, and those of each layer's dropout mask."""
    table, floats = layout(sizes, training=True)
    offsets = np.zeros((2, 11), np.int64)
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
    masks = np.array([room(BLOCK * int(table[i, A_STRIDE])) for i in range(len(sizes) - 1)], np.int64)
    return aligned(at), table, offsets, masks


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
    """From A[0] to the outputs in A[last], f_out included; z + b_out is kept for the derivative of its scale."""
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
    """D[last] from the outputs to the logits, D[l] of the hidden layers, and the derivative at f_in's output."""
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
                # A holds what dropout left, the activation times 1 / kept; where it left nothing the mask is zero.
                if relu:
                    slopes[c] = slopes[c] if values[c] > 0 else np.float32(0)
                else:
                    a = values[c] * kept
                    slopes[c] *= one - a * a


@compiled
def _affine_square(m, e, row, r):  # type: ignore[no-untyped-def]
    """Squared norm of one row's gradient of one affine layer; a number shared by all columns has one derivative."""
    kind, size = e[row, KIND], e[row, COUNT]
    raw = m[e[row, RAW] + r * e[row, STRIDE] : e[row, RAW] + r * e[row, STRIDE] + size]
    d = m[e[row, DERIVATIVE] + r * e[row, STRIDE] : e[row, DERIVATIVE] + r * e[row, STRIDE] + size]
    scale = m[e[row, SCALE] : e[row, SCALE] + size]
    square, of_shift, of_scale = 0.0, 0.0, 0.0
    for c in range(size):
        shift = np.float64(d[c] * scale[c])
        stretch = np.float64(d[c] * raw[c])
        if kind == SCALAR and row == 0:
            of_shift += shift
        else:
            square += shift * shift
        if kind == SCALAR:
            of_scale += stretch
        else:
            square += stretch * stretch
    return square + of_shift * of_shift + of_scale * of_scale


@compiled
def _affine_add(m, e, row, rows, factors):  # type: ignore[no-untyped-def]
    """Add the rows' clipped gradients of one affine layer, column by column."""
    size = e[row, COUNT]
    of_shift = m[e[row, G_SHIFT] : e[row, G_SHIFT] + size]
    of_scale = m[e[row, G_SCALE] : e[row, G_SCALE] + size]
    scale = m[e[row, SCALE] : e[row, SCALE] + size]
    for r in range(rows):
        factor = factors[r]
        if factor == 0:
            continue  # 0 times infinity is not 0
        raw = m[e[row, RAW] + r * e[row, STRIDE] : e[row, RAW] + r * e[row, STRIDE] + size]
        d = m[e[row, DERIVATIVE] + r * e[row, STRIDE] : e[row, DERIVATIVE] + r * e[row, STRIDE] + size]
        for c in range(size):
            of_shift[c] += factor * (d[c] * scale[c])
            of_scale[c] += factor * (d[c] * raw[c])


@compiled
def _tie(gradient, noise):  # type: ignore[no-untyped-def]
    """One number for all columns: every column gets the summed gradient, and the noise of the first."""
    total = np.float32(0)
    for c in range(len(gradient)):
        total += gradient[c]
    for c in range(len(gradient)):
        gradient[c] = total
        noise[c] = noise[0]


@compiled
def _affine_update(m, e, row, noise, noise_scale, divisor, momentum, rate, pull):  # type: ignore[no-untyped-def]
    """Noise, mean, momentum, step for one affine layer; its noise stands at ``noise``, shift first, then scale.

    ``pull`` draws the layer towards the identity: the loss has pull / 2 times the squared distance from it as well. The
    implicit form is stable however strong the pull is; with momentum a gradient counts 1 / (1 - momentum) times in all,
    so the pull has to. It depends on the layer alone, so under privacy it is post-processing.
    """
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
            velocity[c] = hold * velocity[c] + (gradient[c] + np.float32(noise_scale) * drawn[c]) * share
            values[c] = (values[c] - step * velocity[c] + back * np.float32(part)) / (np.float32(1) + back)
            gradient[c] = np.float32(0)


@compiled
def _differentiate(  # type: ignore[no-untyped-def]
    m, t, e, masks, x, y, rows, count, seed, dropout, kept, class_weights, relu, frozen, labels, squares
):
    """Forward and backward pass of up to BLOCK rows, and the squared norm of each row's whole gradient."""
    dropped = dropout > 0.0
    if dropped:
        draw_masks(m, t, masks, count, seed, dropout)
    _put_rows(m, t, e, x, y, rows, count, labels)
    _forward(m, t, e, masks, count, relu, dropped)
    _outcome_derivatives(m, t, count, labels, class_weights)
    _backward(m, t, e, masks, count, relu, dropped, kept)
    if frozen:
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
    """Add a block's clipped gradients; the affine ones first, because rescaling clears rows that count for nothing."""
    for row in range(2):
        if e[row, KIND] != NONE:
            _affine_add(m, e, row, count, factors)
    if not frozen:
        _rescale(m, t, count, factors)
        _accumulate(m, t, count, np.int64(G))


@compiled
def _factor(norm, clip):  # type: ignore[no-untyped-def]
    if not math.isfinite(norm):
        return np.float32(0)
    return np.float32(clip / norm) if norm > clip else np.float32(1)


@compiled
def _add_batch(  # type: ignore[no-untyped-def]
    m, t, e, masks, x, y, starts, batch, seed, dropout, kept, clip, class_weights, relu, frozen,
    labels, rows, ends, squares, factors,
):  # fmt: skip
    """Sum the clipped gradients of a batch of patients; returns how many rows there were."""
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
            # More rows than a block: once through for the norm, once more, with the same masks, for the sum.
            start, end = starts[batch[p]], starts[batch[p] + 1]
            norm, factor = 0.0, np.float32(0)
            for again in range(2):
                for block in range(start, end, BLOCK):
                    count = np.int64(min(BLOCK, end - block))
                    for r in range(count):
                        rows[r] = block + r
                    own = mix(seed + np.uint64(block))
                    _differentiate(
                        m, t, e, masks, x, y, rows, count, own, dropout, kept, class_weights, relu, frozen, labels,
                        squares,
                    )  # fmt: skip
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
        _differentiate(
            m, t, e, masks, x, y, rows, count, seed, dropout, kept, class_weights, relu, frozen, labels, squares
        )  # fmt: skip
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
def run_affine(  # type: ignore[no-untyped-def]
    m, t, e, masks, x, y, starts, picks, ends, words, noise, n_params, seeds, dropout, frozen, expected, clip,
    noise_scale, proximal, momentum, rate, pull, class_weights, relu, labels, rows, limits, squares, factors,
):  # fmt: skip
    """One step for each entry of ``ends``, as `dpsgd.run`; ``seeds[s]`` draws the dropout masks of step s.

    The noise of a step is one vector: the network's, then f_in's shift and scale, then f_out's.
    """
    first = np.int64(0)
    layered = e[0, KIND] != NONE
    bound = round(dropout * 65536.0)
    kept = np.float32((65536.0 - bound) / 65536.0)
    for s in range(len(ends)):
        seen = _add_batch(
            m, t, e, masks, x, y, starts, picks[first : ends[s]], seeds[s], dropout, kept, clip, class_weights, relu,
            frozen, labels, rows, limits, squares, factors,
        )  # fmt: skip
        first = ends[s]
        divisor = expected if expected > 0 else max(1.0, float(seen))
        drawn = noise[s % len(noise)]
        if len(words) > 0:
            fill_normals(words[s], noise[0])
            drawn = noise[0]
        if not frozen:
            _update(m, t, drawn, noise_scale, divisor, proximal, momentum, rate)
            turn(m, t)
            if layered:
                turn_first(m, t)
        at = n_params
        for row in range(2):
            if e[row, KIND] != NONE:
                size = 2 * e[row, COUNT]
                _affine_update(m, e, row, drawn[at : at + size], noise_scale, divisor, momentum, rate, pull)
                at += size
