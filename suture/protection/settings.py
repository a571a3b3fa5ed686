"""What a study says about how the server puts updates together: the ``[protection]`` table."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from suture.protection.terms import THRESHOLD

NORM_BOUND = 100.0
"""The norm bound of a masked mean where the study states none: far above any update, so it only sets the grid."""


class ProtectionSpec(BaseModel):
    """How updates become one: summed by a party trusted not to look, summed under masks, or aggregated robustly."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sum: Literal["trusted", "masked"] = "trusted"
    threshold: float = Field(default=THRESHOLD, ge=0.5, lt=1)
    """Masked: more than this share of a round's sites must stay to the end, or nothing is opened."""
    word: Literal[32, 64] = 32
    """Masked: bits of a word of a mean."""
    norm_bound: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """The most an update may be in L2 norm; longer ones are shortened."""
    aggregation: Literal["mean", "median", "trimmed-mean", "krum"] = "mean"
    wrong: int = Field(default=1, ge=0)
    """Trimmed mean and Krum: how many hostile sites are reckoned with."""
    keep: int = Field(default=1, ge=1)
    """Krum: how many of the best updates are averaged (multi-Krum)."""

    @model_validator(mode="after")
    def _not_both(self) -> ProtectionSpec:
        if self.sum == "masked" and self.aggregation != "mean":
            raise ValueError(
                f'sum = "masked" and aggregation = "{self.aggregation}" exclude each other: robust aggregation compares the '
                'sites\' updates, which masks hide. Take aggregation = "mean" with norm_bound = 1.0 (a norm-bounded secure '
                'sum: the software of each site shortens its update), or sum = "trusted"'
            )
        return self

    @property
    def plain(self) -> bool:
        """True where the study asks for nothing but the usual mean."""
        return self.sum == "trusted" and self.aggregation == "mean" and self.norm_bound is None
