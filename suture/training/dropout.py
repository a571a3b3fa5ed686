"""Masks of dropout, drawn by a fast counter-based hash: which inputs a row does without in one step.

They do not depend on rows and need no secret: for every fixed draw of them the clipping bound of `affine` holds, hence it
holds for the mixture over draws (docs/interoperability.md).
"""

from __future__ import annotations

import numpy as np

from suture.models.compiled import compiled
from suture.models.forward import A_STRIDE


@compiled
def mix(word):  # type: ignore[no-untyped-def]
    """Steele, Lea, Flood: Fast splittable pseudorandom number generators (2014), the finaliser of SplitMix64."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@compiled
def draw_masks(m, t, masks, rows, seed, dropout):  # type: ignore[no-untyped-def]
    """For every input of every layer 0 with probability ``dropout``, else 1 / (1 - dropout); four from a word."""
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
    """Multiply a block's values by its masks."""
    for r in range(rows):
        values = m[at + r * stride : at + r * stride + size]
        factors = m[mask + r * width : mask + r * width + size]
        for c in range(size):
            values[c] *= factors[c]
