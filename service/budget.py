"""Memory: how much the models of a replica may take, and the door that holds learning back before they take more.

Each model has its ``max_memory``, if its configuration gives one, and all of them together have the process's. The
door goes by the replica's own state, with what growing will take next added, so that a bound is not passed by more
than what is on its way through the log. What is in the log is applied whatever it takes.

While an index is being prepared for a model, that counts among all of them, before it is loaded already, so that both
have room. It does not count for the model's own bound, which is what it may take in the end.

A model does not shrink by waiting: the refusal is 507, which clients do not repeat by themselves, and mends itself
when the bound is raised, another model is deleted, or ``max_features`` lets old features go. Where only an index that
is being prepared takes the room, waiting does help, and it is 503.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from core.errors import NoRoom, Overloaded
from service.model_replica import ModelReplica
from service.room import whole_memory

SHARE = 0.8
"""Of the machine's memory that models may take where nothing else is said."""

LOOK_SECONDS = 0.01
"""How old a size may be that the door goes by, for a model that has less than half of its bound."""


PREPARING_RETRY_SECONDS = 5.0


class Budget:
    """The memory of one process.

    Parameters
    ----------
    most : int or None
        Bytes of all models; None: no bound.
    """

    def __init__(self, most: int | None) -> None:
        self.most = most
        self._total = 0
        self._sizes: dict[str, int] = {}
        self._shadows: dict[str, int] = {}
        self._looked: dict[str, tuple[float, int]] = {}

    @classmethod
    def of(cls, most: int | None, processes: int) -> Budget:
        """With ``most`` bytes; None: the usual share of the machine, for each of so many processes."""
        whole = whole_memory()
        if most is None and whole is not None:
            most = int(SHARE * whole / processes)
        return cls(most)

    def observe(self, sizes: Mapping[str, int], shadows: Mapping[str, int]) -> None:
        """Take the sizes of all models and of the indexes that are prepared for them, once in a while.

        They also grow by what others teach them.
        """
        self._sizes, self._shadows = dict(sizes), dict(shadows)
        self._total = sum(sizes.values())

    def check(self, model: ModelReplica) -> None:
        """NoRoom when the model, or all models together, may not grow; Overloaded when they may before long."""
        bound = model.live.config.max_memory
        if bound is None and self.most is None:
            return
        looked, size = self._looked.get(model.name, (0.0, 0))
        now = time.monotonic()
        if now - looked > LOOK_SECONDS or (bound is not None and 2 * size > bound):
            size = model.live.n_bytes + model.live.n_bytes_ahead + model.n_loaded_bytes
            self._looked[model.name] = (now, size)
            self._total += size - self._sizes.get(model.name, 0)
            self._sizes[model.name] = size
            self._shadows[model.name] = model.n_shadow_bytes
        if bound is not None and size > bound:
            raise NoRoom(
                f"the model needs {size} bytes of memory to grow, of at most {bound} (its max_memory); nothing was "
                "learned. Raise it, or set max_features"
            )
        if self.most is not None and self._total > self.most:
            raise NoRoom(
                f"the models of this replica need {self._total} bytes of memory to grow, of at most {self.most} "
                "(ABOUND_MAX_MEMORY); nothing was learned"
            )
        preparing = sum(self._shadows.values())
        if self.most is not None and self._total + preparing > self.most:
            raise Overloaded(
                f"the models of this replica and the index that is being prepared need {self._total + preparing} bytes "
                f"of memory, of at most {self.most} (ABOUND_MAX_MEMORY); nothing was learned",
                PREPARING_RETRY_SECONDS,
            )
