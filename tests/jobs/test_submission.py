"""Submission of jobs: what it refuses for its memory."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import msgspec
import pytest

from abound.core.errors import InsufficientMemory
from abound.service.artifacts.artifact_store import ArtifactStore
from abound.service.artifacts.checksums import seal
from abound.service.datasets.repository import DatasetCard
from abound.service.history.history_manifest import FORMAT, Base, HistoryManifest, history_key
from abound.service.jobs.methods import METHODS, ModelSizes
from abound.service.jobs.submission import JobRequest, JobSubmission, active_features
from abound.service.settings import Settings
from abound.service.store.client import Store
from tests.support.fixtures import StartReplica
from tests.support.streams import drafts
from tests.support.valkey import Server

OF_PAIRS = ("exmlds1", "exmlds3", "exmlds_joint")
"""Methods whose memory goes by the pairs of instances that share a label."""

FEW: dict[str, Any] = {"dim": 5, "neighbors": 5, "clusters": 1, "learners": 1}
N = 2000


def room_for(method: str, pairs: int) -> int:
    """What a fit on ``N`` instances of so many pairs needs, where any two could share a label."""
    params = METHODS[method].check(FEW)
    n = METHODS[method].needs
    assert n is not None
    return sum(n(ModelSizes(N, 120, 40, 0, 0, N, 6 * N, pairs, N), params).values())


@contextlib.asynccontextmanager
async def opened(server: Server, directory: Path) -> AsyncIterator[JobSubmission]:
    store, artifacts = Store(server.url), ArtifactStore(f"memory://jobs-{directory.name}")
    submission = JobSubmission(Settings.load(data_dir=directory, redis_url=server.url), store, artifacts)
    try:
        yield submission
    finally:
        await submission.close()
        await store.close()


async def is_taken(submission: JobSubmission, asked: JobRequest, model: Any, refusal: str) -> bool:
    """Whether a job is queued; if not, it is refused for its memory, with this in the message."""
    [found] = await asyncio.gather(submission.submit(asked, model, None), return_exceptions=True)
    if isinstance(found, BaseException):
        assert isinstance(found, InsufficientMemory)
        assert re.search(refusal, str(found))
        return False
    return found.state == "queued"


def card_of(**counts: int) -> AsyncMock:
    """In the place of the repository's ``get``: a data set with these counts."""
    told = {"name": "a", "file": "a", "format": "jsonl", "compression": "", "bytes": 1, "created": 1e9}
    counts |= {"labelled": counts["instances"], "assertions": counts["instances"]}
    return AsyncMock(return_value=msgspec.convert(told | counts, DatasetCard))


@pytest.mark.parametrize("method", OF_PAIRS)
async def test_only_pairs_that_share_a_label_count_where_history_is_fitted(
    server: Server, start_replica: StartReplica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """40 labels: a fortieth of all pairs."""
    replica = await start_replica(server)
    await replica.learn("default", drafts(N, n_labels=40))
    model = replica.model("default")
    assert N**2 / 45 < model.live.n_pairs < N**2 / 35
    monkeypatch.setenv("ABOUND_JOBS_MEMORY_BYTES", str(room_for(method, N**2 // 2)))
    asked = JobRequest(method=method, params=FEW)
    async with opened(server, tmp_path) as submission:
        assert await is_taken(submission, asked, model, "")
        await replica.learn("default", drafts(N, n_labels=1))
        assert not await is_taken(submission, asked, model, "pairs")


@pytest.mark.parametrize("method", OF_PAIRS)
async def test_only_pairs_that_share_a_label_count_where_a_data_set_is_fitted(
    server: Server, start_replica: StartReplica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Where every two share one they do not fit."""
    model = (await start_replica(server)).model("default")
    monkeypatch.setenv("ABOUND_JOBS_MEMORY_BYTES", str(room_for(method, N**2 // 2)))
    counts = {"instances": N, "features": 120, "classes": 40, "nnz": 6 * N, "label_pairs": N, "feature_labels": 6 * N}
    async with opened(server, tmp_path) as submission:
        for pairs, fits in ((N**2 // 40, True), (N**2, False)):
            monkeypatch.setattr(submission._datasets, "get", card_of(**counts, pairs=pairs))
            asked = JobRequest(method=method, params=FEW, data="a")
            assert await is_taken(submission, asked, model, "pairs") == fits


@pytest.mark.parametrize("method", ["ind", "unweighted"])
async def test_pairs_of_a_feature_and_a_label_count_where_a_data_set_is_fitted(
    server: Server, start_replica: StartReplica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Few of its instances may have most of both."""
    model = (await start_replica(server)).model("default")
    monkeypatch.setenv("ABOUND_JOBS_MEMORY_BYTES", str(2**26))
    counts = {"instances": N, "features": 10**5, "classes": 10**3, "nnz": 6 * N, "pairs": N, "label_pairs": N}
    async with opened(server, tmp_path) as submission:
        for pairs, fits in ((6 * N, True), (10**7, False)):
            monkeypatch.setattr(submission._datasets, "get", card_of(**counts, feature_labels=pairs))
            refusal = "10,000,000 pairs of a feature and a label"
            assert await is_taken(submission, JobRequest(method=method, data="a"), model, refusal) == fits


async def test_only_instances_that_history_still_has_count(
    server: Server, start_replica: StartReplica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = await start_replica(server)
    await replica.learn("default", drafts(4 * N, n_labels=40))
    model = replica.model("default")
    live, needs = model.live, METHODS["swnn"].needs
    assert needs is not None
    sizes = ModelSizes(
        live.n_learned, len(live.features), 40, 0, 0, live.n_assertions, active_features(model), live.n_pairs
    )
    room = sum(needs(sizes, METHODS["swnn"].check({})).values()) // 5
    monkeypatch.setenv("ABOUND_JOBS_MEMORY_BYTES", str(room))
    at = model.position._replace(log_bytes=model.log_bytes * 9 // 10)
    base = Base(index="a", digest="a", size=1, **Base.fields_of(at))
    contents = HistoryManifest(
        format=FORMAT, model=model.name, incarnation=model.incarnation, artifacts="a", base=base, segments=[]
    )
    async with opened(server, tmp_path) as submission:
        assert not await is_taken(submission, JobRequest(method="swnn"), model, "8,000 instances")
        await replica.store.client.set(history_key(model.keys), msgspec.json.encode(seal(contents)))
        assert await is_taken(submission, JobRequest(method="swnn"), model, "")


@pytest.mark.parametrize(("threads", "cluster", "fits"), [(1, None, True), (8, None, False), (8, "dask://a:1", True)])
async def test_what_each_thread_takes_counts(
    server: Server,
    start_replica: StartReplica,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    threads: int,
    cluster: str | None,
    fits: bool,
) -> None:
    """Not here where a cluster computes."""
    model = (await start_replica(server)).model("default")
    monkeypatch.setenv("ABOUND_JOBS_MEMORY_BYTES", str(2**30))
    monkeypatch.setenv("ABOUND_JOBS_THREADS", str(threads))
    if cluster is not None:
        monkeypatch.setenv("ABOUND_CLUSTER", cluster)
    counts = {"instances": 10**5, "features": 1000, "classes": 10, "nnz": 10**7, "pairs": 10**9}
    async with opened(server, tmp_path) as submission:
        card = card_of(**counts, label_pairs=10**5, feature_labels=10**7)
        monkeypatch.setattr(submission._datasets, "get", card)
        asked = JobRequest(method="one_vs_rest", data="a")
        assert await is_taken(submission, asked, model, r"a classifier, .* B x 8 at a time") == fits
