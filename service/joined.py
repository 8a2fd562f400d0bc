"""A transport that sends the head of an answer together with its body.

The server writes them one after the other, which is two system calls, and these cost more than ranking does. A head is
held until the next write, at most until the event loop's next turn: nothing ever waits for long, and nothing that has
a head and no body is lost.
"""

from __future__ import annotations

import asyncio
from typing import Any

JOINED_BYTES = 65_536
"""A longer body is not copied behind its head."""

HEAD = b"HTTP/1.1 "


class JoinedWrites(asyncio.Transport):
    """Wraps ``transport``."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._soon = asyncio.get_running_loop().call_soon
        self._head = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send, or hold a head for a moment."""
        if self._head:
            head, self._head = self._head, b""
            if len(data) <= JOINED_BYTES:
                self._transport.write(head + data)
                return
            self._transport.write(head)
        elif data[:9] == HEAD:
            self._head = bytes(data)
            self._soon(self.flush)
            return
        self._transport.write(data)

    def send(self, answer: bytes) -> None:
        """Send a whole answer."""
        self.flush()
        self._transport.write(answer)

    def flush(self) -> None:
        """Send a head that is held."""
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def close(self) -> None:
        """Send what is held, then close."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def is_closing(self) -> bool:
        """Whether it is closing or closed."""
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What the transport knows about the connection."""
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Stop reading."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        self._transport.resume_reading()

    def is_reading(self) -> bool:
        """Whether it reads."""
        return self._transport.is_reading()

    def get_write_buffer_size(self) -> int:
        """Bytes that wait to be sent, a held head among them."""
        return self._transport.get_write_buffer_size() + len(self._head)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand the connection over."""
        self._transport.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Whose the connection is."""
        return self._transport.get_protocol()
