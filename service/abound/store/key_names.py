"""Names of the keys that the store holds for one model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelKeys:
    """Names of the keys that the store holds for one incarnation of a model."""

    name: str
    incarnation: str

    def key(self, part: str) -> bytes:
        """Return the key of a part: ``log``, ``snapshots``, ``replicas``, ..."""
        return f"abound:{{{self.name}:{self.incarnation}}}:{part}".encode()

    @property
    def log(self) -> bytes:
        """Return the key of the stream of log entries."""
        return self.key("log")

    @property
    def pattern(self) -> bytes:
        """Return the SCAN pattern that matches all keys of the model."""
        name = "".join(f"\\{sign}" if sign in "*?[]\\^-" else sign for sign in self.name)
        return f"abound:{{{name}:{self.incarnation}}}:*".encode()
