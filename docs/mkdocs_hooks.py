"""Hooks of mkdocs: README.md is the first page, and links to files outside of docs/ lead to the repository."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

LINK = re.compile(r'(\]\(|src(?:set)?=")([\w./-]+)(?=[#)"])')
"""The start and the relative path of a link or an image, in Markdown or HTML."""


def relinked(markdown: str, folder: str, repository: str) -> str:
    """Return the text of a page in ``folder`` of the repository, with its links as the site needs them.

    README.md moves to docs/, so its links to docs/ are made relative to that. Links to other files become addresses in
    the repository.
    """

    def relink(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[2]))
        if path.startswith("docs/"):
            return link[1] + posixpath.relpath(path, folder or "docs")
        return f"{link[1]}{repository}/blob/main/{path}"

    return LINK.sub(relink, markdown)


def on_files(files: Files, *, config: MkDocsConfig) -> None:
    """Add README.md as the first page."""
    readme = Path(config.config_file_path).with_name("README.md").read_text()
    files.append(File.generated(config, "index.md", content=readme))


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the text of a page with its links rewritten."""
    folder = "" if page.file.src_uri == "index.md" else posixpath.dirname(f"docs/{page.file.src_uri}")
    return relinked(markdown, folder, config.repo_url or "")
