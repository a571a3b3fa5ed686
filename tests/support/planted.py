"""Mechanisms with and without planted bugs, written out here so that the audit is tested on faults
that real code had.

All of them release a sum of per-patient vectors, clipped to norm C = 1, over d = 5 numbers, with
noise multiplier 1.6.
"""

import numpy as np
from dp_accounting import GaussianDpEvent

from suture.attacks.audit import Claim, with_patient
from suture.privacy.noise.source import derive, generator
from suture.privacy.unit import Patients

D, SIGMA, CLIP = 5, 1.6, 1.0
CLAIM = Claim.of(GaussianDpEvent(SIGMA))
"""mu = 0.625: epsilon 2.5 at delta 1e-5."""


def table(patients=32, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(patients, D)).astype(np.float32) * 0.3
    return Patients(x, np.ones(patients, np.int32), np.arange(patients + 1))


ROWS = table()
ONE = np.ones((1, D), np.float32)
OUTLIER = with_patient(ROWS, 40 * ONE / np.sqrt(D), np.ones(1, np.int32))
"""One row, forty times the clip."""
MANY = with_patient(ROWS, np.repeat(40 * ONE, 12, 0), np.ones(12, np.int32))
"""A patient with twelve rows."""


def clipped(v, c=CLIP):
    return v / max(1.0, float(np.linalg.norm(v)) / c)


def per_patient(t):
    return [t.x[a:b].astype(float).sum(0) for a, b in zip(t.starts[:-1], t.starts[1:], strict=True)]


def noise(key, scale=SIGMA * CLIP, size=D):
    return scale * generator(key).standard_normal(size)


# --- correct ---------------------------------------------------------------------------------------------------------
def gaussian_sum(t, key):
    return sum(clipped(v) for v in per_patient(t)) + noise(key)


def two_rounds(t, key):
    """The canary joins for the second of two rounds; each has noise of its own."""
    first = sum(clipped(v) for v in per_patient(ROWS)) + noise(derive(key, 1))
    return {"first": first, "second": gaussian_sum(t, derive(key, 2))}


VOTES, EPS0 = 2, 0.8


def vote_rows(last):
    """A table whose first coordinate sums to -0.5, so that one patient decides its sign."""
    x = np.zeros((9, D), np.float32)
    x[:, 1:] = np.linspace(-1, 1, 9 * (D - 1)).reshape(9, D - 1)
    x[0, 0] = -0.5
    base = Patients(x, np.ones(9, np.int32), np.arange(10))
    return (
        base
        if not last
        else with_patient(base, np.eye(1, D, dtype=np.float32), np.ones(1, np.int32))
    )


VOTE_CLAIM = Claim(VOTES * EPS0, 0.0)
"""k picks by the exponential mechanism with parameter eps0, sensitivity 1 per coordinate: k eps0 in
pure DP."""


def _picks(scores, key):
    """One-shot Gumbel: the k largest of score * eps0 / 2 + Gumbel noise (sensitivity 1)."""
    return np.argsort(-(EPS0 / 2 * scores + generator(key).gumbel(size=len(scores))))[:VOTES]


def signed_votes(t, key):
    """Exponential mechanism over the 2d pairs (coordinate, sign): the sign is part of the private
    choice."""
    g = sum(np.clip(v, -1, 1) for v in per_patient(t))
    out = np.zeros(2 * D)
    out[_picks(np.concatenate([g, -g]), key)] = 1.0
    return out


# --- planted bugs ----------------------------------------------------------------------------------------------------
def unprotected_signs(t, key):
    """VEIL as printed: the coordinate is chosen privately, its sign is sent as it is."""
    g = sum(np.clip(v, -1, 1) for v in per_patient(t))
    out = np.zeros(D)
    chosen = _picks(np.abs(g), key)
    out[chosen] = np.where(g[chosen] >= 0, 1.0, -1.0)
    return out


def clip_after_averaging(t, key):
    """The mean is clipped, not each patient; noise as if one patient moved the mean by C / n."""
    v = per_patient(t)
    return clipped(sum(v) / len(v)) + noise(key, SIGMA * CLIP / len(v))


def noise_over_batch(t, key):
    """The noise is divided by the batch size twice: sum + noise / n."""
    return sum(clipped(v) for v in per_patient(t)) + noise(key) / ROWS.patients


def reused_seed(t, key):
    """Both rounds draw the same noise."""
    first = sum(clipped(v) for v in per_patient(ROWS)) + noise(derive(key, 1))
    return {"first": first, "second": gaussian_sum(t, derive(key, 1))}


def per_record(t, key):
    """Each row is clipped, so that a patient with twelve rows moves the sum by 12 C."""
    return sum(clipped(row.astype(float)) for row in t.x) + noise(key)


def short_seed(key, bits=32):
    """A correct sum whose noise comes from a generator that was given so few bits."""
    seed = int.from_bytes(key[:8], "little") % 2**bits
    return SUM + SIGMA * np.random.Generator(np.random.SFC64(seed)).standard_normal(D)


def full_key(key):
    """The same from 128 secret bits."""
    return SUM + noise(key)


SUM = sum(clipped(v) for v in per_patient(ROWS))

BUGS = {
    "signs unprotected": (unprotected_signs, vote_rows(False), vote_rows(True), VOTE_CLAIM),
    "clip after averaging": (clip_after_averaging, ROWS, OUTLIER, CLAIM),
    "noise divided by batch size": (noise_over_batch, ROWS, OUTLIER, CLAIM),
    "reused noise seed": (reused_seed, ROWS, OUTLIER, CLAIM),
    "per-record clipping, 12 rows": (per_record, ROWS, MANY, CLAIM),
}
CORRECT = {
    "Gaussian sum, outlier": (gaussian_sum, ROWS, OUTLIER, CLAIM),
    "Gaussian sum, 12 rows": (gaussian_sum, ROWS, MANY, CLAIM),
    "two rounds, fresh noise": (two_rounds, ROWS, OUTLIER, CLAIM),
    "signed votes": (signed_votes, vote_rows(False), vote_rows(True), VOTE_CLAIM),
}
