"""Names of everything that the store holds of one model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelKeys:
    """The names of everything that the store holds of one incarnation of a model."""

    name: str
    incarnation: str

    def of(self, part: str) -> bytes:
        """The key of a part: ``log``, ``snapshots``, ``replicas``, ..."""
        return f"abound:{{{self.name}:{self.incarnation}}}:{part}".encode()

    @property
    def log(self) -> bytes:
        """The stream of its entries."""
        return self.of("log")

    @property
    def pattern(self) -> bytes:
        """What matches all its keys, for SCAN."""
        name = "".join(f"\\{sign}" if sign in "*?[]\\^-" else sign for sign in self.name)
        return f"abound:{{{name}:{self.incarnation}}}:*".encode()
