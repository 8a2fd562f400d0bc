"""``/models``: the models, their configuration and their statistics."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Response

from abound.api.dependencies import ActorDep, GrantDep, JsonObject, ModelName, PartsDep, ReplicaDep
from abound.api.openapi import config_schema, json_body, problems
from abound.api.routes.challengers import contest_of
from abound.api.schemas.models import ModelAnswer, ModelsAnswer, ServingShape
from abound.api.schemas.stats import ReplicaShape, StatsAnswer
from abound.api.times import STORE_WAIT_SECONDS
from abound.metrics import BOUNDS
from abound.replica.storage_status import ModelStorage
from abound.security.audit import audited
from abound.state.replica_status import PublishedStatus
from abound.state.replicated_model import ReplicatedModel
from abound.versions.promotion import standings
from abound_core.config import EncoderUrl, ModelConfig
from abound_core.errors import Corrupted, StoreUnavailable
from abound_core.instances import text_encoder
from abound_core.instances.text_analyzer import stop_words_of

router = APIRouter(tags=["models"])

EXAMPLES = {
    "plain": {"summary": "The paper's defaults", "value": {}},
    "adaptive": {"summary": "Weights that follow a drifting stream", "value": {"memory": 500.0}},
}


@router.get("/models", summary="All models")
async def list_models(replica: ReplicaDep, grant: GrantDep) -> ModelsAnswer:
    """List the models that the key is for, by name and without digests, and the permissions of the key."""
    names = [name for name in sorted(replica.models.names()) if grant is None or grant.is_for(name)]
    rights = {"scopes": grant.scopes, "all_models": grant.is_for(None)} if grant is not None else None
    return ModelsAnswer.model_validate({"models": [_summary(replica.model(name)) for name in names], "key": rights})


@router.get("/models/{model}", summary="A model", responses=problems(404, 422, 503))
async def get_model(model: ModelName, replica: ReplicaDep) -> ModelAnswer:
    """Return the configuration and size of a model, and the digest of its state at `offset`."""
    return await model_answer(replica.model(model))


@router.put(
    "/models/{model}",
    summary="Create or configure a model",
    responses={201: {"model": ModelAnswer, "description": "Created."}, **problems(400, 409, 413, 415, 422, 503, 504)},
    openapi_extra=json_body(config_schema(), required=False, examples=EXAMPLES),
)
async def put_model(
    model: ModelName, changes: JsonObject, parts: PartsDep, actor: ActorDep, response: Response
) -> ModelAnswer:
    """Create a model or change its configuration.

    Omitted fields keep their values. Some fields cannot change on a model that has learned (409).
    """
    replica = parts.replica
    if model not in replica.models.names():
        async with audited(replica.store, actor, "model.create", model=model, config=changes):
            config = await _with_encoder(replica.models.new_config(changes), parts)
            created = await replica.models.create(model, config)
        if created:
            response.status_code = 201
            response.headers["location"] = f"/models/{model}"
            return await model_answer(replica.model(model))
    live = replica.model(model).live
    config = live.config.with_user_changes(changes)
    if config != live.config:
        async with audited(replica.store, actor, "model.configure", model=model, config=changes):
            live.check_change(changes)
            if config.analyzer != live.config.analyzer:
                config = await _with_encoder(config, parts)
                changes = changes | {"analyzer": config.to_dict()["analyzer"]}
            with parts.changing.pending(model, changes):
                await replica.configure(model, changes)
    return await model_answer(replica.model(model))


async def _with_encoder(config: ModelConfig, parts: PartsDep) -> ModelConfig:
    """Return a configuration with the dimension of its encoder, if that is behind a URL; load any other one.

    Raises InvalidInstance if this replica does not have stop words, or does not have or may not ask the encoder,
    EncoderUnavailable.
    """
    await asyncio.to_thread(stop_words_of, config.analyzer)
    embed = config.analyzer.embed
    if isinstance(embed, EncoderUrl):
        embed = replace(embed, dimension=await parts.remote.dimension(embed))
        return replace(config, analyzer=replace(config.analyzer, embed=embed))
    if embed is not None:
        await asyncio.to_thread(text_encoder.load, embed)
    return config


@router.delete("/models/{model}", status_code=204, summary="Delete a model", responses=problems(404, 422, 503, 504))
async def delete_model(model: ModelName, replica: ReplicaDep, actor: ActorDep) -> Response:
    """Delete a model and everything it has learned. The name can be used again."""
    learned = replica.model(model).live.n_learned
    async with audited(replica.store, actor, "model.delete", model=model, learned=learned):
        await replica.models.delete(model)
    return Response(status_code=204)


@router.get("/models/{model}/stats", summary="Statistics of a model", responses=problems(404, 422, 503))
async def get_stats(model: ModelName, parts: PartsDep, grant: GrantDep) -> StatsAnswer:
    """Return the accuracy of the model, measured by ranking every event before it is learned, and its size."""
    replica = parts.replica
    present = replica.model(model)
    figures = {"offset": str(present.offset)} | present.live.stats() | _memory(present)
    replicas: list[PublishedStatus] = []
    found = None
    with contextlib.suppress(StoreUnavailable, TimeoutError):
        async with asyncio.timeout(STORE_WAIT_SECONDS):
            replicas = await replica.replicas(model)
            with contextlib.suppress(Corrupted):
                found = await standings.read(replica.store, present.keys)
    kept = replica.storage_status.get(present)
    return StatsAnswer.model_validate(
        {
            **figures,
            "challengers": contest_of(found, parts.settings),
            "kept": _storage_fields(kept) if kept else None,
            "classify": _classified(replicas) if grant is None or grant.is_for(None) else None,
            "replicas": [ReplicaShape.of(one) for one in replicas],
        }
    )


def _classified(replicas: list[PublishedStatus]) -> dict[str, list[Any]] | None:
    """Return the answered requests of replicas by duration, added up; None if no replica has reported them."""
    reported = [one.classified for one in replicas if len(one.classified) == len(BOUNDS) + 1]
    if not reported:
        return None
    return {"bounds": list(BOUNDS), "counts": [sum(counts) for counts in zip(*reported, strict=True)]}


def _storage_fields(kept: ModelStorage) -> dict[str, Any]:
    extent, newest, age = kept.history, kept.snapshot, kept.snapshot_age
    archived: dict[str, Any] | None = None
    if extent is not None:
        archived = {
            "beginning": str(extent.first),
            "end": str(extent.last),
            "segments": extent.n_segments,
            "bytes": extent.n_bytes,
        }
    return {
        "log": {"entries": kept.log_entries, "bytes": kept.log_bytes, "trimmed": kept.trimmed_entries},
        "history": archived,
        "snapshot": {"offset": newest.offset, "age": age} if newest is not None else None,
        "trouble": kept.failure,
    }


async def model_answer(model: ReplicatedModel) -> ModelAnswer:
    digest = await model.compute_digest()
    return ModelAnswer(**_summary(model), digest=str(digest))


def _summary(model: ReplicatedModel) -> dict[str, Any]:
    live = model.live
    return {
        "name": model.name,
        "incarnation": model.incarnation,
        "config": live.config.to_dict(),
        "version": live.serving.version,
        "serving": ServingShape.of(live.serving),
        "offset": str(model.offset),
        "learned": live.n_learned,
        **live.sizes(),
        **_memory(model),
    }


def _memory(model: ReplicatedModel) -> dict[str, Any]:
    parts = model.live.sizes()["memory"] | {"versions": model.n_loaded_bytes}
    return {"memory": sum(parts.values()), "memory_parts": parts}
