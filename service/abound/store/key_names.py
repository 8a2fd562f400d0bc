from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelKeys:
    """Names of what the store and the artifact store hold for one incarnation of a model."""

    name: str
    incarnation: str

    def key(self, part: str) -> bytes:
        return f"abound:{{{self.name}:{self.incarnation}}}:{part}".encode()

    @property
    def folder(self) -> str:
        """The folder in the artifact store."""
        return f"{self.name}/{self.incarnation}"

    @property
    def log(self) -> bytes:
        return self.key("log")

    @property
    def pattern(self) -> bytes:
        # SCAN reads it as a glob.
        name = "".join(f"\\{sign}" if sign in "*?[]\\^-" else sign for sign in self.name)
        return f"abound:{{{name}:{self.incarnation}}}:*".encode()
