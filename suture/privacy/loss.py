"""Privacy loss distributions: composed on a grid, rounded so that every figure is an upper bound.

A pair of neighbouring tables gives a step's privacy loss L = ln(P/Q), a random number under P; steps add up, so the
distribution of the total is a convolution, and (epsilon, delta) is read off its tail (Koskela, Jalko & Honkela 2020;
Doroshenko, Ghazi, Kamath, Kumar & Manurangsi 2022, "Connect the Dots", Algorithm 1). Both directions, adding and
removing the patient, are composed and the worse one counts; for Poisson sampling the dominating pairs are those of
Zhu, Dong & Wang 2022, Theorem 11. Results agree with ``dp_accounting.pld`` (tests/contracts) and are some ten times
faster, because

- the grid is as coarse as the step allows. The mass of a grid cell is split between the cell's two ends such that its
  probability under P *and* under Q is kept; the split pair dominates the true one, so the figure only ever errs
  upwards. It adds at most h^2/6 to a step's variance and half of that to its mean. With h a tenth of the step's own
  scale sqrt(2 KL), that is about 0.1 % of epsilon, whatever the number of steps; and since h does not depend on that
  number, more steps never come out cheaper.
- the composition is one FFT, whose window is the Chernoff bound of the sum; what falls outside (under 1e-15) counts
  as infinite loss.

Rounding of the FFT itself is of the order of (number of steps) x 1e-16 of *probability*; `LossTail.slack` bounds it
and is taken off delta before epsilon is read, so it can only cost, never flatter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import fft, special

from suture.privacy.events import GAUSSIAN, LAPLACE, NormalForm, Step

Floats = NDArray[np.float64]

_RESOLUTION = 0.1  # grid width as a share of the step's own scale
_REACH = 9.5  # standard deviations kept on each side of a Gaussian: 1e-21 of mass lies beyond
_MAX_CELLS = 1 << 17  # of one step: bounds time and memory whatever the events
_MAX_WINDOW = 1 << 22  # of a composition
_TAIL = 1e-15
_CHERNOFF_ORDERS = np.array([0.05, 0.1, 0.2, 0.4, 0.7, 1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16])


@dataclass(frozen=True)
class LossTail:
    """The part of a composed loss above zero, for one direction: enough to read any (epsilon, delta) with epsilon >= 0.

    ``upper[j]`` is the probability under P of a loss above ``losses[j]`` (infinity included), ``lower[j]`` under Q.
    """

    losses: Floats
    upper: Floats
    lower: Floats
    slack: float

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon at this delta, or infinity when the tail does not get that small."""
        target = delta - self.slack
        # delta(l_j) = P(L > l_j) - e^{l_j} Q(L > l_j): the hockey-stick divergence, decreasing in j.
        stick = self.upper - np.exp(np.minimum(self.losses, 700.0)) * self.lower
        above = np.flatnonzero(stick > target)
        if not len(above):
            return 0.0
        j = int(above[-1])
        if j + 1 == len(self.losses):
            return math.inf
        ceiling = float(self.losses[j + 1])
        if self.lower[j] <= 0:  # e^{-loss} underflowed: round up to the next grid point
            return ceiling
        return min(ceiling, math.log(self.upper[j] - target) - math.log(self.lower[j]))


@dataclass(frozen=True)
class _Grid:
    """A step's loss on grid points ``h * (start + i)``, with the mass that counts as infinite."""

    start: int
    mass: Floats
    infinite: float


@lru_cache(maxsize=24)
def loss_tails(form: NormalForm) -> tuple[LossTail, LossTail]:
    """The composed loss of all steps, removing a patient and adding one.

    >>> remove, add = loss_tails(((Step(GAUSSIAN, 1.0, 0.01), 1000),))
    >>> round(remove.epsilon(1e-5), 2), round(add.epsilon(1e-5), 2)
    (1.83, 1.42)
    """
    parts = _merge_gaussians(form)
    scales = [_scale_and_span(step) for step, _ in parts]
    # The finest step sets the grid, unless another's losses reach too far for that: coarser is dearer, never cheaper.
    h = max(_RESOLUTION * min(scale for scale, _ in scales), max(span for _, span in scales) / _MAX_CELLS)
    atoms = [1 / step.noise for step, _ in parts if step.kind == LAPLACE]
    if atoms and max(atoms) > h:  # half of a Laplace step's mass sits at +-1/b: make that a point of the grid
        h = max(atoms) / math.ceil(max(atoms) / h)
    while True:
        grids = [(_grids(step, h), count) for step, count in parts]
        tails = [_convolve([(pair[i], count) for pair, count in grids], h) for i in range(2)]
        if tails[0] is not None and tails[1] is not None:
            return tails[0], tails[1]
        h *= 2.0


def _merge_gaussians(form: NormalForm) -> list[tuple[Step, int]]:
    """Gaussian releases without sampling are one Gaussian release: 1/sigma^2 adds up (exact)."""
    precision = sum(count / step.noise**2 for step, count in form if step.kind == GAUSSIAN and step.rate == 1)
    parts = [(step, count) for step, count in form if not (step.kind == GAUSSIAN and step.rate == 1)]
    return [*parts, (Step(GAUSSIAN, 1 / math.sqrt(precision), 1.0), 1)] if precision else parts


def _scale_and_span(step: Step) -> tuple[float, float]:
    """A step's scale, sqrt(2 KL) in the smaller of the two directions, and how far its losses reach from end to end."""
    if step.kind == LAPLACE:
        pure = 1 / step.noise
        kl = pure + math.expm1(-pure) if pure > 1e-4 else pure**2 / 2
        span = 2 * pure
    else:
        z = np.linspace(-_REACH * step.noise, 1 + _REACH * step.noise, 4001)
        loss = loss_at(z, step)
        plain = np.exp(-0.5 * (z / step.noise) ** 2) / (step.noise * math.sqrt(2 * math.pi)) * (z[1] - z[0])
        # Q ln(Q/P) and P ln(P/Q) = Q e^L L. Both are sums of non-negative terms once 1 - P/Q is added, which integrates
        # to nothing: without it, small sampling rates would cancel to rounding error.
        ratio = np.expm1(loss)
        with np.errstate(over="ignore", invalid="ignore"):
            forward = np.sum(plain * ((1 + ratio) * loss - ratio))
        kl = min(float(np.sum(plain * (ratio - loss))), float(forward) if np.isfinite(forward) else math.inf)
        span = float(loss[-1] - loss[0])
    return math.sqrt(2 * max(kl, 0.0)), span


def loss_at(z: Floats, step: Step) -> Floats:
    """ln(P/Q) at ``z`` for P = (1 - q) N(0, s^2) + q N(1, s^2) and Q = N(0, s^2).

    >>> loss_at(np.array([0.5]), Step(GAUSSIAN, 1.0, 0.3))
    array([0.])
    """
    shift = (2 * z - 1) / (2 * step.noise**2)
    if step.rate == 1:
        return np.asarray(shift, np.float64)
    stay = np.minimum(shift, 0.0)
    # ln(1 - q + q e^u): in the form that neither overflows for large u nor cancels for small q.
    small = np.log1p(step.rate * np.expm1(stay))
    return np.where(shift <= 0, small, shift + np.log(step.rate + (1 - step.rate) * np.exp(-np.maximum(shift, 0.0))))


@lru_cache(maxsize=64)
def _grids(step: Step, h: float) -> tuple[_Grid, _Grid]:
    """The step's loss, removing and adding a patient, rounded to the grid by connecting the dots."""
    if step.kind == LAPLACE:
        edge = math.floor(1 / step.noise / h) + 2
        first, last = -edge, edge
        edges = _points(first, last + 1, h)
        with_patient, without = _laplace_cells(edges, step.noise)
    else:
        bounds = loss_at(np.array([-_REACH * step.noise, 1 + _REACH * step.noise]), step)
        first, last = math.floor(bounds[0] / h), math.ceil(bounds[1] / h)
        edges = _points(first, last + 1, h)
        with_patient, without = _gaussian_cells(edges, step)
    # Cells: below the first edge, between edges, above the last.
    remove = _connect_dots(edges, with_patient, without, h, first)
    add = _connect_dots(-edges[::-1], without[::-1], with_patient[::-1], h, -last)
    return remove, add


def _gaussian_cells(edges: Floats, step: Step) -> tuple[Floats, Floats]:
    """Probability of each cell of losses under P (the patient is there) and Q (not)."""
    log_stay = math.log1p(-step.rate) if step.rate < 1 else -math.inf
    with np.errstate(divide="ignore", invalid="ignore"):
        shift = edges - math.log(step.rate) + np.log(-np.expm1(np.minimum(log_stay - edges, 0.0)))
    z = np.concatenate(([-np.inf], step.noise**2 * shift + 0.5, [np.inf]))
    without = _normal_mass(z / step.noise)
    return (1 - step.rate) * without + step.rate * _normal_mass((z - 1) / step.noise), without


def _normal_mass(z: Floats) -> Floats:
    """Standard normal probability between neighbouring points, with full relative accuracy in both tails."""
    left, right = z[:-1], z[1:]
    upper, lower = special.ndtr(-left) - special.ndtr(-right), special.ndtr(right) - special.ndtr(left)
    return np.asarray(np.where(left > 0, upper, lower), np.float64)


def _laplace_cells(edges: Floats, noise: float) -> tuple[Floats, Floats]:
    """The same for Laplace noise: the loss is (|z| - |z - 1|)/b, with atoms at both ends of [-1/b, 1/b]."""
    z = np.clip((noise * edges + 1) / 2, 0.0, 1.0)
    inside = edges >= -1 / noise
    cdf_with = np.where(edges >= 1 / noise, 1.0, np.where(inside, 0.5 * np.exp((z - 1) / noise), 0.0))
    cdf_without = np.where(edges >= 1 / noise, 1.0, np.where(inside, 1 - 0.5 * np.exp(-z / noise), 0.0))
    pad = (np.zeros(1), np.ones(1))
    return np.diff(np.concatenate((pad[0], cdf_with, pad[1]))), np.diff(np.concatenate((pad[0], cdf_without, pad[1])))


def _connect_dots(edges: Floats, p: Floats, q: Floats, h: float, start: int) -> _Grid:
    """Split each cell's mass between its ends, keeping its P and its Q probability (Doroshenko et al., Algorithm 1)."""
    inner, other = p[1:-1], q[1:-1]
    # y at the upper end and x at the lower: x + y = p and x e^{-l} + y e^{-l-h} = q.
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = (inner - other * np.exp(edges[:-1])) / -math.expm1(-h)
    upper = np.where(np.isfinite(wanted), np.clip(wanted, 0.0, inner), inner)
    mass = np.zeros(len(edges))
    mass[1:] += upper
    mass[:-1] += inner - upper
    mass[0] += p[0]  # a lower loss counted as the first grid point: upwards
    return _Grid(start, mass, float(p[-1]))


def _convolve(parts: list[tuple[_Grid, int]], h: float) -> LossTail | None:
    """The sum of all losses, or None when the window would be too long for this grid."""
    low, high = _window(parts)
    size = int(fft.next_fast_len(high - low + 1, real=True))
    if size > _MAX_WINDOW:
        return None
    spectrum = np.ones(size // 2 + 1, np.complex128)
    infinite = _TAIL
    steps = 0
    for grid, count in parts:
        wrapped = np.bincount((grid.start + np.arange(len(grid.mass))) % size, grid.mass, size)
        spectrum *= fft.rfft(wrapped) ** count
        infinite -= math.expm1(count * math.log1p(-grid.infinite))
        steps += count
    mass = np.roll(fft.irfft(spectrum, size), -(low % size))
    np.maximum(mass, 0.0, out=mass)  # a negative rounding error would flatter
    # Only losses of zero and above matter for epsilon >= 0; zero itself is always a point of the tail.
    begin = max(0, -low)
    losses = _points(low + begin, low + size, h)
    mass = mass[begin:]
    if low > 0:
        losses, mass = np.concatenate(([0.0], losses)), np.concatenate(([0.0], mass))
    return LossTail(
        losses=losses,
        upper=_above(mass) + infinite,
        lower=_above(mass * np.exp(-losses)),
        slack=2.3e-16 * steps * math.log2(size),
    )


def _points(first: int, end: int, h: float) -> Floats:
    return np.arange(first, end).astype(np.float64) * h


def _above(mass: Floats) -> Floats:
    """Sums of everything strictly above each grid point, small terms first."""
    return np.append(np.cumsum(mass[::-1])[::-1][1:], 0.0)


def _window(parts: list[tuple[_Grid, int]]) -> tuple[int, int]:
    """Grid indices outside which the sum has at most `_TAIL` of its mass (Chernoff)."""
    # Sums, not dot products: BLAS would start threads, wait for them, and round differently on each machine.
    variance = 0.0
    for grid, count in parts:
        index = np.arange(len(grid.mass))
        first = float(np.sum(grid.mass * index))
        variance += count * max(float(np.sum(grid.mass * (index - first) ** 2)), 0.0)
    scale = math.sqrt(variance) or 1.0
    lows: list[float] = []
    highs: list[float] = []
    for order in _CHERNOFF_ORDERS / scale:
        for sign, bounds in ((1.0, highs), (-1.0, lows)):
            total = math.log(2 / _TAIL)
            for grid, count in parts:
                exponent = sign * order * np.arange(len(grid.mass))
                peak = float(exponent.max())
                log_moment = peak + math.log(float(np.sum(grid.mass * np.exp(exponent - peak))))
                total += count * (log_moment + sign * order * grid.start)
            bounds.append(sign * total / order)
    return math.floor(max(lows)), max(math.ceil(min(highs)), 1)
