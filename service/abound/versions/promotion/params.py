"""Settings of contests, in a module of their own so that settings import nothing else."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ChallengerParams:
    """Settings of contests.

    Attributes
    ----------
    loaded_bytes : int
        Bytes of the versions of one model that are scored; versions beyond it are not scored, and the stats say so.
    keep_seconds : float
        Seconds between two writes of the standings.
    """

    loaded_bytes: int = 4 * 2**30
    keep_seconds: float = 1.0

    def __post_init__(self) -> None:
        for name in ("loaded_bytes", "keep_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0")
