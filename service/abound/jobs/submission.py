"""Submission of jobs through the API of a replica.

Every error that can be known in advance is found here: the method, its parameters, the model.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from abound.artifacts.artifact_store import ArtifactStore
from abound.datasets.repository import DatasetRepository
from abound.jobs.record import KINDS, Job, id_of_key, new_id
from abound.jobs.repository import JobParams, JobRepository
from abound.metrics import JobStatistics
from abound.settings import Settings
from abound.state.replicated_model import ReplicatedModel
from abound.state.schedule import live_workers
from abound.store.client import Store
from abound_core.errors import ArtifactsUnavailable, InvalidInstance, UnknownDataset, UnknownJob, did_you_mean

if TYPE_CHECKING:
    from abound.jobs.methods import JobMethod

HISTORY = "history"


class JobRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """A requested job."""

    method: Annotated[str, Meta(max_length=64, description="A method that `/methods` lists.", examples=["refit"])]
    model: Annotated[str, Meta(max_length=64, description="The model that the job works on.")] = "default"
    params: Annotated[dict[str, Any], Meta(description="Parameters, as the method's JSON Schema defines them.")] = {}
    data: Annotated[str, Meta(max_length=64, description="`history`, or the name of a data set.")] = HISTORY
    activate: Annotated[
        Literal["never", "if_better"], Meta(description="`if_better`: the new version becomes a challenger.")
    ] = "never"


class JobSubmission:
    def __init__(self, settings: Settings, store: Store, artifacts: ArtifactStore | None) -> None:
        self.jobs = JobRepository(store, settings.group(JobParams))
        self._store = store
        self._datasets = DatasetRepository(store)
        self._artifacts = artifacts

    async def submit(
        self, request: JobRequest, model: ReplicatedModel, actor: str | None, key: str | None = None
    ) -> Job:
        """Submit a job. If the idempotency ``key`` was used before, return the job that was submitted then.

        Raises InvalidInstance if the job can never run with these parameters, or if the key was used with a different
        request, and ArtifactsUnavailable.
        """
        if key is not None and (earlier := await self.earlier(request, key)) is not None:
            return earlier
        job_id, body = (new_id(), None) if key is None else (id_of_key(key), _hash(request))
        methods = await load_methods()
        method = methods.get(request.method)
        if method is None:
            known = ", ".join(sorted(methods)) or "none"
            hint = did_you_mean(request.method, methods)
            raise InvalidInstance(
                f"method: there is no {request.method[:64]!r}; choose one of: {known}{hint}", "method"
            )
        params = method.check(request.params)
        if method.check_config is not None:
            method.check_config(params, model.live.config)
        if request.data != HISTORY and not method.data:
            raise InvalidInstance(
                f"data: {request.method} takes no data set; it learns from the model's history", "data"
            )
        if request.activate != "never" and not method.versions:
            raise InvalidInstance(f"activate: {request.method} makes no version that could be activated", "activate")
        dataset = None
        if request.data != HISTORY:
            try:
                dataset = await self._datasets.get(request.data)
            except UnknownDataset as error:
                raise InvalidInstance(f"data: {error}", "data") from None
        if self._artifacts is None:
            raise ArtifactsUnavailable(
                "jobs need an artifact store: set ABOUND_ARTIFACTS_URL to the same value on all hosts"
            )
        await self._artifacts.join(self._store)
        plain = method.to_json(params)
        reason = plain.get("reason")
        job = await self.jobs.submit(
            Job(
                id=job_id,
                state="queued",
                model=model.name,
                origin=model.origin,
                method=request.method,
                kind=method.kind,
                params=plain,
                data=request.data,
                upload=None if dataset is None else dataset.upload,
                activate=request.activate,
                reason=reason if isinstance(reason, str) else None,
                actor=actor,
                config=model.live.config.to_dict(),
                body=body,
            )
        )
        if key is not None:  # another request with the same key may have been faster
            _same(job, body)
        return job

    async def earlier(self, request: JobRequest, key: str) -> Job | None:
        """Return the job that was submitted under an idempotency key. Raises InvalidInstance as ``submit``."""
        with contextlib.suppress(UnknownJob):
            return _same(await self.jobs.get(id_of_key(key)), _hash(request))
        return None

    async def statistics(self) -> JobStatistics:
        ended = {(one.method, one.state): (one.n, one.seconds) for one in await self.jobs.totals()}
        live = (await live_workers(self._store)).values()
        workers = {kind: sum(kind in kinds for kinds in live) for kind in KINDS}
        return JobStatistics(await self.jobs.counts(), ended, workers)


async def load_methods() -> dict[str, JobMethod]:
    """Return the job methods. They import scipy, so they are imported only when a replica needs them."""
    methods: dict[str, JobMethod] = (await asyncio.to_thread(import_module, "abound.jobs.methods")).METHODS
    return methods


def _hash(request: JobRequest) -> str:
    """Requests under one idempotency key are the same request if their hashes, with defaults, are equal."""
    return hashlib.blake2b(msgspec.json.encode(request, order="sorted"), digest_size=16).hexdigest()


def _same(job: Job, body: str | None) -> Job:
    if job.body != body:
        raise InvalidInstance("this idempotency key came before with another body", "Idempotency-Key")
    return job
