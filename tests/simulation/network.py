"""The network between the processes and the store: slow, in pieces, and cut where it hurts most.

A connection carries bytes both ways, in order. What is on its way when it is cut never arrives; each side hears of
the end when it does, or never. A process that is killed has said what it had written; a link that is dead for a while
delivers everything afterwards.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from typing import TYPE_CHECKING, Any

from tests.simulation.loop import Process, SimLoop, here

if TYPE_CHECKING:
    from tests.simulation.server import Session, Store

SHOWN = 200


class Wire(asyncio.Transport):
    """A connection, as its client holds it."""

    def __init__(self, network: Network, protocol: Any, client: Process, store: Store, number: int) -> None:
        super().__init__()
        self.name = f"{client.name}#{number}"
        self.client = client
        self.store = store
        self.session: Session = store.session(self)
        self._network = network
        self._protocol = protocol
        self._loop = network.loop
        self._server = store.process
        self._is_closing = False
        self._is_told = False
        self._is_broken = False
        self.closed = False
        self._up_at = self._down_at = 0.0

    def write(self, data: Any) -> None:
        if self._is_closing or self._is_broken:
            return
        network = self._network
        if network.strikes("cut before"):
            self.cut()
            return
        self._up_at = max(self._up_at, network.arrival(self.client))
        self._loop.call_at(self._up_at, self._arrive, bytes(data), context=self._server.context)
        if network.strikes("cut behind"):  # it arrives, and whatever is answered does not
            self._loop.call_at(self._up_at, self.cut, context=self._loop.world.context)

    def _arrive(self, data: bytes) -> None:
        if not self._is_broken and not self.session.gone:
            self.session.received(data)

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._up_at = max(self._up_at, self._network.arrival(self.client))
            self._loop.call_at(self._up_at, self._server_hears, context=self._server.context)
            self._loop.call_soon(self._tell, None, context=self.client.context)
            self._network.forget(self)

    abort = close

    def is_closing(self) -> bool:
        return self._is_closing or self._is_told or self.closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None:
        """Whoever reads slowly is not what is looked into here."""

    def resume_reading(self) -> None:
        """See ``pause_reading``."""

    @property
    def quiet_at(self) -> float:
        """When all that is on its way has arrived, at both ends."""
        return max(self._up_at, self._down_at)

    def answer(self, data: bytes) -> None:
        network = self._network
        if self._is_broken:
            return
        if network.strikes("cut after"):
            self.cut()
            return
        self._down_at = max(self._down_at, network.arrival(self.client))
        pieces = [data]
        if network.strikes("pieces"):
            at = network.rng.randrange(len(data))
            pieces = [data[:at], data[at:]]
        for piece in pieces:
            self._loop.call_at(self._down_at, self._deliver, piece, context=self.client.context)
            if len(pieces) > 1:
                self._down_at += network.latency()
        if network.strikes("crash at reply"):
            self._loop.call_at(self._down_at, self.client.kill, context=self._loop.world.context)

    def _deliver(self, data: bytes) -> None:
        if data and not self._is_broken and not self._is_closing and not self._is_told:
            self._protocol.data_received(data)

    def cut(self, silent: bool = False) -> None:
        """Nothing arrives any more; the sides hear of it some time, or never."""
        if self._is_broken:
            return
        network = self._network
        network.note("cut", self.name)
        self._is_broken = True
        network.forget(self)
        if not silent:
            reason = ConnectionResetError("cut") if network.rng.random() < 0.5 else None
            self._loop.call_later(network.latency(), self._tell, reason, context=self.client.context)
        self._loop.call_later(network.latency(), self._server_hears, context=self._server.context)

    def _tell(self, reason: Exception | None) -> None:
        """The client hears of the end."""
        if self._is_told:
            return
        self._is_told = True
        if reason is None and not self._is_closing:
            self._protocol.eof_received()
        self._protocol.connection_lost(reason)

    def _server_hears(self) -> None:
        if not self.session.gone:
            self.session.closed()

    def client_died(self) -> None:
        self._is_closing = True
        self._network.forget(self)
        self._up_at = max(self._up_at, self._network.arrival(self.client))
        self._loop.call_at(self._up_at, self._server_hears, context=self._server.context)


class Network:
    """All connections, and what happens to them."""

    def __init__(self, loop: SimLoop, seed: int) -> None:
        self.loop = loop
        self.rng = random.Random(f"network {seed}")
        self.rates: dict[str, float] = {}  # how often each fault strikes, a message
        self.slow: dict[Process, float] = {}  # until when nothing passes between it and the store
        self.served: dict[str, float] = {}  # from when on a store said that an incarnation of a model is served
        self.base = 0.0002
        self.fsync = 0.0005
        self.store: Store | None = None
        self.trace: list[str] | None = None
        self.checksum = 0
        self._wires: dict[Wire, None] = {}
        self._every: list[Wire] = []
        self._n_wires = 0
        self._is_closed = False
        loop.network = self

    def note(self, what: str, who: str, words: Any = "") -> None:
        said = b" ".join(words) if type(words) is list else words.encode()
        now = self.loop.time()
        self.checksum = zlib.crc32(said, self.checksum ^ (hash((now, len(what), len(who))) & 0xFFFF_FFFF))
        if self.trace is not None:
            line = b"%.6f %b %b %b" % (now, what.encode(), who.encode(), said)
            self.trace.append(line[:SHOWN].decode("ascii", "backslashreplace"))

    def strikes(self, fault: str) -> bool:
        rate = self.rates.get(fault)
        return rate is not None and self.rng.random() < rate

    def latency(self) -> float:
        uniform = self.rng.random()
        return self.base * (0.5 + uniform) if uniform < 0.95 else self.base * 100 * uniform

    def fsync_time(self) -> float:
        uniform = self.rng.random()
        return self.fsync * (0.5 + uniform) if uniform < 0.98 else min(self.fsync * 200, 1.0)

    def arrival(self, client: Process) -> float:
        now = self.loop.time()
        slow = self.slow.get(client, 0.0)
        return (slow if slow > now else now) + self.latency()

    async def connect(self, factory: Any) -> tuple[Wire, Any]:
        client = here()
        at = self.arrival(client)
        await asyncio.sleep(at - self.loop.time())
        store = self.store
        if self._is_closed or store is None or not store.is_up or self.strikes("refuse"):
            raise ConnectionRefusedError("nobody listens")
        protocol = factory()
        self._n_wires += 1
        wire = Wire(self, protocol, client, store, self._n_wires)
        self._wires[wire] = None
        self._every.append(wire)
        client.at_end.append(wire.client_died)
        protocol.connection_made(wire)
        return wire, protocol

    def forget(self, wire: Wire) -> None:
        self._wires.pop(wire, None)
        if wire.client_died in wire.client.at_end:
            wire.client.at_end.remove(wire.client_died)

    @property
    def quiet_at(self) -> float:
        """When all that is on its way has arrived: by ways that were slow, and from those who have died since, too."""
        return max((wire.quiet_at for wire in self._every), default=0.0)

    def wires_of(self, client: Process | None = None) -> list[Wire]:
        return [wire for wire in self._wires if client is None or wire.client is client]

    def store_died(self, store: Store | None, silent: bool) -> None:
        for wire in self.wires_of():
            if store is None or wire.store is store:
                wire.cut(silent)

    def end(self) -> None:
        """Nobody is to miss the end of a connection when all is over."""
        for wire in self._every:
            wire.closed = True

    def close(self) -> None:
        self._is_closed = True
        self.rates.clear()
        self.store_died(None, silent=False)
