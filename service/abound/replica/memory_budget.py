"""Memory budget: bounds the memory of a replica's models by refusing to learn.

Each model has its ``max_memory``, if its configuration sets one; the process has a bound for all models together. The
check uses the replica's own state plus the next growth of its tables. So a bound is exceeded at most by the events
already on their way through the log. Entries in the log are always applied.

A model that its own bound stops does not grow. So only the memory that it holds counts among all models, and its
next growth does not stop the others.

A model that is loaded to replace another one counts towards the bound of all models, even before it is loaded, so
that both fit. It does not count towards the model's own bound, which is for the final state.

A model does not shrink by waiting. So the refusal is 507, which clients do not retry. It ends when the bound is
raised, another model is deleted, or ``max_features`` evicts old features. If only a model that is about to replace
another one exceeds the bound, waiting does help, and the refusal is 503.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator

from abound.processes.memory import default_models_memory
from abound.state.replicated_model import ReplicatedModel
from abound_core.errors import MemoryLimitExceeded, Overloaded

LOOK_SECONDS = 0.01  # most age of the size that ``check`` uses, below half of the bounds

PREPARING_RETRY_SECONDS = 5.0


class MemoryBudget:
    """The memory of one process; ``most``: bytes of all models, None without a bound."""

    def __init__(self, most: int | None) -> None:
        self.most = most
        self._total = 0
        self._sizes: dict[str, int] = {}
        self._coming_bytes: dict[str, int] = {}
        self._expected: dict[object, tuple[str, int]] = {}
        self._looked: dict[str, tuple[float, int]] = {}

    @classmethod
    def for_machine(cls, most: int | None, processes: int) -> MemoryBudget:
        """Return a budget of ``most`` bytes; None: the share of one of ``processes`` replicas of the machine."""
        return cls(default_models_memory(processes) if most is None else most)

    def update_sizes(self, models: Iterable[ReplicatedModel]) -> None:
        """Update the sizes; call it regularly, since models also grow by events from other replicas."""
        models = list(models)
        self._sizes = {model.name: _counted_bytes(model, needed_bytes(model)) for model in models}
        self._coming_bytes = {model.name: model.n_coming_bytes for model in models}
        self._total = sum(self._sizes.values())

    @contextlib.contextmanager
    def reserve(self, name: str, models: Callable[[], Iterable[ReplicatedModel]]) -> Iterator[Callable[[int], None]]:
        """Reserve memory for an incoming model, for the duration of the context.

        The context yields a function. Call it with the model's size in bytes whenever a better estimate is known,
        before anything is changed. It raises MemoryLimitExceeded when the models, those that are about to
        replace one, and other reservations leave less.
        """
        this = object()

        def expect(n_bytes: int) -> None:
            self._expected.pop(this, None)
            self.update_sizes(models())
            taken, preparing = self._total, self._preparing()
            if self.most is not None and taken + preparing + n_bytes > self.most:
                also = f", states that are being prepared need {preparing}" if preparing else ""
                raise MemoryLimitExceeded(
                    f"the model {name} needs {n_bytes} bytes of memory, and the existing models need {taken} to grow"
                    f"{also}: {taken + preparing + n_bytes} bytes, of at most {self.most} (ABOUND_MAX_MEMORY); nothing "
                    "was changed"
                )
            self._expected[this] = (name, n_bytes)

        try:
            yield expect
        finally:
            self._expected.pop(this, None)
            self.update_sizes(models())

    def _preparing(self) -> int:
        """Return the bytes of models that are about to replace one, loaded or reserved."""
        expected: dict[str, int] = {}
        for name, n_bytes in self._expected.values():
            expected[name] = expected.get(name, 0) + n_bytes
        return sum(
            max(self._coming_bytes.get(name, 0), expected.get(name, 0)) for name in {*self._coming_bytes, *expected}
        )

    def check(self, model: ReplicatedModel, models: Callable[[], Iterable[ReplicatedModel]]) -> None:
        """Raise MemoryLimitExceeded when the model, or all models, may not grow; Overloaded if only for now."""
        bound = model.live.config.max_memory
        if bound is None and self.most is None:
            return
        looked, size = self._looked.get(model.name, (0.0, 0))
        now = time.monotonic()
        is_near = (bound is not None and 2 * size > bound) or (self.most is not None and 2 * self._total > self.most)
        if is_near or now - looked > LOOK_SECONDS:
            if any(there.name not in self._sizes for there in models()):
                self.update_sizes(models())  # models that were created, and have not learned
            size = needed_bytes(model)
            self._looked[model.name] = (now, size)
            counted = _counted_bytes(model, size)
            self._total += counted - self._sizes.get(model.name, 0)
            self._sizes[model.name] = counted
            self._coming_bytes[model.name] = model.n_coming_bytes
        if bound is not None and size > bound:
            raise MemoryLimitExceeded(
                f"the model needs {size} bytes of memory to grow, of at most {bound} (its max_memory); nothing was "
                "learned. Raise it, or set max_features"
            )
        if self.most is not None and self._total > self.most:
            for deleted in self._sizes.keys() - {there.name for there in models()}:
                self._total -= self._sizes.pop(deleted)
        if self.most is not None and self._total > self.most:
            raise MemoryLimitExceeded(
                f"the models of this replica need {self._total} bytes of memory to grow, of at most {self.most} "
                "(ABOUND_MAX_MEMORY); nothing was learned"
            )
        preparing = self._preparing()
        if self.most is not None and self._total + preparing > self.most:
            raise Overloaded(
                f"the models of this replica and the state that is being prepared need {self._total + preparing} bytes "
                f"of memory, of at most {self.most} (ABOUND_MAX_MEMORY); nothing was learned",
                PREPARING_RETRY_SECONDS,
            )


def needed_bytes(model: ReplicatedModel) -> int:
    return model.live.n_bytes + model.live.growth_bytes + model.n_loaded_bytes


def _counted_bytes(model: ReplicatedModel, needed: int) -> int:
    """Return the bytes that a model counts among all models: what it needs, or holds if it may not grow."""
    bound = model.live.config.max_memory
    return needed if bound is None or needed <= bound else model.live.n_bytes + model.n_loaded_bytes
