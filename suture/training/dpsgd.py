"""Fused DP-SGD for dense networks: many steps in one compiled call that holds no lock.

A layer's gradient for one row is the outer product of its inputs a (with the constant 1 for the
bias) and its output derivatives d, so its squared norm is ||a||^2 ||d||^2 (Goodfellow, "Efficient
Per-Example Gradient Computations", 2015). For a patient with several rows it is the sum over pairs
of rows of (a_r . a_s)(d_r . d_s). Clipping then only rescales the patient's d, and one matrix
product per layer gives the sum of all clipped gradients: no patient's gradient is formed, except
for patients with more than `GRAM_ROWS` rows, in one buffer.

The privacy proof needs this of the file: whatever the rows hold, one patient adds at most C in L2
norm to the sum.
- The norm compared with C is an upper bound: it includes the rounding error of float32 relative to
  the sum of the row norms, since large row gradients that nearly cancel may leave a sum that is
  known less precisely than C.
- A patient whose gradient is not finite (overflow, or values that are not numbers) contributes
  exactly zero.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suture.models.dense import (
    A_STRIDE,
    BLOCK,
    D_STRIDE,
    SIZE,
    W_STRIDE,
    A,
    D,
    Dense,
    Floats,
    G,
    O,
    S,
    T,
    V,
    W,
    forward,
    layout,
    pack,
    put_rows,
    unpack,
)
from suture.models.kernels import (
    WIDTH,
    aligned,
    compiled,
    inner,
    keep,
    load,
    multiply,
    multiply_add,
    padded,
    product,
    splat,
    store,
    subtract,
    transpose,
    where_positive,
)
from suture.privacy.noise.source import Keystream, derive
from suture.privacy.unit import Patients
from suture.training.local import (
    Indices,
    Local,
    batches,
    check,
    chunk_of,
    expected_batch,
    fill_normals,
    known,
    loss_weights,
    words_for,
)

Words = NDArray[np.uint32]
Seeds = NDArray[np.uint64]
NO_WORDS = np.empty((0, 0), np.uint32)

GRAM_ROWS = 16
# Bound on the relative rounding error of a float32 gradient sum and of its norm; see the module's
# note on cancellation.
ROUNDING = 4e-6
# Errors smaller than this count as zero: their squares would leave the normal range of float32,
# where arithmetic is many times slower, and a trained network is sure of most patients. This
# depends on one patient's row alone, before clipping, so the bound on a contribution stands.
NEGLIGIBLE = np.float32(1e-15)
# Added to sums of squares, so that squares too small for float32 cannot hide a contribution behind
# a large factor.
TINY = 1e-31
# A factor below the normal floats of float32 would be rounded by up to its own size, upwards too:
# it counts as zero.
SMALLEST = 2.0**-126


class Data(NamedTuple):
    """A site's rows, and what their losses are computed with."""

    x: NDArray[np.float32]
    y: NDArray[np.int32]
    starts: NDArray[np.int64]
    push: NDArray[np.float32]
    """Times the row's risk, added to its loss; empty: nothing is."""
    class_weights: NDArray[np.float32]
    relu: bool


class Rule(NamedTuple):
    """How a sum of gradients becomes a step."""

    expected: float
    """The batch that a sum is divided by; 0 asks for the rows seen, which is not private."""
    clip: float
    noise_scale: float
    proximal: float
    momentum: float
    rate: float


class Block(NamedTuple):
    """What is known of the rows computed together."""

    labels: NDArray[np.int64]
    rows: NDArray[np.int64]
    ends: NDArray[np.int64]
    squares: NDArray[np.float64]
    factors: NDArray[np.float32]


@compiled
def _hazard_derivatives(m, t, rows, labels, weights):  # type: ignore[no-untyped-def]
    """Of the likelihood of the intervals that a row was followed through: the whole of those before
    its last, the last with its event, or half of it where follow-up ended there without one."""
    last = len(t) - 1
    size = t[last, SIZE]
    one, half = np.float32(1), np.float32(0.5)
    for r in range(rows):
        z = t[last, A] + r * t[last, A_STRIDE]
        d = t[last, D] + r * t[last, D_STRIDE]
        weight, interval, event = weights[labels[r]], labels[r] // 2, labels[r] % 2
        for c in range(size):
            share = weight if c < interval or event else weight * half
            error = share * (one / (one + math.exp(-m[z + c])))
            if c == interval and event:
                error -= weight
            if c > interval:
                error = np.float32(0)
            m[d + c] = error if abs(error) > NEGLIGIBLE or error != error else np.float32(0)


@compiled
def outcome_derivatives(m, t, rows, labels, class_weights):  # type: ignore[no-untyped-def]
    """D[last]: derivative of the weighted cross-entropy with respect to the logits.

    More weights than classes could have say that the labels are cells of follow-up (`Hazards`)."""
    last = len(t) - 1
    size = t[last, SIZE]
    one = np.float32(1)
    if len(class_weights) == 2 * size + 2:
        _hazard_derivatives(m, t, rows, labels, class_weights)
        return
    for r in range(rows):
        z = t[last, A] + r * t[last, A_STRIDE]
        d = t[last, D] + r * t[last, D_STRIDE]
        weight = class_weights[labels[r]]
        if size == 1:
            # exp overflows to infinity for logits below -88, and the probability is then exactly 0.
            error = weight * (one / (one + math.exp(-m[z])) - np.float32(labels[r]))
            m[d] = error if abs(error) > NEGLIGIBLE or error != error else np.float32(0)
        else:
            top = m[z]
            for c in range(1, size):
                top = max(top, m[z + c])
            mass = np.float32(0)
            for c in range(size):
                m[d + c] = math.exp(m[z + c] - top)
                mass += m[d + c]
            for c in range(size):
                m[d + c] = weight * (m[d + c] / mass)
            if labels[r] < size:  # else an outcome outside the classes: its weight is 0
                m[d + labels[r]] -= weight
            for c in range(size):
                if abs(m[d + c]) <= NEGLIGIBLE:
                    m[d + c] = np.float32(0)


@compiled
def _push(m, t, rows, count, push):  # type: ignore[no-untyped-def]
    """Add the derivative of push x risk to D[last]; risk is any outcome's but the first."""
    last = len(t) - 1
    size = t[last, SIZE]
    one = np.float32(1)
    for r in range(count):
        z = t[last, A] + r * t[last, A_STRIDE]
        d = t[last, D] + r * t[last, D_STRIDE]
        weight = push[rows[r]]
        if size == 1:
            p = one / (one + math.exp(-m[z]))
            m[d] += weight * p * (one - p)
            continue
        top = m[z]
        for c in range(1, size):
            top = max(top, m[z + c])
        mass = np.float32(0)
        for c in range(size):
            mass += math.exp(m[z + c] - top)
        first = math.exp(m[z] - top) / mass
        m[d] -= weight * first
        for c in range(size):
            m[d + c] += weight * first * (math.exp(m[z + c] - top) / mass)


@compiled
def _backward(m, t, rows, relu):  # type: ignore[no-untyped-def]
    """D[l] for the hidden layers, from D[last] and the transposed weights."""
    for i in range(len(t) - 2, 0, -1):
        lanes = t[i, D_STRIDE]
        product(
            m, rows, lanes, t[i + 1, SIZE], t[i + 1, D], t[i + 1, D_STRIDE], np.int64(1),
            t[i, T], lanes, t[i, D], lanes, np.bool_(False),
        )  # fmt: skip
        one = splat(np.float32(1))
        for r in range(rows):
            a = t[i, A] + r * t[i, A_STRIDE]
            d = t[i, D] + r * lanes
            for c in range(0, lanes, WIDTH):
                activation, value = load(m, a + c), load(m, d + c)
                if relu:
                    store(m, d + c, where_positive(activation, value))
                else:
                    slope = subtract(one, multiply(activation, activation))
                    store(m, d + c, multiply(value, slope))


@compiled
def accumulate(m, t, rows, column):  # type: ignore[no-untyped-def]
    """Add the block's summed gradient, A^T D for each layer, to the matrices of ``column``."""
    for i in range(len(t) - 1):
        product(
            m, t[i, SIZE] + 1, t[i, W_STRIDE], rows, t[i, A], np.int64(1), t[i, A_STRIDE],
            t[i + 1, D], t[i + 1, D_STRIDE], t[i, column], t[i, W_STRIDE], np.bool_(True),
        )  # fmt: skip


@compiled
def row_squares(m, t, rows, squares):  # type: ignore[no-untyped-def]
    """Squared norm of each row's gradient."""
    for r in range(rows):
        squares[r] = 0.0
    for i in range(len(t) - 1):
        a, stride = t[i, A], t[i, A_STRIDE]
        d, width = t[i + 1, D], t[i + 1, D_STRIDE]
        for r in range(rows):
            inputs = np.float64(inner(m, a, a, stride)) + TINY
            squares[r] += inputs * (np.float64(inner(m, d, d, width)) + TINY)
            a += stride
            d += width


@compiled
def _sum_norm(m, t, first, end, squares):  # type: ignore[no-untyped-def]
    """An upper bound on the norm of a sum of rows' gradients, whatever cancels among them."""
    square, apart = 0.0, 0.0
    for r in range(first, end):
        square += squares[r]
        apart += math.sqrt(squares[r])
        for s in range(first, r):
            for i in range(len(t) - 1):
                a, stride = t[i, A], t[i, A_STRIDE]
                d, width = t[i + 1, D], t[i + 1, D_STRIDE]
                inputs = np.float64(inner(m, a + r * stride, a + s * stride, stride))
                square += 2.0 * inputs * np.float64(inner(m, d + r * width, d + s * width, width))
    # Each inner product is known to ROUNDING relative to the norms it multiplies, hence the square
    # to that much of the square of the sum of norms.
    return math.sqrt(max(square, 0.0) + ROUNDING * apart * apart) + ROUNDING * apart


@compiled
def factor(norm, clip):  # type: ignore[no-untyped-def]
    """What a patient is multiplied by to stay within ``clip``; 0 if the norm is not finite."""
    if not math.isfinite(norm):
        return np.float32(0)
    if norm <= clip:
        return np.float32(1)
    return np.float32(clip / norm) if clip / norm >= SMALLEST else np.float32(0)


@compiled
def _factors(m, t, ends, patients, clip, squares, factors):  # type: ignore[no-untyped-def]
    """What each row is multiplied by, so that no patient's sum exceeds ``clip``."""
    first = np.int64(0)
    for patient in range(patients):
        end = ends[patient]
        norm = math.sqrt(squares[first]) * (1.0 + ROUNDING)
        if end - first > 1:
            norm = _sum_norm(m, t, first, end, squares)
        share = factor(norm, clip)
        for r in range(first, end):
            factors[r] = share
        first = end


@compiled
def rescale(m, t, rows, factors):  # type: ignore[no-untyped-def]
    """Multiply D by each row's factor; 0 clears the inputs too, since 0 x infinity is not 0."""
    zero = splat(np.float32(0))
    for i in range(len(t) - 1):
        a, stride = t[i, A], t[i, A_STRIDE]
        d, width = t[i + 1, D], t[i + 1, D_STRIDE]
        for r in range(rows):
            if factors[r] == 0:
                for c in range(0, stride, WIDTH):
                    store(m, a + r * stride + c, zero)
                for c in range(0, width, WIDTH):
                    store(m, d + r * width + c, zero)
            elif factors[r] != 1:
                factor = splat(factors[r])
                for c in range(0, width, WIDTH):
                    store(m, d + r * width + c, multiply(load(m, d + r * width + c), factor))


@compiled
def _differentiate(m, t, data, block, count):  # type: ignore[no-untyped-def]
    """Forward and backward pass of the first ``count`` rows of a block."""
    put_rows(m, t, data.x, block.rows, count)
    for r in range(count):
        block.labels[r] = data.y[block.rows[r]]
    forward(m, t, count, data.relu)
    outcome_derivatives(m, t, count, block.labels, data.class_weights)
    if len(data.push) > 0:
        _push(m, t, block.rows, count, data.push)
    _backward(m, t, count, data.relu)


@compiled
def _add_long_patient(m, t, data, start, end, clip, block):  # type: ignore[no-untyped-def]
    """Add a patient with many rows: the summed gradient is formed in S, clipped and added to G."""
    for i in range(len(t) - 1):
        for c in range((t[i, SIZE] + 1) * t[i, W_STRIDE]):
            m[t[i, S] + c] = np.float32(0)
    for first in range(start, end, BLOCK):
        count = min(BLOCK, end - first)
        for r in range(count):
            block.rows[r] = first + r
        _differentiate(m, t, data, block, count)
        accumulate(m, t, count, np.int64(S))
    squares = 0.0
    for i in range(len(t) - 1):
        for c in range((t[i, SIZE] + 1) * t[i, W_STRIDE]):
            squares += np.float64(m[t[i, S] + c]) ** 2
    share = factor(math.sqrt(squares) * (1.0 + ROUNDING), clip)
    if share == 0:  # 0 times infinity is not 0
        return
    for i in range(len(t) - 1):
        for c in range((t[i, SIZE] + 1) * t[i, W_STRIDE]):
            m[t[i, G] + c] += share * m[t[i, S] + c]


@compiled
def list_rows(starts, batch, p, most, rows, ends):  # type: ignore[no-untyped-def]
    """List the rows of whole patients, from the batch's number ``p`` on, until a block is full or a
    patient has more than ``most`` rows; returns who is next, and how many rows and patients."""
    count, patients = np.int64(0), np.int64(0)
    while p < len(batch):
        start, end = starts[batch[p]], starts[batch[p] + 1]
        if end - start > most or count + end - start > BLOCK:
            break
        for row in range(start, end):
            rows[count] = row
            count += 1
        ends[patients] = count
        patients += 1
        p += 1
    return p, count, patients


@compiled
def _add_batch(m, t, data, batch, clip, block):  # type: ignore[no-untyped-def]
    """Sum the clipped gradients of a batch of patients in G; returns how many rows there were."""
    p, seen = np.int64(0), np.int64(0)
    while p < len(batch):
        p, count, patients = list_rows(data.starts, batch, p, GRAM_ROWS, block.rows, block.ends)
        if count == 0:
            start, end = data.starts[batch[p]], data.starts[batch[p] + 1]
            _add_long_patient(m, t, data, start, end, clip, block)
            seen += end - start
            p += 1
            continue
        seen += count
        _differentiate(m, t, data, block, count)
        row_squares(m, t, count, block.squares)
        _factors(m, t, block.ends, patients, clip, block.squares, block.factors)
        rescale(m, t, count, block.factors)
        accumulate(m, t, count, np.int64(G))
    return seen


@compiled
def update(m, t, noise, divisor, rule):  # type: ignore[no-untyped-def]
    """Noise, mean, proximal term, momentum, step; then clear G for the next batch.

    Everything after the noise is a function of the noisy sum and of earlier weights: it costs no
    privacy.
    """
    scales, share = splat(np.float32(rule.noise_scale)), splat(np.float32(1.0 / divisor))
    pull, hold = splat(np.float32(rule.proximal)), splat(np.float32(rule.momentum))
    step, zero = splat(np.float32(-rule.rate)), splat(np.float32(0))
    p = 0
    for i in range(len(t) - 1):
        rows, width, stride = t[i, SIZE] + 1, t[i + 1, SIZE], t[i, W_STRIDE]
        if width == stride:
            rows, width, stride = 1, rows * width, rows * stride
        for r in range(rows):
            for c in range(0, stride, WIDTH):
                at = r * stride + c
                weight = load(m, t[i, W] + at)
                gradient = multiply_add(scales, load(noise, p + c), load(m, t[i, G] + at))
                if c + WIDTH > width:
                    # The last lane of a row has read the next row's noise into its padding, which
                    # must stay zero.
                    gradient = keep(width - c, gradient)
                gradient = multiply(gradient, share)
                gradient = multiply_add(pull, subtract(weight, load(m, t[i, O] + at)), gradient)
                velocity = multiply_add(hold, load(m, t[i, V] + at), gradient)
                store(m, t[i, V] + at, velocity)
                store(m, t[i, W] + at, multiply_add(step, velocity, weight))
                store(m, t[i, G] + at, zero)
            p += width


@compiled
def turn(m, t, first):  # type: ignore[no-untyped-def]
    """Refresh T from W (without biases), from the first layer that the backward pass crosses."""
    for i in range(first, len(t) - 1):
        transpose(m, t[i, W], t[i, SIZE], t[i + 1, SIZE], t[i, W_STRIDE], t[i, T], t[i, D_STRIDE])


@compiled
def run(m, t, data, picks, ends, words, noise, rule, block):  # type: ignore[no-untyped-def]
    """Take one step for each entry of ``ends``, on patients ``picks[ends[s - 1]:ends[s]]``.

    The noise of step s is drawn from ``words[s]``; if ``words`` is empty, ``noise[s]`` is used as
    it is.
    """
    first = 0
    for s in range(len(ends)):
        seen = _add_batch(m, t, data, picks[first : ends[s]], rule.clip, block)
        first = ends[s]
        divisor = rule.expected if rule.expected > 0 else max(1.0, float(seen))
        if len(words) > 0:
            fill_normals(words[s], noise[0])
            update(m, t, noise[0], divisor, rule)
        else:
            update(m, t, noise[s % len(noise)], divisor, rule)
        turn(m, t, 1)


class Fused:
    """A training: a workspace loaded with parameters, and what stays the same in every step."""

    crossed = 1
    """The first layer that the backward pass crosses."""

    def __init__(
        self,
        network: Dense,
        params: Floats,
        data: Patients,
        local: Local,
        anchor: Floats | None = None,
        push: Floats | None = None,
    ) -> None:
        network.check(params)
        check(network, data, local, push)
        self.network, self.patients, self.local = network, data, local
        self.memory, self.table = self._workspace()
        self.numbers = network.n_params
        self.load(W, params)
        if anchor is not None:
            network.check(anchor)
        self.load(O, params if anchor is None else anchor)
        y = known(network.labels(data.y), network.classes)
        weights = loss_weights(local, data.y, network.classes).astype(np.float32)
        pushes = () if push is None else np.where(y < network.classes, push, 0)
        pushed = np.ascontiguousarray(pushes, np.float32)
        relu = network.activation == "relu"
        self.data = Data(data.x, y, data.starts, pushed, weights, relu)
        clip = math.inf if local.clip is None else float(local.clip)
        scale = float(local.noise_multiplier * clip) if local.noise_multiplier else 0.0
        expected, proximal = expected_batch(data.size, local), float(local.proximal)
        self.rule = Rule(expected, clip, scale, proximal, float(local.momentum), float(local.rate))
        labels, rows, ends = np.empty((3, BLOCK), np.int64)
        squares, factors = np.empty(BLOCK, np.float64), np.empty(BLOCK, np.float32)
        self.block = Block(labels, rows, ends, squares, factors)
        self._ready()

    def _workspace(self) -> tuple[Floats, Indices]:
        table, floats = layout(self.network.sizes, training=True)
        return aligned(floats), table

    def _ready(self) -> None:
        self.turn()
        # One lane more than the numbers, since the last row of a layer is read in whole lanes.
        self.scratch = np.zeros((1, padded(self.numbers, 32) + WIDTH), np.float32)

    def load(self, column: int, params: Floats) -> None:
        unpack(self.memory, self.table, column, np.ascontiguousarray(params, np.float32))

    def turn(self) -> None:
        turn(self.memory, self.table, self.crossed)

    def train(self, key: bytes) -> None:
        """Draw batches and noise from ``key``, and take every step."""
        width = words_for(self.numbers) if self.local.private else 0
        chunk = chunk_of(width, self.patients, self.local)
        stream, masks = Keystream(derive(key, "noise")), Keystream(derive(key, "dropout"))
        words = np.empty((chunk, width), np.uint32)
        for picks, ends in batches(self.patients, self.local, derive(key, "sampling"), chunk):
            drawn = words[: len(ends)] if width else NO_WORDS
            if width:
                stream.fill(drawn)
            seeds = np.empty(len(ends), np.uint64)
            masks.fill(seeds)
            self.run(picks, ends, drawn, self.scratch, seeds)

    def run(self, picks: Indices, ends: Indices, words: Words, noise: Floats, seeds: Seeds) -> None:
        """Take the steps of ``ends``; ``seeds`` are for dropout."""
        place = self.memory, self.table
        run(*place, self.data, picks, ends, words, noise, self.rule, self.block)

    def params(self, column: int = W) -> Floats:
        out = np.empty(self.network.n_params, np.float32)
        pack(self.memory, self.table, column, out)
        return out
