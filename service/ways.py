"""The ways to rank: by the index, by a version, or by both; versions rank in threads (``pool.py``)."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from core.errors import InvalidInstance, NotReady
from core.serving import BLEND, LIVE, Serving
from service.model_replica import ModelReplica
from service.pool import Pool
from service.ranking import Asked, Labels, Way, listed, rank_all
from service.schemas import ClassifyRequest
from service.shelf import ServingParams, Shelf
from service.timer import Timer

KINDS = ("version", BLEND)


class Ways:
    """What ``version=`` of a request picks from.

    Attributes
    ----------
    timers : dict of Timer by kind
        Seconds of ranking, one a turn of a thread: by versions, and where there was a blend among them.
    """

    def __init__(self, shelf: Shelf, params: ServingParams) -> None:
        self._shelf = shelf
        self._pool: Pool[Asked, Labels] = Pool(self._ranked, params.threads, params.waiting)
        self.timers = {kind: Timer() for kind in KINDS}

    def close(self) -> None:
        """Rank no more."""
        self._pool.close()

    async def of(self, model: ModelReplica, request: ClassifyRequest) -> Way | None:
        """By what to rank; None: by the index.

        Does not wait where the request leaves it to what is active, or asks for a blend with it: the way is that of
        the model's present offset.

        Raises
        ------
        UnknownVersion
            The model has no such version.
        InvalidInstance
            Reasons are asked for (field ``explain``) of a version that is named, or ``min_probability`` of any, and
            there are none.
        NoRoom, Damaged, UnknownApplyVersion, ArtifactsUnavailable, StoreUnavailable
            It cannot be loaded.
        """
        version = request.version
        serving = model.live.serving
        if version == LIVE or (serving.is_live and version in (None, BLEND)):
            return None
        if request.explain and version is not None:
            raise InvalidInstance(
                "explain tells what features did for a score of the index: ask for the version live. The scores of "
                "other versions are no sums over features",
                "explain",
            )
        if request.min_probability is not None:
            raise InvalidInstance(
                "min_probability is of the index alone: ask for the version live. The scores of other versions, and of "
                "a blend, are no probabilities",
                "min_probability",
            )
        if version is None or version == BLEND:
            return self._active(model, serving, version == BLEND)
        return Way(await self._shelf.get(model, version))

    def is_still(self, model: ModelReplica, request: ClassifyRequest, serving: Serving) -> bool:
        """Whether what was active when a way was found still is, as far as the request leaves it to that."""
        return request.version not in (None, BLEND) or model.live.serving is serving

    def ask(self, model: ModelReplica, way: Way, vector: bytes, request: ClassifyRequest) -> Asked:
        """One instance, with what is of the model's present state."""
        live = None
        if way.weights is not None:
            live = listed(model.live, vector, request.k, request.include, request.exclude)
        return Asked(way, vector, request.k, request.include, request.exclude, request.threshold, model.offset, live)

    async def rank(self, asked: Sequence[Asked], patient: bool = False) -> list[Labels]:
        """The labels for each; ``patient``: wait for a thread however long it takes. Overloaded."""
        return await self._pool.run(asked, patient)

    def _ranked(self, asked: Sequence[Asked]) -> list[Labels]:
        """In a thread."""
        began = perf_counter()
        labels = rank_all(asked)
        kind = KINDS[any(one.way.weights is not None for one in asked)]
        self.timers[kind].note(perf_counter() - began)
        return labels

    def _active(self, model: ModelReplica, serving: Serving, blended: bool) -> Way:
        loaded = self._shelf.loaded(model, serving.version)
        if loaded is None:
            raise NotReady(f"the version {serving.version} of {model.name} is being loaded")
        return Way(loaded, serving.weights if blended else None)
