"""The text of HTML: without markup, scripts and styles, with the ``alt`` of images."""

from __future__ import annotations

from lxml import etree

PIECE = 2**14  # characters: the parser holds the GIL for a piece
INLINE = frozenset("a abbr b bdi bdo cite code em font i mark s small span strong sub sup u wbr".split())  # noqa: SIM905


class _Texts:
    """Collects texts as the parser finds them. No tree is built: the time for deeply nested elements is linear."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._is_hidden = False

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._is_hidden = tag in ("script", "style")
        self._parts += ["" if tag in INLINE else " ", attributes.get("alt", "")]

    def end(self, tag: str) -> None:
        self._is_hidden = False
        self._parts.append("" if tag in INLINE else " ")

    def data(self, text: str) -> None:
        if not self._is_hidden:
            self._parts.append(text)

    def close(self) -> str:
        return "".join(self._parts)


def text_of(html: str) -> str:
    """Return the text of a document or a fragment; a text without a tag or an entity as it is."""
    if "<" not in html and "&" not in html:
        return html
    parser = etree.HTMLParser(target=_Texts(), encoding="utf-8", huge_tree=True)
    parser.feed(b"<body>")  # or nothing but white space would have no end
    for at in range(0, len(html), PIECE):
        parser.feed(html[at : at + PIECE].encode("utf-8", "replace"))
    found: str = parser.close()
    return found
