"""mkdocs hook of `make docs`: links from a page to the source tree work in the site, too.

A link that leaves docs/ must lead to a file or folder of the repository. A file is added to the site as text beside the
pages, so that the site is complete without a repository to point at; a folder is shown by its name only.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)\s#]+)(#[^)\s]*)?\)")
FOLDER = "repository"
log = get_plugin_logger("docs_site")


def _target(page: str, link: str) -> Path:
    """Where a link of a page (its path below docs/) leads."""
    return (ROOT / "docs" / PurePosixPath(page).parent / link).resolve()


def _is_outside(path: Path) -> bool:
    return not path.is_relative_to(ROOT / "docs")


def on_files(files: Files, config: Any) -> Files:
    """Add every file of the repository that a page links to."""
    wanted = set()
    for page in files.documentation_pages():
        for _, link, _ in LINK.findall(page.content_string):
            path = _target(page.src_uri, link)
            if _is_outside(path) and path.is_file():
                wanted.add(path)
    for path in sorted(wanted):
        files.append(File.generated(config, _place(path), content=path.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point such links at the copies; a link that leads nowhere is a warning, and so an error in strict mode."""

    def replace(found: re.Match[str]) -> str:
        text, link, _ = found.groups()
        path = _target(page.file.src_uri, link)
        if not _is_outside(path):
            return found.group(0)
        if path.is_dir():
            return f"{text} (`{path.relative_to(ROOT)}/`)"
        if not path.is_file():
            log.warning("%s: %s leads nowhere", page.file.src_uri, link)
            return text
        up = "../" * (len(PurePosixPath(page.file.src_uri).parts) - 1)
        return f"[{text}]({up}{_place(path)})"

    return LINK.sub(replace, markdown)


def _place(path: Path) -> str:
    return f"{FOLDER}/{path.relative_to(ROOT)}.txt"
