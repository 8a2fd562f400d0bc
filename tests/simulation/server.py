"""The store: one that can be asked and its copies; what is on disk, and what is lost when one of them dies.

    1. commands that have arrived are carried out, in the order of their arrival; their effects become the history
    2. the history is written, and under ``always`` brought to disk; the store does nothing else meanwhile
    3. only then the replies go out, and the effects to the copies

So nobody has seen what a crash between two of the steps takes with it. Under ``everysec`` the disk follows every
second, and a machine that loses its power loses what came since. A copy has what it received, and is the store when it
is promoted; what it had not received is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import hiredis

from abound.log.catalog import CATALOG_KEY
from abound.log.events import ModelCreated, ModelReplaced, decode_catalog_entry
from abound.store.server_info import FSYNC_PATTERN
from tests.simulation.keyspace import Keyspace, Words, block_of, read
from tests.simulation.loop import Callback, SimLoop
from tests.simulation.network import Network, Wire
from tests.simulation.resp import NO_LIST, OK, Refused, Status, encoded

WALL = 1_763_000_000.0
TRUE_WAITAOF = (8, 0)
"""Before it, WAITAOF says of what is only written that it is on disk."""
READ_ONLY = Refused("READONLY You can't write against a read only replica.")
UNBLOCKED = Refused("UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)")
READS = frozenset(
    b"CLIENT CONFIG DISCARD EXEC EXISTS GET HGET HGETALL HKEYS HMGET INFO LRANGE MEMORY MGET MULTI PING PTTL ROLE SCAN "
    b"SELECT STRLEN TIME TTL XINFO XLEN XRANGE XREAD XREVRANGE".split()
)
"""What a server answers that copies another one."""
AWAKE_WHILE_LOADING = (b"PING", b"CLIENT")


class Copy:
    """A server that copies the store: how much of its history it has, and has on disk."""

    def __init__(self) -> None:
        self.received = 0
        self.on_disk = 0


class Loss(NamedTuple):
    """Effects of one command that a crash took back.

    The reason is ``crash`` of the process, ``power`` of the machine, ``failover``, or ``copy's power``: it was
    promoted, and had in its memory only what it had received as a copy.
    """

    effects: list[Words]
    reason: str
    policy: str


class Session:
    def __init__(self, store: Store, wire: Wire) -> None:
        self.wire = wire
        self.reader = hiredis.Reader()
        self.out: list[bytes] = []
        self.waiting: deque[Words] = deque()
        self.multi: list[Words] | None = None
        self.blocked: Blocked | None = None
        self.last_write = 0
        self.gone = False
        self._store = store

    def received(self, data: bytes) -> None:
        self.reader.feed(data)
        words = self.reader.gets()
        while words is not False:
            self._store.take(self, words)
            words = self.reader.gets()
        self._store.wake()

    def closed(self) -> None:
        self.gone = True
        if self.blocked is not None:
            self._store.forget(self.blocked)


class Blocked:
    """A command that waits: an XREAD (``keys``), a WAIT or a WAITAOF."""

    def __init__(self, session: Session, words: Words, keys: list[bytes]) -> None:
        self.session = session
        self.words = words
        self.keys = keys
        self.timer: Callback | None = None


class Store:
    """The store.

    Its history has the effects of every command that had some, since the beginning of time, as far as they were not
    lost; so much of it as is ``written`` would outlive a crash of the process, as is ``on_disk`` one of the machine.
    """

    def __init__(
        self,
        loop: SimLoop,
        network: Network,
        policy: str = "always",
        version: tuple[int, int] = (7, 2),
        copies: int = 0,
        history: Sequence[list[Words]] = (),
        lost: list[Loss] | None = None,
    ) -> None:
        self.policy = policy
        self.version = version
        self.copies = [Copy() for _ in range(copies)]
        self.history: list[list[Words]] = list(history)
        self.written = self.on_disk = len(self.history)
        self.lost: list[Loss] = [] if lost is None else lost
        self.skew = 0.0
        self.lag = 0.0
        self.refusing: str | None = None
        self.is_copy = False
        self.space = Keyspace()
        self.process = loop.process("store")
        self._loop = loop
        self._network = network
        self._rng = network.rng
        self._inbox: deque[tuple[Session, Words]] = deque()
        self._is_busy = False
        self._loading = False
        self._is_up = False
        self._is_rewriting = False
        self._forked = 0
        self._inherited = 0
        self._blocked: list[Blocked] = []
        self._speaking: list[Session] = []
        network.store = self
        self._begin(0.0)

    def session(self, wire: Wire) -> Session:
        return Session(self, wire)

    @property
    def is_up(self) -> bool:
        return self._is_up

    def die(self, power: bool) -> None:
        """End at once, the process or the whole machine; of what was not written or not on disk a part may be kept."""
        self._is_up = False
        self.process.kill()
        self._network.store_died(self, silent=power and self._rng.random() < 0.5)
        kept = self._rng.randint(self.on_disk if power else self.written, len(self.history))
        self._lose(kept, "power" if power else "crash")

    def start(self) -> None:
        self.process = self._loop.process("store")
        self._begin(self._rng.choice((0.0, 0.05, 0.5)))

    @property
    def can_fail_over(self) -> bool:
        """Whether there is a copy to promote: one that has had, once, all that the store began with."""
        return self._is_up and any(copy.received >= self._inherited for copy in self.copies)

    def fail_over(self, policy: str, skew: float) -> Store:
        """The copy that has most becomes the store, with a clock and a policy of its own.

        This one goes on for those who are connected to it, until ``end``: it does not know yet.
        """
        self._is_up = False
        promoted = max(self.copies, key=lambda copy: copy.received)
        history = self.history[: promoted.received]
        new = Store(self._loop, self._network, policy, self.version, len(self.copies), history, self.lost)
        new.on_disk = promoted.on_disk
        new._inherited = promoted.received
        new.skew = skew
        self._forked = promoted.received
        self.copies = []
        self._network.note("failover", "store", f"{promoted.received} of {len(self.history)}")
        return new

    def end(self) -> None:
        """A store that another one has replaced is no more; what only it had is lost."""
        self.process.kill()
        self._network.store_died(self, silent=self._rng.random() < 0.3)
        self._lose(self._forked, "failover")

    def demote(self, new: Store) -> None:
        """Another one has replaced it, and it has come to know: it copies that one, for all who are still connected.

        What only it had is lost. It has what the new one has now, and is not told any more.
        """
        self._lose(self._forked, "failover")
        self.is_copy = True
        self.history = list(new.history)
        self.written = self.on_disk = self._forked = len(self.history)
        self.space = Keyspace()
        for effects in self.history:
            self.space.replay(effects)
        for blocked in list(self._blocked):
            self._unblock(blocked, UNBLOCKED)

    def _lose(self, kept: int, reason: str) -> None:
        for at, effects in enumerate(self.history[kept:], kept):
            # What it had as a copy was on the disk of the one before at most: lost by the failover as well.
            inherited = at < self._inherited
            why = ("copy's power" if reason == "power" else "failover") if inherited else reason
            self.lost.append(Loss(effects, why, self.policy))
        self._inherited = min(self._inherited, kept)
        del self.history[kept:]
        self.written = min(self.written, kept)
        self.on_disk = min(self.on_disk, kept)
        for copy in self.copies:
            copy.received = min(copy.received, kept)
            copy.on_disk = min(copy.on_disk, kept)
        if reason == "power":
            self.on_disk = kept
        self._network.note("lost", reason, str(len(self.history)))

    def _begin(self, loading: float) -> None:
        self.space = Keyspace()
        for effects in self.history:
            self.space.replay(effects)
        self.written = len(self.history)
        self._inbox.clear()
        self._blocked.clear()
        self._speaking.clear()
        self._is_busy = self._is_rewriting = False
        self._is_up = True
        self._loading = loading > 0
        if loading:
            self.process.call(self._loaded, after=loading)
        if self.policy == "everysec":
            self.process.call(self._every_second, after=1.0)
        self._copy()

    def _loaded(self) -> None:
        self._loading = False

    def take(self, session: Session, words: Words) -> None:
        self._inbox.append((session, words))

    def wake(self) -> None:
        """Nothing more has arrived with it; whoever is at work already looks for it when that is done."""
        if not self._is_busy:
            self._is_busy = True
            self._serve()

    def _serve(self) -> None:
        """Carry out what has arrived, then write it, then answer."""
        self.space.now_ms = int((WALL + self._loop.time() + self.skew) * 1000)
        while self._inbox:
            session, words = self._inbox.popleft()
            if not session.gone:
                self._handle(session, words)
        if self.policy == "always" and len(self.history) > self.written:
            self.process.call(self._flushed, after=self._network.fsync_time())
        else:
            self._flushed()

    def _flushed(self) -> None:
        self.written = len(self.history)
        if self.policy == "always":
            self.on_disk = self.written
        self._answer_waits()
        speaking, self._speaking = self._speaking, []
        for session in speaking:
            data, session.out = b"".join(session.out), []
            session.wire.answer(data)
        self._copy()
        if self._inbox:
            self.process.call(self._serve)
        else:
            self._is_busy = False

    def _handle(self, session: Session, words: Words) -> None:
        if session.blocked is not None:
            session.waiting.append(words)
            return
        self._network.note("command", session.wire.name, words)
        reply = self._reply(session, words)
        if reply is not None:
            self._say(session, reply[0])
        if self.space.touched:
            self._serve_readers()

    def _say(self, session: Session, reply: Any) -> None:
        if not session.out:
            self._speaking.append(session)
        session.out.append(encoded(reply))

    def _reply(self, session: Session, words: Words) -> tuple[Any] | None:
        """The reply in a tuple; None when it comes later."""
        name = words[0].upper()
        if self._loading and name not in AWAKE_WHILE_LOADING:
            return (Refused("LOADING the store is loading the dataset in memory"),)
        if session.multi is not None and name not in (b"EXEC", b"DISCARD"):
            session.multi.append(words)
            return (Status("QUEUED"),)
        if name == b"MULTI":
            session.multi = []
            return (OK,)
        if name == b"EXEC":
            queued, session.multi = session.multi or [], None
            replies = [self._execute(one) for one in queued]
            self._remember(session)
            return (replies,)
        if name == b"XREAD":
            return self._read(session, words)
        if name in (b"WAIT", b"WAITAOF"):
            return self._wait(session, words)
        reply = self._execute(words)
        self._remember(session)
        return (reply,)

    def _execute(self, words: Words) -> Any:
        name = words[0].upper()
        if name in (b"CLIENT", b"SELECT"):
            return OK
        if self.is_copy and name not in READS:
            return READ_ONLY
        if name == b"ROLE":
            return [b"slave", b"127.0.0.1", 6379, b"connected", 0] if self.is_copy else [b"master", 0, []]
        if name == b"INFO":
            return self._info(words)
        if name == b"BGREWRITEAOF":
            return self._rewrite()
        if name == b"CONFIG":
            said = {b"no-appendfsync-on-rewrite": b"no", b"appendfsync": self.policy.encode()}
            names = said if words[2:] == [FSYNC_PATTERN.encode()] else words[2:3]
            return [word for name in names for word in (name, said[name])]
        if name == b"XADD" and self.refusing is not None:
            return Refused(self.refusing)
        reply = self.space.execute(words)
        if name == b"XINFO" and self.version < (7, 0) and isinstance(reply, list):
            at = reply.index(b"max-deleted-entry-id")
            del reply[at : at + 6]
        return reply

    def _remember(self, session: Session) -> None:
        """What has changed becomes a part of the history, as one."""
        if self.space.effects:
            self._note_served(self.space.effects)
            self.history.append(self.space.effects)
            self.space.effects = []
            session.last_write = len(self.history)

    def _note_served(self, effects: list[Words]) -> None:
        for words in effects:
            if words[:2] == [b"XADD", CATALOG_KEY]:
                event = decode_catalog_entry(words[3:]).event
                served = self._network.served
                if isinstance(event, ModelCreated):
                    served.setdefault(words[2].decode(), self._loop.time())
                elif isinstance(event, ModelReplaced):
                    served.setdefault(event.by, self._loop.time())

    def _rewrite(self) -> Any:
        """Write the file anew: all that is there by then is on disk."""
        self._is_rewriting = True

        def done() -> None:
            self._is_rewriting = False
            self.on_disk = self.written = len(self.history)
            self._answer_waits()
            self._flush_soon()

        self.process.call(done, after=self._network.fsync_time())
        return Status("Background append only file rewriting started")

    def _info(self, words: Words) -> Any:
        fields = {
            b"server": "redis_version:{}.{}.0".format(*self.version),
            b"persistence": "loading:0\r\naof_enabled:1\r\naof_rewrite_in_progress:"
            f"{int(self._is_rewriting)}\r\naof_rewrite_scheduled:0\r\naof_last_bgrewrite_status:ok",
            b"memory": "maxmemory:0\r\nmaxmemory_policy:noeviction",
            b"replication": f"role:{'slave' if self.is_copy else 'master'}\r\nconnected_slaves:{len(self.copies)}",
        }
        return f"# {words[1].decode()}\r\n{fields[words[1]]}\r\n"

    def _read(self, session: Session, words: Words) -> tuple[Any] | None:
        try:
            reply = read(self.space, words)
        except Refused as error:
            return (error,)
        seconds = block_of(words)
        if reply is not NO_LIST or seconds is None:
            return (reply,)
        at = [word.upper() for word in words].index(b"STREAMS")
        blocked = Blocked(session, words, words[at + 1 : at + 1 + (len(words) - at - 1) // 2])
        self._block(blocked, seconds)
        return None

    def _serve_readers(self) -> None:
        touched, self.space.touched = self.space.touched, set()
        for blocked in [one for one in self._blocked if not touched.isdisjoint(one.keys)]:
            self._unblock(blocked, read(self.space, blocked.words))

    def _wait(self, session: Session, words: Words) -> tuple[Any] | None:
        if words[0].upper() == b"WAITAOF" and self.version < (7, 2):
            return (Refused("ERR unknown command 'WAITAOF'"),)
        blocked = Blocked(session, words, [])
        self._block(blocked, int(words[-1]) / 1000)
        return None

    def _waited(self, blocked: Blocked) -> tuple[Any, bool]:
        """What a WAIT or WAITAOF would be told now, and whether that is what it waits for."""
        upto = blocked.session.last_write
        numbers = [int(word) for word in blocked.words[1:]]
        if blocked.words[0].upper() == b"WAIT":
            n = sum(copy.received >= upto for copy in self.copies)
            return n, n >= numbers[0]
        local, n = (
            int((self.on_disk if self.version >= TRUE_WAITAOF else self.written) >= upto),
            sum(copy.on_disk >= upto for copy in self.copies),
        )
        return [local, n], local >= numbers[0] and n >= numbers[1]

    def _answer_waits(self) -> None:
        for blocked in [one for one in self._blocked if not one.keys]:
            reply, is_enough = self._waited(blocked)
            if is_enough:
                self._unblock(blocked, reply)

    def _block(self, blocked: Blocked, seconds: float) -> None:
        blocked.session.blocked = blocked
        blocked.timer = self.process.call(self._timed_out, blocked, after=seconds) if seconds else None
        self._blocked.append(blocked)

    def _timed_out(self, blocked: Blocked) -> None:
        self._unblock(blocked, NO_LIST if blocked.keys else self._waited(blocked)[0])
        self._flush_soon()

    def forget(self, blocked: Blocked) -> None:
        if blocked in self._blocked:
            self._blocked.remove(blocked)
        if blocked.timer is not None:
            blocked.timer.cancel()

    def _unblock(self, blocked: Blocked, reply: Any) -> None:
        session = blocked.session
        self.forget(blocked)
        session.blocked = None
        self._say(session, reply)
        while session.waiting:
            self._inbox.append((session, session.waiting.popleft()))
        self._flush_soon()

    def _flush_soon(self) -> None:
        """See to it that what was said goes out, by the way that all replies go."""
        if not self._is_busy:
            self._is_busy = True
            self.process.call(self._serve)

    def _every_second(self) -> None:
        """Bring to disk what was there when it began."""
        self.process.call(self._synced, self.written, after=self._network.fsync_time())
        self.process.call(self._every_second, after=1.0)

    def _synced(self, upto: int) -> None:
        self.on_disk = max(self.on_disk, upto)
        self._answer_waits()

    def _copy(self) -> None:
        for copy in self.copies:
            if copy.received < self.written:
                self.process.call(self._copied, copy, self.written, after=self.lag + self._network.latency())

    def _copied(self, copy: Copy, upto: int) -> None:
        if copy.received < upto:
            copy.received = upto
            copy.on_disk = upto if self._rng.random() < 0.5 else copy.on_disk
            self._answer_waits()
