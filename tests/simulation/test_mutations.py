"""The simulation sees mistakes: each one is made on purpose, and some history must tell."""

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from abound.history.archive import swap_manifest
from abound.history.load import load_newest
from abound.log import catalog as catalog_module
from abound.log import closing, stream
from abound.log.append_group import AppendGroup
from abound.log.appender import Appender
from abound.log.events import IncarnationDropped, checksum_of
from abound.replace import copying, replace
from abound.replace.copying import Copy
from abound.replica.follower import Follower
from abound.replica.replica import Replica
from abound.state.position import Position
from abound.state.replicated_model import ReplicatedModel
from abound.store import lease as lease_module
from abound.store.lease import Lease
from abound.store.raw_connection import ConnectionLost, StoreConnection
from abound.store.reconnecting_connection import ReconnectingConnection
from abound_core.errors import StoreUnavailable
from abound_core.model.entry_application import EntryApplication, Unit
from abound_core.model.label_details import DetailsTable
from abound_core.model.live_model import LiveModel
from abound_core.model.receipts import Receipts
from abound_core.types import Offset
from tests.simulation.history import run
from tests.simulation.loop import BEGIN, Process, here

SEEDS = 1000

Patch = pytest.MonkeyPatch


class Mistake(NamedTuple):
    """A mistake, with the faults by which it is found soon (None: it is found in any weather) and a seed to begin with.

    One that takes many histories to find is slow.
    """

    plant: Callable[[Patch], None]
    faults: tuple[str, ...] | None
    first: int
    marks: tuple[pytest.MarkDecorator, ...]


MISTAKES: list[Mistake] = []


def mistake(faults: tuple[str, ...] | None = None, first: int = 0, is_slow: bool = False) -> Callable[[Any], Any]:
    def add(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
        MISTAKES.append(Mistake(plant, faults, first, (pytest.mark.long,) if is_slow else ()))
        return plant

    return add


@mistake(faults=("_lose_power",), first=183)
def wait_on_another_connection(patch: Patch) -> None:
    """WAITAOF and WAIT go out over the link that all models share, whose own last write is another one, if any."""
    links: dict[Process, StoreConnection] = {}
    opening, send = StoreConnection.open, StoreConnection.send

    async def open_link(address: Any, name: str, *args: Any) -> StoreConnection:
        link = await opening(address, name, *args)
        if name == "abound-append":
            links[here()] = link
        return link

    held: dict[StoreConnection, list[Any]] = {}

    def wrong(self: StoreConnection, command: bytes, on_reply: Any, seconds: float, n: int = 1) -> None:
        other = links.get(here(), self)

        def appended(reply: Any) -> None:
            on_reply(reply)
            for waits in held.pop(self, ()):
                send(other, *waits)

        n_waits = command.count(b"\r\nWAIT")
        if self is other or not n_waits:
            send(self, command, on_reply, seconds, n)
            return
        begin = command.index(b"\r\nWAIT") - len("*3\r\n$4")
        held.setdefault(self, []).append((command[begin:], on_reply, seconds, n_waits))
        send(self, command[:begin], appended, seconds, n - n_waits)

    patch.setattr(StoreConnection, "open", open_link)
    patch.setattr(StoreConnection, "send", wrong)


@mistake(faults=("_lose_power", "_fail_over"), first=42)
def count_no_replies(patch: Patch) -> None:
    """What WAITAOF and WAIT were told is not looked at: the level of the service counts as reached."""
    patch.setattr(
        "abound.log.appender.confirmed_level",
        lambda info, commands, replies: 2 if any(words[0] == "WAIT" for words in commands) else 1,
    )


@mistake(first=44)
def refuse_what_may_be_there(patch: Patch) -> None:
    """An append without a reply is said to be none."""
    answered = Appender._answered

    def wrong(self: Appender, group: AppendGroup, replies: list[Any], *args: Any) -> None:
        first = RuntimeError("lost") if isinstance(replies[0], ConnectionLost) else replies[0]
        answered(self, group, [first, *replies[1:]], *args)

    patch.setattr(Appender, "_answered", wrong)


@mistake(faults=("_cut", "_cut_all"), first=10, is_slow=True)
def send_again(patch: Patch) -> None:
    """An append without a reply is sent a second time."""
    answered = Appender._answered

    def wrong(self: Appender, group: AppendGroup, replies: list[Any], *args: Any) -> None:
        answered(self, group, replies, *args)
        if isinstance(replies[0], ConnectionLost) and group.waiting and not group.is_read:
            command = self._command(group)

            def later() -> None:
                if self._connection.raw is not None:
                    self._connection.raw.send(command, lambda reply: None, 5.0)
                else:
                    self._loop.call_later(0.1, later)

            later()

    patch.setattr(Appender, "_answered", wrong)


@mistake(first=30, is_slow=True)
def answer_before_the_reply(patch: Patch) -> None:
    """What is sent counts as durable: its requests end when the follower has met it, whatever the waits say."""
    take = Appender._take

    def wrong(self: Appender) -> AppendGroup | None:
        group = take(self)
        if group is not None:
            group.reached = self._level
        return group

    patch.setattr(Appender, "_take", wrong)


@mistake(first=79)
def do_not_check_on_return(patch: Patch) -> None:
    """A follower goes on from its last entry, whether it is there or not."""

    async def holds_over(*args: Any) -> bool:
        return True

    patch.setattr(stream, "holds_over", holds_over)


@mistake(faults=("_fail_over", "_cut"), is_slow=True)
def append_to_anybody(patch: Patch) -> None:
    """A connection takes any server for the one whose models it knows."""
    init = ReconnectingConnection.__init__

    def wrong(self: ReconnectingConnection, *args: Any, **options: Any) -> None:
        init(self, *args[:2])

    patch.setattr(ReconnectingConnection, "__init__", wrong)
    _delay(patch, Follower, "_return", SLOW_SECONDS)  # so that more is appended before it


@mistake()
def forget_keys(patch: Patch) -> None:
    """A key that came before is learned again."""
    patch.setattr(Receipts, "get", lambda self, key: None)
    patch.setattr(Receipts, "n_new", lambda self, keys: len(keys))


@mistake()
def do_not_wait_for_an_offset(patch: Patch) -> None:
    """``min_offset`` is looked at and not waited for."""

    async def wait_for(*args: Any) -> None:
        return None

    patch.setattr(Replica, "wait_for", wait_for)


@mistake()
def apply_the_last_entry_again(patch: Patch) -> None:
    """A position names the entry before the one applied last."""
    apply = ReplicatedModel.apply

    async def wrong(self: ReplicatedModel, element: Any) -> Any:
        before = self.position
        applied = await apply(self, element)
        if self.position.n_entries % 7 == 3:
            self.position = Position(before.offset, checksum_of(element[1]), before.n_entries, before.log_bytes)
        return applied

    patch.setattr(ReplicatedModel, "apply", wrong)


@mistake(faults=("_kill", "_stop"), first=23)
def leave_an_entry_out(patch: Patch) -> None:
    """A snapshot says that it is one entry further than it is."""
    restore = load_newest

    async def wrong(store: Any, model: ReplicatedModel, *args: Any, **options: Any) -> Any:
        manifest = await restore(store, model, *args, **options)
        if manifest is not None:
            found = await store.client.xrange(model.keys.log, f"({model.offset.entry}", "+", 1)
            if found:
                at = Offset.of_entry(found[0][0])
                model.position = model.position._replace(offset=at, checksum=found[0][1][b"c"])
        return manifest

    patch.setattr("abound.replica.loader.load_newest", wrong)


@mistake()
def do_not_open_again(patch: Patch) -> None:
    """A connection that is lost stays lost."""

    async def once(self: ReconnectingConnection) -> None:
        try:
            self.connection, self.info = await self._open()
            self._opened.set()
        except StoreUnavailable:
            return

    patch.setattr(ReconnectingConnection, "_keep_open", once)


@mistake(first=171)
def leave_the_log_open(patch: Patch) -> None:
    """The last entry of a replaced log is appended, and the log is not closed."""
    _without(patch, "_CLOSE", "redis.call('XSETID', KEYS[2], ARGV[5])")


@mistake()
def copy_no_last_tail(patch: Patch) -> None:
    """What came between the last copy of the tail and the end of the closed log is not copied."""
    finish = Copy.finish

    async def wrong(self: Copy, at: Offset) -> None:
        self._copied = at
        await finish(self, at)

    patch.setattr(Copy, "finish", wrong)


@mistake(faults=("_fail_over",), is_slow=True)
def replace_without_looking(patch: Patch) -> None:
    """A model is replaced whether or not both logs still end with the same entry."""
    begin, end = closing._REPLACE.index("for i = 2, 3"), closing._REPLACE.index("redis.call('XADD'")
    patch.setattr(closing, "_REPLACE", closing._REPLACE[:begin] + closing._REPLACE[end:])
    _delay(patch, replace, "replace_log", SLOW_SECONDS)  # so that a failover comes more often before it


@mistake(first=2603, is_slow=True)
def open_without_the_fence(patch: Patch) -> None:
    """A process that is late, and holds the lease no more, ends what it began, and opens the log again."""
    _without(patch, "_OPEN", FENCE)

    async def late(store: Any, lease: Lease) -> bool:
        catalog = await catalog_module.read_catalog(store)
        living, coming = catalog.get(lease.keys.name), catalog.coming.get(lease.keys.name)
        if living is None or living.keys != lease.keys or coming is None:
            return False
        await _be_late()
        await replace.open_log(store, lease, IncarnationDropped(lease.keys.name, coming.keys.incarnation))
        return True

    patch.setattr(replace, "_end_unfinished", late)
    _lose_leases(patch)


@mistake()
def switch_without_reading(patch: Patch) -> None:
    """What replaces a model is served from where it has been read to."""
    switch = Follower._switch

    async def wrong(self: Follower, model: ReplicatedModel, by: ReplicatedModel) -> None:
        connection, self._connection = self._connection, None
        try:
            await switch(self, model, by)
        finally:
            self._connection = connection

    # so that one read more often has the catalog's entry and the log's last ones
    _delay(patch, Follower, "_read_once", LATE_SECONDS)
    patch.setattr(Follower, "_switch", wrong)


@mistake()
def drop_the_queue(patch: Patch) -> None:
    """Requests that wait while a log is closed are forgotten when the model is replaced."""

    def wrong(self: Appender, key: bytes, keeps_requests: bool) -> None:
        self.key = key
        self._queue.clear()

    patch.setattr(Appender, "use_log", wrong)


@mistake()
def answer_what_was_refused(patch: Patch) -> None:
    """What a closed log refuses is answered as if it had been learned there."""

    def wrong(self: Appender, group: AppendGroup) -> None:
        group.entry, group.reached, group.is_read = Offset(int(1000 * self._loop.time()), 0, 0), 0, True
        group.ranks, group.updated = [0] * 99, [False] * 99
        self._settle(group)
        self._loop.call_later(0.02, self._send)

    patch.setattr(Appender, "_wait_open", wrong)


@mistake()
def miscount_what_was_trimmed(patch: Patch) -> None:
    """The log of a new incarnation is said to have had one entry less before it."""

    async def wrong(to: Any, contents: Any, trim: stream.Trim | None = None) -> Any:
        trim = trim if trim is None else trim._replace(n_entries=trim.n_entries - 1)
        return await swap_manifest(to, contents, trim)

    patch.setattr(copying, "swap_manifest", wrong)


SLOW_SECONDS = 0.5
LATE_SECONDS = 0.3
LATE_UNTIL = BEGIN + 2.0


def _delay(patch: Patch, place: Any, name: str, seconds: float) -> None:
    """Let each call of an asynchronous function wait first."""
    work = getattr(place, name)

    async def late(*args: Any) -> Any:
        await asyncio.sleep(seconds)
        return await work(*args)

    patch.setattr(place, name, late)


async def _be_late() -> None:
    """Pause for longer than a lease lasts, in the first seconds of a history."""
    if asyncio.get_running_loop().time() < LATE_UNTIL:
        await asyncio.sleep(2 * lease_module.LEASE_SECONDS)


def _lose_leases(patch: Patch) -> None:
    """Nobody renews a lease in the first seconds of a history."""
    renew = Lease.renew

    async def wrong(self: Lease, payload: bytes | None = None) -> None:
        if asyncio.get_running_loop().time() >= LATE_UNTIL:
            await renew(self, payload)

    patch.setattr(Lease, "renew", wrong)


FENCE = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end"


def _without(patch: Patch, script: str, line: str) -> None:
    source = getattr(closing, script)
    assert line in source
    patch.setattr(closing, script, source.replace(line, ""))


@mistake()
def leave_details_out(patch: Patch) -> None:
    """The details of a registration are kept only if it is the first record of its entry."""
    register = LiveModel._register

    def wrong(self: LiveModel, buffer: bytes, at: int, *args: Any) -> int:
        details = self.details
        if at > 0:
            self.details = DetailsTable()
        end = register(self, buffer, at, *args)
        self.details = details
        return end

    patch.setattr(LiveModel, "_register", wrong)


@mistake()
def weigh_all_alike(patch: Patch) -> None:
    """The weight of an event counts only if no other one is applied with it."""
    begin = LiveModel.begin

    def wrong(self: LiveModel, records: bytes, n: int, units: Sequence[Unit], *args: Any) -> EntryApplication:
        return begin(self, _without_weights(records) if n > 1 else records, n, units, *args)

    patch.setattr(LiveModel, "begin", wrong)


def _without_weights(records: bytes) -> bytes:
    return records.replace(struct.pack("<f2H", 3.0, 1, 1), struct.pack("<f2H", 1.0, 1, 1))


@pytest.mark.parametrize(
    "planted", [pytest.param(one, marks=one.marks) for one in MISTAKES], ids=lambda planted: planted.plant.__name__
)
def test_a_mistake_is_caught(planted: Mistake) -> None:
    with pytest.MonkeyPatch.context() as patch:
        planted.plant(patch)
        assert any(run(seed, faults=planted.faults).broken for seed in range(planted.first, planted.first + SEEDS))
