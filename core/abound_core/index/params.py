"""The parameters of an index, and the same values in the form that its kernels take.

The names of Feature Focus and FSU are those of Madani, Connor and Greiner (JMLR 2009, section 4). The additional
parameters of ``sls`` are explained in ``abound_core.index.sls_kernels`` and ``abound_core.index.sls_rows_kernels``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from abound_core.config import ModelConfig
from abound_core.index import sls_kernels as sls
from abound_core.index import sls_rows_kernels as sls_rows
from abound_core.index.layout_kernels import KernelParams, SquaresParams


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexParams:
    """The parameters of an index. The fields are those of ``ModelConfig``, which checks their ranges.

    ``vote_min``, the least weight with which a connection votes, is a field of the batch method ``ff`` alone.
    """

    w_min: float
    d_max: int
    margin: float
    leak: bool
    rating: bool
    memory: float | None
    vote_min: float = 0.0
    update: Literal["fsu", "sls"] = "fsu"
    eta: float = 0.6
    recovery: float = 0.15
    slots: int = 64
    idf: bool = True
    rows: bool = False
    implicit: float = 0.0

    @classmethod
    def of(cls, config: ModelConfig) -> IndexParams:
        return cls(
            w_min=config.w_min,
            d_max=config.d_max,
            margin=config.margin,
            leak=config.leak,
            rating=config.rating,
            memory=config.memory,
            update=config.update,
            eta=config.eta,
            recovery=config.recovery,
            slots=config.slots,
            idf=config.idf,
            rows=config.rows,
            implicit=config.implicit,
        )

    def for_kernels(self) -> KernelParams:
        memory = math.inf if self.memory is None else float(self.memory)
        is_squares = self.update == "sls"
        return (SquaresParams if is_squares else KernelParams)(
            w_min=float(self.w_min),
            d_max=np.uint64(self.slots if is_squares else self.d_max),
            margin=float(self.margin),
            leak=self.leak,
            rating=self.rating,
            memory=memory,
            squares=is_squares,
            slots=np.uint64(self.slots),
            eta=float(self.eta),
            recovery=float(self.recovery),
            floor=sls.FLOOR,
            negatives=np.uint64(sls.NEGATIVES),
            theta_negative=sls.THETA_NEGATIVE,
            theta_insert=sls.THETA_INSERT,
            idf=self.idf,
            reach=sls.REACH,
            least_weight=sls.LEAST_WEIGHT,
            shared=np.uint64(sls.SHARED),
            most_cells=np.uint64(sls_rows.MOST_CELLS if is_squares and self.rows else 0),
            vote_min=float(self.vote_min),
            implicit=float(self.implicit),
        )
