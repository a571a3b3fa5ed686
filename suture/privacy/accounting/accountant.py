"""Accountants: what a composition of events costs, as epsilon at a given delta.

Neighbours are tables that differ by one patient with all of the patient's rows (``unit.py``). All
three accountants give upper bounds:

- ``pld``: privacy loss distributions, the tightest. A pair of neighbouring tables gives a step's
  privacy loss L = ln(P/Q), a random number under P. Steps add up, so the total's distribution is a
  convolution, and (epsilon, delta) is read off its tail (Koskela, Jalko & Honkela 2020; Doroshenko,
  Ghazi, Kamath, Kumar & Manurangsi 2022, "Connect the Dots", Algorithm 1). Both directions, adding
  and removing the patient, are composed, and the worse one counts; the dominating pairs under
  Poisson sampling are those of Zhu, Dong & Wang 2022, Theorem 11. Gaussian releases without
  sampling have an exact formula (Balle & Wang 2018, Theorem 8), which is used instead. A zCDP event
  bounds Renyi divergences and states no distribution, so a composition that holds one is accounted
  by ``rdp`` as a whole.
- ``rdp``: Renyi divergences of the sampled Gaussian (Mironov, Talwar & Zhang 2019, Section 3 and
  Theorem 5), of Laplace (Mironov 2017, Proposition 6) and of rho-zCDP (rho times the order: Bun &
  Steinke 2016, Definition 1.1), added up and converted by Canonne, Kamath & Steinke 2020,
  Proposition 12. The sampled Gaussian is integrated numerically: the series of ``dp_accounting``
  does not converge below sigma = 0.6 at the orders that matter there (at sigma = 0.5 and 1,270
  patients it gives 283.5 instead of 229.2).
- ``basic``: the basic composition theorem (Dwork & Roth 2014, Theorem 3.16). Each of T steps is
  (epsilon_i, delta/T)-DP by Balle & Wang's formula, amplified by Poisson sampling (Balle, Barthe &
  Gaboardi 2018, Theorem 8: (epsilon, delta) becomes (ln(1 + q(e^epsilon - 1)), q delta), which is
  tight); the epsilon_i add up. Loose by orders of magnitude, and shown for comparison.

``pld`` agrees with ``dp_accounting.pld`` (tests/contracts) and is about ten times faster:

- The grid is as coarse as the step allows. A cell's mass is split between its two ends such that
  its probability under P *and* under Q is kept; the split pair dominates the true one, so the
  figure only errs upwards. The split adds at most h^2/6 to a step's variance and half of that to
  its mean. With h a tenth of the step's own scale sqrt(2 KL), that is about 0.1 % of epsilon for
  any number of steps; as h does not depend on that number, more steps never come out cheaper.
- The composition is one FFT whose window is the Chernoff bound of the sum; what falls outside
  (under 1e-15) counts as infinite loss. The FFT's own rounding is of the order of (number of steps)
  x 1e-16 of *probability*; `LossTail.slack` bounds it and is subtracted from delta before epsilon
  is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from dp_accounting.dp_event import DpEvent
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from dp_accounting.rdp import rdp_privacy_accountant as library
from numpy.typing import NDArray
from scipy import fft, optimize, special

from suture.errors import StudyError
from suture.privacy.accounting.events import (
    GAUSSIAN,
    LAPLACE,
    NON_PRIVATE,
    ZCDP,
    NormalForm,
    Step,
    as_event,
    normal_form,
)

Floats = NDArray[np.float64]
ACCOUNTANTS = ("pld", "rdp", "basic")
EXACT = "gaussian"
"""What a figure of Gaussian releases without sampling rests on: their exact composition."""

_FEW, _MANY = 1 + np.geomspace(0.011, 1.4, 100), [64, 96, 128, 192, 256, 512, 1024]
_ORDERS = np.concatenate((_FEW, np.arange(2.5, 12, 0.1), np.arange(12, 64), _MANY))
"""The conversion ignores orders up to 1.01. Small orders serve large epsilons, large ones small."""


def epsilon(event: DpEvent, delta: float, accountant: str = "pld") -> float:
    """The epsilon of an event at this delta: 0 for nothing, infinity for what is not private.

    >>> from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    >>> event = SelfComposedDpEvent(PoissonSampledDpEvent(32 / 1270, GaussianDpEvent(1.0)), 500 * 40)
    >>> [round(epsilon(event, 1e-5, accountant), 1) for accountant in ("pld", "rdp")]
    [30.0, 31.9]
    """
    return epsilon_of(normal_form(event), delta, accountant)


def epsilon_of(form: NormalForm, delta: float, accountant: str = "pld") -> float:
    """The same for an event in normal form."""
    if accountant not in ACCOUNTANTS:
        raise StudyError(
            f"expected an accountant of {', '.join(ACCOUNTANTS)}; found {accountant!r}"
        )
    check_delta(delta)
    return _epsilon(form, float(delta), accountant)


def check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise StudyError(
            f"expected delta between 0 and 1, found {delta}; 1e-5 is usual, well under 1/patients"
        )


def delta_for(event: DpEvent, budget: float, accountant: str = "pld") -> float:
    """The smallest delta at which the event costs at most ``budget``: three figures, rounded up.

    >>> from dp_accounting import GaussianDpEvent
    >>> delta_for(GaussianDpEvent(1.0), 4.378, "pld")
    9.97e-06
    """
    form = normal_form(event)
    low, high = -12.0, 0.0  # powers of ten; below 1e-12 floating point means nothing
    if epsilon_of(form, 1 - 1e-12, accountant) > budget:
        return 1.0
    if epsilon_of(form, 10**low, accountant) <= budget:
        return float(10**low)
    while high - low > 1e-4:
        middle = (low + high) / 2
        if epsilon_of(form, 10**middle, accountant) <= budget:
            high = middle
        else:
            low = middle
    unit = 10.0 ** (math.floor(high) - 2)
    return min(1.0, float(f"{math.ceil(10**high / unit * (1 - 1e-12)) * unit:.3g}"))


@lru_cache(maxsize=8192)
def _epsilon(form: NormalForm, delta: float, accountant: str) -> float:
    if not form:
        return 0.0
    if any(step.kind == NON_PRIVATE for step, _ in form):
        return math.inf
    way = proof_of(form, delta, accountant)
    if way == "rdp":
        return _renyi(form, delta)
    if way == "basic":
        steps = sum(count for _, count in form)
        return float(sum(count * _one_step(step, delta / steps) for step, count in form))
    if way == EXACT:
        return _gaussian(sum(count / step.noise**2 for step, count in form) ** -0.5, delta)
    return max(tail.epsilon(delta) for tail in loss_tails(form))


def proof_of(form: NormalForm, delta: float, accountant: str) -> str:
    """Which theorem an accountant's figure rests on: itself, and for ``pld`` also `EXACT` or "rdp".

    >>> proof_of(((Step(GAUSSIAN, 2.0, 1.0), 5),), 1e-5, "pld"), proof_of(((Step(ZCDP, 0.1, 1.0), 2),), 1e-5, "pld")
    ('gaussian', 'rdp')
    """
    kinds = {step.kind for step, _ in form}
    if accountant != "pld" or NON_PRIVATE in kinds:
        return accountant
    if ZCDP in kinds:
        return "rdp"
    if all(step.kind == GAUSSIAN and step.rate == 1 for step, _ in form):
        return EXACT
    # With too many steps the FFT's rounding could exceed delta; RDP has no such limit.
    return "rdp" if max(tail.slack for tail in loss_tails(form)) > delta / 2 else "pld"


def _gaussian(noise: float, delta: float) -> float:
    """Balle & Wang 2018, Theorem 8."""
    with np.errstate(divide="ignore"):  # the search passes through deltas too small for a float
        return float(get_epsilon_gaussian(noise, delta))


def _one_step(step: Step, delta: float) -> float:
    if step.kind == ZCDP:
        return _renyi(((step, 1),), delta)
    inner = min(delta / step.rate, 1.0)
    if inner >= 1:
        return 0.0
    if step.kind == LAPLACE:
        # delta(epsilon) = 1 - exp((epsilon - 1/b)/2) for epsilon up to 1/b.
        return max(0.0, 1 / step.noise + 2 * math.log1p(-inner))
    base = _gaussian(step.noise, inner)
    return base + math.log(step.rate + (1 - step.rate) * math.exp(-base)) if base > 0 else 0.0


def _renyi(form: NormalForm, delta: float) -> float:
    total = sum(count * _renyi_step(step) for step, count in form)
    return float(library.compute_epsilon(_ORDERS, total, delta)[0])


@lru_cache(maxsize=1024)
def _renyi_step(step: Step) -> Floats:
    if step.kind == ZCDP:
        return np.asarray(step.noise * _ORDERS, np.float64)
    if step.kind == GAUSSIAN and step.rate < 1:
        return np.array([_sampled_gaussian(step, order) for order in _ORDERS])
    plain = library.RdpAccountant(orders=_ORDERS)
    plain.compose(as_event(((step, 1),)))
    return np.asarray(plain.rdp, np.float64)


def _sampled_gaussian(step: Step, order: float) -> float:
    """ln E_Q[(P/Q)^order] / (order - 1): the larger direction (Mironov, Talwar & Zhang, Theorem 5).

    The integrand is analytic and its nearest pole lies pi sigma^2 off the real line, so the
    trapezoid rule at this width is exact to rounding.
    """
    width = min(step.noise / 8, step.noise**2 / 1.5)
    if order > 1e5 * width:  # a large order is useless when the noise is this small
        return math.inf
    z = np.arange(-13 * step.noise, order + 13 * step.noise, width)
    loss = loss_at(z, step)
    log_plain = -0.5 * (z / step.noise) ** 2 - math.log(step.noise * math.sqrt(2 * math.pi) / width)
    # E_Q[r^a] - 1 = E_Q[r^a - 1 - a (r - 1)], as E_Q[r] = 1: terms of one sign do not cancel.
    if order * loss[-1] < 30:
        excess = np.expm1(order * loss) - order * np.expm1(loss)
        return math.log1p(float(np.sum(np.exp(log_plain) * excess))) / (order - 1)
    exponent = order * loss + log_plain
    peak = float(exponent.max())
    return (peak + math.log(float(np.sum(np.exp(exponent - peak))))) / (order - 1)


# --- privacy loss distributions ---------------------------------------------------------

_RESOLUTION = 0.1  # grid width as a share of the step's own scale
_REACH = 9.5  # standard deviations kept on each side of a Gaussian: 1e-21 of mass lies beyond
_LARGEST_LOSS = 500.0
"""Above it e^loss is not computed: floats end at about 709."""
_MAX_CELLS = 1 << 17  # of one step: bounds time and memory whatever the events
_MAX_WINDOW = 1 << 22  # of a composition
_TAIL = 1e-15
_CHERNOFF_ORDERS = np.array([0.05, 0.1, 0.2, 0.4, 0.7, 1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16])


@dataclass(frozen=True)
class LossTail:
    """The part of a composed loss above zero, in one direction.

    ``upper[j]`` is the probability under P of a loss above ``losses[j]`` (infinity included);
    ``shrunk[j]`` is that under Q, times e^{losses[j]}: the factor keeps a loss of over 700, whose
    probability under Q no float can hold, as exact as any other.
    """

    losses: Floats
    upper: Floats
    shrunk: Floats
    slack: float

    def delta(self) -> Floats:
        """P(L > l_j) - e^{l_j} Q(L > l_j): the hockey-stick divergence at each loss, falling."""
        return self.upper - self.shrunk

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon at this delta, or infinity when the tail does not get that small."""
        target = delta - self.slack
        above = np.flatnonzero(self.delta() > target)
        if not len(above):
            return 0.0
        j = int(above[-1])
        if j + 1 == len(self.losses):
            return math.inf
        ceiling, floor = float(self.losses[j + 1]), float(self.losses[j])
        if self.shrunk[j] <= 0:  # all that lies above is infinite
            return ceiling
        return min(ceiling, floor + math.log((self.upper[j] - target) / self.shrunk[j]))


@dataclass(frozen=True)
class _Grid:
    """A step's loss at grid points ``h * (start + i)``, and the mass that counts as infinite."""

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
    # The finest step sets the grid, unless another's losses reach too far. A coarser grid only
    # raises the cost.
    finest = _RESOLUTION * min(scale for scale, _ in scales)
    h = max(finest, max(span for _, span in scales) / _MAX_CELLS)
    atom = max((1 / step.noise for step, _ in parts if step.kind == LAPLACE), default=0.0)
    if atom > h:  # half of a Laplace step's mass sits at +-1/b: make that a point of the grid
        h = atom / math.ceil(atom / h)
    while True:
        grids = [(_grids(step, h), count) for step, count in parts]
        tails = [_convolve([(pair[i], count) for pair, count in grids], h) for i in range(2)]
        if tails[0] is not None and tails[1] is not None:
            return tails[0], tails[1]
        h *= 2.0


def _merge_gaussians(form: NormalForm) -> list[tuple[Step, int]]:
    """Gaussian releases without sampling are one Gaussian release: 1/sigma^2 adds up (exact)."""
    plain = [(step, count) for step, count in form if step.kind == GAUSSIAN and step.rate == 1]
    parts = [item for item in form if item not in plain]
    precision = sum(count / step.noise**2 for step, count in plain)
    return [*parts, (Step(GAUSSIAN, 1 / math.sqrt(precision), 1.0), 1)] if precision else parts


def _scale_and_span(step: Step) -> tuple[float, float]:
    """A step's scale, sqrt(2 KL) in the smaller direction, and the span of its losses."""
    if step.kind == LAPLACE:
        pure = 1 / step.noise
        kl = pure + math.expm1(-pure) if pure > 1e-4 else pure**2 / 2
        span = 2 * pure
    else:
        z = np.linspace(-_REACH * step.noise, 1 + _REACH * step.noise, 4001)
        loss, deviation = loss_at(z, step), step.noise * math.sqrt(2 * math.pi)
        exponent = -0.5 * (z / step.noise) ** 2
        plain = np.exp(exponent) / deviation * (z[1] - z[0])
        # Q ln(Q/P) and P ln(P/Q) = Q e^L L. Adding 1 - P/Q, which integrates to nothing, makes all
        # terms non-negative: without it, small sampling rates would cancel to rounding error. Where
        # e^L leaves the range of floats, P = Q e^L is taken whole.
        large = loss > _LARGEST_LOSS
        with_patient = np.exp(np.where(large, exponent + loss, -np.inf)) / deviation * (z[1] - z[0])
        more = np.where(large, with_patient - plain, plain * np.expm1(np.where(large, 0.0, loss)))
        forward = float(np.sum((plain + more) * loss - more))
        backward = float(np.sum(more - plain * loss))
        kl = min(backward, forward)
        span = float(loss[-1] - loss[0])
    return math.sqrt(2 * max(kl, 0.0)), span


def loss_at(z: Floats, step: Step) -> Floats:
    """ln(P/Q) at ``z`` for P = (1 - q) N(0, s^2) + q N(1, s^2) and Q = N(0, s^2)."""
    shift = (2 * z - 1) / (2 * step.noise**2)
    if step.rate == 1:
        return np.asarray(shift, np.float64)
    stay = np.minimum(shift, 0.0)
    # ln(1 - q + q e^u): in the form that neither overflows for large u nor cancels for small q.
    small = np.log1p(step.rate * np.expm1(stay))
    large = shift + np.log(step.rate + (1 - step.rate) * np.exp(-np.maximum(shift, 0.0)))
    return np.where(shift <= 0, small, large)


@lru_cache(maxsize=64)
def _grids(step: Step, h: float) -> tuple[_Grid, _Grid]:
    """The step's loss, removing and adding a patient, rounded to the grid."""
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
    """Standard normal probability between neighbouring points, accurate in both tails."""
    left, right = z[:-1], z[1:]
    upper = special.ndtr(-left) - special.ndtr(-right)
    lower = special.ndtr(right) - special.ndtr(left)
    return np.asarray(np.where(left > 0, upper, lower), np.float64)


def _laplace_cells(edges: Floats, noise: float) -> tuple[Floats, Floats]:
    """The same for Laplace noise: the loss (|z| - |z - 1|)/b has atoms at -1/b and 1/b."""
    z = np.clip((noise * edges + 1) / 2, 0.0, 1.0)

    def cells(inner: Floats) -> Floats:
        below = np.where(edges >= -1 / noise, inner, 0.0)
        return np.diff(np.where(edges >= 1 / noise, 1.0, below), prepend=0.0, append=1.0)

    return cells(0.5 * np.exp((z - 1) / noise)), cells(1 - 0.5 * np.exp(-z / noise))


def _connect_dots(edges: Floats, p: Floats, q: Floats, h: float, start: int) -> _Grid:
    """Split each cell's mass between its ends, keeping both probabilities (Algorithm 1)."""
    inner, other = p[1:-1], q[1:-1]
    # y at the upper end and x at the lower: x + y = p and x e^{-l} + y e^{-l-h} = q.
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = (inner - other * np.exp(edges[:-1])) / -math.expm1(-h)
    upper = np.where(np.isfinite(wanted), np.clip(wanted, 0.0, inner), inner)
    mass = np.zeros(len(edges))
    mass[1:] += upper
    mass[:-1] += inner - upper
    mass[0] += p[0]  # a lower loss counts as the first grid point: rounded upwards
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
    # Only losses of zero and above matter for epsilon >= 0; zero is always a point of the tail.
    begin = max(0, -low)
    losses = _points(low + begin, low + size, h)
    mass = mass[begin:]
    upper, shrunk = _above(mass), _shrunk_above(mass, h)
    if low > 0:
        losses = np.append(0.0, losses)
        upper = np.append(upper[0] + mass[0], upper)
        shrunk = np.append(math.exp(-losses[1]) * (shrunk[0] + mass[0]), shrunk)
    slack = 2.3e-16 * steps * math.log2(size)
    return LossTail(losses, upper + infinite, shrunk, slack)


def _points(first: int, end: int, h: float) -> Floats:
    return np.arange(first, end).astype(np.float64) * h


def _above(mass: Floats) -> Floats:
    """Sums of everything strictly above each grid point, small terms first."""
    return np.append(np.cumsum(mass[::-1])[::-1][1:], 0.0)


def _shrunk_above(mass: Floats, h: float) -> Floats:
    """The same, each term times e^{-its distance}: s_j = e^{-h} (s_{j+1} + mass_{j+1}).

    >>> _shrunk_above(np.array([9.0, 1.0, 1.0]), math.log(2)).round(6)
    array([0.75, 0.5 , 0.  ])
    """
    shrunk, block, after = np.zeros(len(mass)), max(1, int(600 / h)), 0.0
    for end in range(len(mass), 0, -block):  # within a block no power of e leaves a float's range
        start = max(0, end - block)
        far = _points(0, end - start, h)
        whole = np.exp(far) * np.cumsum((mass[start:end] * np.exp(-far))[::-1])[::-1]
        whole += np.exp(far - h * (end - start)) * after
        shrunk[start:end] = math.exp(-h) * np.append(whole[1:], after)
        after = float(whole[0])
    return shrunk


def _window(parts: list[tuple[_Grid, int]]) -> tuple[int, int]:
    """Grid indices outside which the sum has at most `_TAIL` of its mass (Chernoff)."""
    # Sums, not dot products: BLAS would start threads and round differently on each machine.
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
                total_mass = float(np.sum(grid.mass * np.exp(exponent - peak)))
                if total_mass <= 0:  # no mass near the peak: take the largest product instead
                    with np.errstate(divide="ignore"):
                        exponent = exponent + np.log(grid.mass)
                    peak = float(exponent.max())
                    total_mass = float(np.sum(np.exp(exponent - peak)))
                log_moment = peak + math.log(total_mass)
                total += count * (log_moment + sign * order * grid.start)
            bounds.append(sign * total / order)
    return math.floor(max(lows)), max(math.ceil(min(highs)), 1)


# --- one Gaussian release ------------------------------------------------------------------------
#
# Noise N(0, sigma^2) on a figure that one patient moves by at most 1 (divide by the sensitivity
# first). Three ways to say what that is worth:
#
# - classical: sigma = sqrt(2 ln(1.25/delta)) / epsilon (Dwork & Roth 2014, Theorem A.1). The proof
#   covers epsilon < 1 only. At delta = 1e-5 the figure happens to be safe up to a label of about 8.4
#   and is false above: a label of 10 is 10.39 in truth, 16 is 18.9.
# - exact: the release is mu-GDP with mu = 1/sigma, and (epsilon, delta)-DP exactly when
#   delta >= Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2)
#   (Dong, Roth & Su 2022, Corollary 2.13; the same as Balle & Wang 2018, Theorem 8).
# - analytic: the smallest sigma for which that holds (Balle & Wang 2018, Algorithm 1).
#
# Releases compose exactly: mu^2 adds up (Dong, Roth & Su 2022, Corollary 3.3). Figures are never
# rounded in favour of the study: sigma and epsilon are the nearest float at which the promise holds.

CLASSICAL_PROVEN_BELOW = 1.0
"""The classical formula's proof needs epsilon below this."""


def delta_of(epsilon: float, mu: float) -> float:
    """The smallest delta at which a mu-GDP release is (epsilon, delta)-DP."""
    _positive(mu, "mu")
    if mu == math.inf:
        return 1.0
    first = float(special.log_ndtr(mu / 2 - epsilon / mu))
    second = epsilon + float(special.log_ndtr(-mu / 2 - epsilon / mu))
    # e^first - e^second with e^first taken out: the difference of close numbers keeps its digits.
    return min(1.0, math.exp(first) * -math.expm1(min(0.0, second - first)))


def epsilon_of_mu(mu: float, delta: float) -> float:
    """The epsilon of a mu-GDP release at this delta: exact, and rounded up to a float."""
    check_delta(delta)
    if mu == 0:
        return 0.0
    _positive(mu, "mu")
    if delta_of(0.0, mu) <= delta:
        return 0.0
    return _first(lambda epsilon: delta_of(epsilon, mu) - delta, mu * mu / 2 + mu)


def mu_for(epsilon: float, delta: float) -> float:
    """The largest mu whose release is (epsilon, delta)-DP."""
    _positive(epsilon, "epsilon")
    check_delta(delta)
    return 1 / _first(lambda sigma: delta_of(epsilon, 1 / sigma) - delta, 1 / epsilon)


def classical_sigma(epsilon: float, delta: float) -> float:
    """The classical formula's noise for sensitivity 1; proven for epsilon below 1 only.

    >>> round(classical_sigma(1.0, 1e-5), 4)
    4.8448
    """
    _positive(epsilon, "epsilon")
    check_delta(delta)
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def classical_epsilon(sigma: float, delta: float) -> float:
    """The label that the classical formula puts on this noise."""
    return classical_sigma(sigma, delta)  # sigma and epsilon change places: their product is fixed


def analytic_sigma(epsilon: float, delta: float) -> float:
    """The least noise, for sensitivity 1, that is (epsilon, delta)-DP."""
    return 1 / mu_for(epsilon, delta)


def true_epsilon(label: float, delta: float, rounds: int = 1) -> float:
    """The true epsilon of ``rounds`` releases that the classical formula labelled ``label`` each."""
    return epsilon_of_mu(math.sqrt(rounds) / classical_sigma(label, delta), delta)


def _first(excess: Callable[[float], float], start: float) -> float:
    """The smallest float at which a decreasing function is no longer above zero."""
    low, high = 0.0, start
    while excess(high) > 0:
        low, high = high, 2 * high
        if high > 1e9:
            raise StudyError("no finite figure meets this promise: raise epsilon or delta")
    if low == 0.0:
        low = start
        while excess(low) <= 0:
            low /= 2
            if low < 1e-12:
                return low
    root = float(optimize.brentq(excess, low, high, xtol=1e-14, rtol=1e-14))
    while excess(root) > 0:  # the root is close, not exact: step to where the promise holds
        root *= 1 + 1e-14
    return root


def _positive(value: float, name: str) -> None:
    if not value > 0:
        raise StudyError(f"expected {name} above 0, found {value}")
