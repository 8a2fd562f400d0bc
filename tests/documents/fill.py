"""Write into a page what its commands print now: ``python -m tests.documents.fill docs/api.md``.

Blocks of the language ``console`` whose answers agree stay as they are; the others are written anew.
"""

from __future__ import annotations

import sys
import tempfile
import textwrap
from pathlib import Path

from tests.documents.blocks import FENCE, PAGES, ROOT, agrees, blocks_of
from tests.documents.session import Shell, session

WIDTH = 118


def wrapped(printed: str) -> str:
    """Lines of JSON that are too wide, cut behind a comma."""
    lines: list[str] = []
    for line in printed.rstrip("\n").splitlines():
        while len(line) > WIDTH and line[:1] in '{["':
            cut = line.rfind(",", 0, WIDTH) + 1
            if not cut:
                break
            lines.append(line[:cut])
            line = line[cut:]
        lines.append(line)
    return "\n".join(lines)


def filled(shell: Shell, page: Path) -> str:
    """The text of a page with what its commands print."""
    text = page.read_text()
    matches = list(FENCE.finditer(text))
    for block, match in reversed([*zip(_ran(shell, page), matches, strict=True)]):
        if block is not None:
            text = text[: match.start(2)] + block + text[match.end(2) :]
    return text


def _ran(shell: Shell, page: Path) -> list[str | None]:
    bodies: list[str | None] = []
    for block in blocks_of(page):
        if block.reason or block.language not in ("console", "sh"):
            bodies.append(None)
            continue
        body = ""
        for command, printed, _ in shell.run(block):
            said = command.prints or ""
            kept = said if agrees(said, printed) else wrapped(printed)
            body += "$ " + command.text.replace("\n", "\n> ") + "\n" + (kept + "\n" if kept else "")
        bodies.append(body if block.language == "console" else None)
    return bodies


def main() -> None:
    """Fill the pages named."""
    with tempfile.TemporaryDirectory(prefix="abound-documents-") as directory, session(Path(directory)) as shell:
        for page in PAGES:
            if str(page.relative_to(ROOT)) in sys.argv[1:]:
                page.write_text(textwrap.dedent(filled(shell, page)))


if __name__ == "__main__":
    main()
