"""A name server on loopback that tells which replicas there are, as the one of a container network does."""

from __future__ import annotations

import socket
import struct
import threading
from ipaddress import IPv4Address

A, IN = 1, 1
SECONDS_TO_LIVE = 1
HEADER = struct.Struct("!6H")


class Names:
    """Answers questions for addresses, in a thread, until it is closed.

    Attributes
    ----------
    port : int
        Of UDP, on 127.0.0.1.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._addresses: dict[str, list[IPv4Address]] = {}
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def add(self, name: str, address: str) -> None:
        self._addresses[name] = [*self._addresses.get(name, []), IPv4Address(address)]

    def remove(self, name: str, address: str) -> None:
        self._addresses[name] = [one for one in self._addresses.get(name, []) if one != IPv4Address(address)]

    def close(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as waker:
            waker.sendto(b"", ("127.0.0.1", self.port))
        self._thread.join(5)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            question, asker = self._socket.recvfrom(4096)
            if not question:
                return
            self._socket.sendto(self._answer(question), asker)

    def _answer(self, message: bytes) -> bytes:
        number, flags, _, _, _, _ = HEADER.unpack_from(message)
        at, labels = HEADER.size, []
        while length := message[at]:
            labels.append(message[at + 1 : at + 1 + length].decode())
            at += length + 1
        kind, _ = struct.unpack_from("!2H", message, at + 1)
        question = message[HEADER.size : at + 5]
        known = self._addresses.get(".".join(labels))
        found = known if known and kind == A else []
        name_error = 0 if known else 3
        # An answer, recursion as it was asked for and available; each record points to the name in the question.
        header = HEADER.pack(number, 0x8080 | (flags & 0x0100) | name_error, 1, len(found), 0, 0)
        records = [struct.pack("!3HIH4s", 0xC00C, A, IN, SECONDS_TO_LIVE, 4, one.packed) for one in found]
        return header + question + b"".join(records)
