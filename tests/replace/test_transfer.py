"""An import beside others: who teaches the model, who imports it too, and what the models may take of memory."""

import asyncio
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest

from abound.replace.transfer import import_model
from abound.replica import memory_budget
from abound.replica.memory_budget import MemoryBudget, needed_bytes
from abound.replica.replica import Replica
from abound_core.errors import Conflict, Malformed, MemoryLimitExceeded, NotReady, Overloaded, UnknownModel
from tests.state.test_model_file import DIGEST, FILE, HEAD, LARGE, LIMIT, file_of, in_pieces
from tests.support.lab import Lab, model_of
from tests.support.replicas import until
from tests.support.streams import drafts

SIZE = sum(part["size"] for part in HEAD["parts"])


class Upload:
    """A file on its way: it stops before its last bytes until it may go on."""

    def __init__(self, file: bytes = FILE) -> None:
        self.stopped = asyncio.Event()
        self.may_go_on = asyncio.Event()
        self._file = file

    async def pieces(self) -> AsyncIterator[bytes]:
        yield self._file[:-100]
        self.stopped.set()
        await self.may_go_on.wait()
        yield self._file[-100:]


async def imported(replica: Replica, name: str, seconds: float = 60, most: MemoryBudget | None = None) -> Any:
    return await import_model(replica, name, in_pieces(FILE, 10_000), LIMIT, seconds, most or MemoryBudget(None))


def indexes_of(lab: Lab) -> list[str]:
    return sorted(path.parent.name for path in lab.folder.rglob("index/*/0"))


async def test_what_another_replica_was_taught_is_not_put_aside(lab: Lab) -> None:
    behind, ahead = await lab.replica(), await lab.replica()
    await ahead.models.create("m", ahead.model("default").live.config)
    await until(lambda: "m" in behind.models.names())
    async with behind.model("m").paused():  # it is busy, and has not come to what the other one was taught
        await ahead.learn("m", drafts(5))
        with pytest.raises(NotReady):
            await imported(behind, "m", 0.3)
        importing = asyncio.create_task(imported(behind, "m"))
        await asyncio.sleep(0.3)
    with pytest.raises(Conflict, match="has learned 5 instances"):
        await importing
    assert [replica.model("m").live.n_learned for replica in lab.replicas] == [5, 5]


@pytest.mark.parametrize(
    ("part", "array", "value"), [("calibration", "curvature", 1e308), ("prequential", "counts", 2**53 - 1)]
)
async def test_a_forged_model_is_refused_and_not_created(lab: Lab, part: str, array: str, value: float) -> None:
    """Its checksums and its digest are right."""
    live = model_of(25, 1)
    getattr(getattr(live, part).arrays, array).reshape(-1)[-1] = value
    file, _ = await asyncio.to_thread(file_of, live)
    one = await lab.replica()
    with pytest.raises(Malformed, match=array):
        await import_model(one, "m", in_pieces(file, 10_000), LIMIT, 60, MemoryBudget(None))
    assert one.models.names() == ["default"]


async def test_nobody_knows_of_a_model_before_its_file_has_come_whole(lab: Lab) -> None:
    one, upload = await lab.replica(), Upload()
    importing = asyncio.create_task(import_model(one, "m", upload.pieces(), LIMIT, 60, MemoryBudget(None)))
    await upload.stopped.wait()
    with pytest.raises(UnknownModel):
        await one.learn("m", drafts(1))
    assert await lab.store.client.xlen("abound:catalog") == 1  # that of default
    upload.may_go_on.set()
    await importing
    assert await one.model("m").compute_digest() == DIGEST


@pytest.mark.parametrize("how", ["whole", "damaged", "broken off", "cancelled"])
async def test_what_a_model_was_taught_while_its_file_came_stays(lab: Lab, how: str) -> None:
    one, other = await lab.replica(), await lab.replica()
    upload = Upload(FILE[:-1] + b"~" if how == "damaged" else FILE[:-1] if how == "broken off" else FILE)
    importing = asyncio.create_task(import_model(one, "m", upload.pieces(), LIMIT, 60, MemoryBudget(None)))
    await upload.stopped.wait()
    await other.models.create("m", other.model("default").live.config)
    await other.learn("m", drafts(3))
    await until(lambda: "m" in one.models.names() and one.model("m").live.n_learned == 3)
    if how == "cancelled":
        importing.cancel()
    upload.may_go_on.set()
    refusal = {"whole": Conflict, "cancelled": asyncio.CancelledError}.get(how, Malformed)
    with pytest.raises(refusal):
        await importing
    assert [replica.model("m").live.n_learned for replica in lab.replicas] == [3, 3]
    assert indexes_of(lab) == []


async def test_a_model_that_there_is_no_memory_for_is_refused_before_anything_is_changed(lab, monkeypatch):
    monkeypatch.setattr(memory_budget, "LOOK_SECONDS", -1.0)
    one = await lab.replica()

    async def take(name: str, most: MemoryBudget, file: bytes = LARGE) -> None:
        await import_model(one, name, in_pieces(file, 10_000), LIMIT, 60, most)

    await take("probe", MemoryBudget(None))
    size, there = needed_bytes(one.model("probe")), needed_bytes(one.model("default"))
    assert size > len(LARGE)
    await one.models.delete("probe")
    most = MemoryBudget(there + 2 * size - 1)
    await take("first", most)
    left = indexes_of(lab)
    with pytest.raises(
        MemoryLimitExceeded, match=rf"needs {size} bytes of .* {there + 2 * size} bytes, of at most {most.most}"
    ):
        await take("second", most)
    assert one.models.names() == ["default", "first"]
    assert indexes_of(lab) == left
    for name in one.models.names():
        most.check(one.model(name), one.models.all)  # they can go on learning
    head_ends = 12 + struct.unpack_from("<I", LARGE, 8)[0]
    with pytest.raises(MemoryLimitExceeded):  # what its header says is too much already, and nothing more is waited for
        await take("third", MemoryBudget(there + (len(LARGE) - head_ends) - 1), LARGE[:head_ends])


async def test_of_two_models_that_come_at_one_time_and_do_not_fit_in_together_one_is_refused(lab, monkeypatch):
    monkeypatch.setattr(memory_budget, "LOOK_SECONDS", -1.0)
    one, upload = await lab.replica(), Upload()
    default = one.model("default")
    there = needed_bytes(default)
    most = MemoryBudget(there + 2 * SIZE - 1)
    importing = asyncio.create_task(import_model(one, "a", upload.pieces(), LIMIT, 60, most))
    await upload.stopped.wait()
    with pytest.raises(MemoryLimitExceeded, match=f"states that are being prepared need {SIZE}:"):
        await imported(one, "b", most=most)
    most.check(default, one.models.all)
    most.most = there + SIZE - 1
    with pytest.raises(Overloaded):  # others may not grow into what is kept for it
        most.check(default, one.models.all)
    importing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await importing
    most.check(default, one.models.all)
    assert one.models.names() == ["default"]
