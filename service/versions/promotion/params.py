"""The parameters of contests, without what follows them: settings and the worker need no more."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ContendingParams:
    """How contenders are followed.

    Attributes
    ----------
    drift : bool
        Follow models without contenders as well, for their drift marks.
    memory : int
        Bytes of their indexes, all together; larger ones are followed only when something contends.
    loaded_bytes : int
        Bytes of the versions of a model that are scored; what goes beyond is not, and the stats say so.
    weigh_every : int
        Scored instances between two changes of the blend's weights.
    keep_seconds : float
        Between two writings of the standing.
    lag_seconds : float
        Behind by more than this, fewer instances are scored.
    """

    drift: bool = True
    memory: int = 2**30
    loaded_bytes: int = 4 * 2**30
    weigh_every: int = 250
    keep_seconds: float = 1.0
    lag_seconds: float = 2.0

    def __post_init__(self) -> None:
        for name in ("memory", "loaded_bytes", "weigh_every", "keep_seconds", "lag_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0")
