"""Hooks of MkDocs: brings the repository's own documents into the site, and their links along.

The pages of this folder link to ``../SECURITY.md`` and the like, so that they can be read in the
repository too. In the site those documents stand beside the pages, at the same paths as in the
repository. Folders, and files that are no documents, are named without a link there.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parent.parent
DOCUMENTS: Final = (
    "README.md",
    "ARCHITECTURE.md",
    "SECURITY.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "spec/sealring-1.md",
    "spec/failures.md",
    "spec/formal/README.md",
    "spec/trace/README.md",
    "spec/vectors/README.md",
    "examples/README.md",
)
_AT: Final = {"README.md": "readme.md"}  # a README would be the first page of the site
_LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents."""
    for name in DOCUMENTS:
        place = _AT.get(name, name)
        files.append(File.generated(config, place, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Have the links of *page* lead to where its targets are in the site."""
    own = _place_in_repository(page.file.src_uri)

    def follow(match: re.Match[str]) -> str:
        picture, text, target, anchor = match.groups()
        if not target or ":" in target:
            return match[0]
        path = (own.parent / target).resolve()
        if path.is_dir() and (path / "README.md").is_file():
            path /= "README.md"
        name = path.relative_to(ROOT).as_posix()
        if path.is_relative_to(ROOT / "docs"):
            place = path.relative_to(ROOT / "docs").as_posix()
        elif name in DOCUMENTS:
            place = _AT.get(name, name)
        elif path.exists():
            return f"{text} (`{name}`)"
        else:
            return match[0]  # which MkDocs tells of
        up = "../" * page.file.src_uri.count("/")
        return f"{picture}[{text}]({up}{place}{anchor or ''})"

    return _LINK.sub(follow, markdown)


def _place_in_repository(uri: str) -> Path:
    """The file that is at *uri* in the site."""
    for name in DOCUMENTS:
        if _AT.get(name, name) == uri:
            return ROOT / name
    return ROOT / "docs" / uri
