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

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator

from abound.core.errors import NoRoom, Overloaded
from abound.service.model.replicated_model import ModelReplica
from abound.service.processes.memory import memory_of_models

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
        self._expected: dict[object, tuple[str, int]] = {}
        self._looked: dict[str, tuple[float, int]] = {}

    @classmethod
    def of(cls, most: int | None, processes: int) -> Budget:
        """With ``most`` bytes; None: what so many processes may take that have the machine for themselves."""
        return cls(memory_of_models(processes) if most is None else most)

    def observe(self, models: Iterable[ModelReplica]) -> None:
        """Take the sizes of all models and of the indexes that are prepared for them, once in a while.

        They also grow by what others teach them.
        """
        models = list(models)
        self._sizes = {model.name: model.live.n_bytes + model.n_loaded_bytes for model in models}
        self._shadows = {model.name: model.n_shadow_bytes for model in models}
        self._total = sum(self._sizes.values())

    @contextlib.contextmanager
    def expecting(self, name: str, models: Callable[[], Iterable[ModelReplica]]) -> Iterator[Callable[[int], None]]:
        """Room for a model that comes from elsewhere, as long as the context lasts.

        What it gives is to be told how many bytes the model takes, whenever more is known of that, before anything is
        changed. NoRoom when all that ``models`` gives, what is being prepared and what else is expected, leave less.
        """
        this = object()

        def expect(n_bytes: int) -> None:
            self._expected.pop(this, None)
            there = list(models())
            self.observe(there)
            taken, preparing = sum(size_of(model) for model in there), self._preparing()
            if self.most is not None and taken + preparing + n_bytes > self.most:
                also = f", what is being prepared needs {preparing}" if preparing else ""
                raise NoRoom(
                    f"the model {name} needs {n_bytes} bytes of memory, and those that there are need {taken} to grow"
                    f"{also}: {taken + preparing + n_bytes} bytes, of at most {self.most} (ABOUND_MAX_MEMORY); nothing "
                    "was changed"
                )
            self._expected[this] = (name, n_bytes)

        try:
            yield expect
        finally:
            self._expected.pop(this, None)
            self.observe(models())

    def _preparing(self) -> int:
        """Bytes of the indexes that are being prepared and of what is expected, which becomes one of these."""
        expected: dict[str, int] = {}
        for name, n_bytes in self._expected.values():
            expected[name] = expected.get(name, 0) + n_bytes
        return sum(max(self._shadows.get(name, 0), expected.get(name, 0)) for name in {*self._shadows, *expected})

    def check(self, model: ModelReplica) -> None:
        """NoRoom when the model, or all models together, may not grow; Overloaded when they may before long."""
        bound = model.live.config.max_memory
        if bound is None and self.most is None:
            return
        looked, size = self._looked.get(model.name, (0.0, 0))
        now = time.monotonic()
        if now - looked > LOOK_SECONDS or (bound is not None and 2 * size > bound):
            size = size_of(model)
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
        preparing = self._preparing()
        if self.most is not None and self._total + preparing > self.most:
            raise Overloaded(
                f"the models of this replica and the index that is being prepared need {self._total + preparing} bytes "
                f"of memory, of at most {self.most} (ABOUND_MAX_MEMORY); nothing was learned",
                PREPARING_RETRY_SECONDS,
            )


def size_of(model: ModelReplica) -> int:
    """Bytes of memory of a model, with what growing will take next."""
    return model.live.n_bytes + model.live.n_bytes_ahead + model.n_loaded_bytes
