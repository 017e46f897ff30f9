"""Where the links of Markdown files lead, in the checkout and in the site."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from docs.tools.dataset import DATASET_FILES
from docs.tools.every_row import ROW_FILES, ROW_PAGES
from docs.tools.references import PAGES

ROOT = Path(__file__).parents[2]
FOLDER = "docs"
"""Folder of the pages, in the checkout."""

DOCUMENTS = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "studies").glob("**/*.md")),
)
"""Documents from elsewhere in the checkout that are pages of the site too, at the same path."""

GENERATED = {**PAGES, **ROW_PAGES, **ROW_FILES, **DATASET_FILES}
"""What follows from code and data, by path in the site."""

_LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")
_FENCE = re.compile(r"^( *)(```+).*?^\1\2`*$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)


def is_external(link: str) -> bool:
    """Whether a link leads out of the project."""
    return re.match(r"[a-z]+:", link) is not None


def prose(text: str) -> str:
    """Return Markdown without its fences."""
    return _FENCE.sub("", text)


def links(text: str) -> Iterator[str]:
    """Yield the links of a Markdown text."""
    for _, link, _ in _LINK.findall(prose(text)):
        yield link


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings of a Markdown text."""
    return {slug(heading) for heading in _HEADING.findall(prose(text))}


def slug(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and Python-Markdown make it."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    kept = re.sub(r"[^\w\s-]", "", words).strip().lower()
    return re.sub(r"[-\s]+", "-", kept)


def site_path(path: str) -> str | None:
    """Return where a file of the checkout stands in the site, ``None`` if it does not."""
    if path.startswith(f"{FOLDER}/"):
        return path.removeprefix(f"{FOLDER}/").replace(".ipynb", ".md")
    known = path in DOCUMENTS or (path.startswith("studies/") and path.endswith(".svg"))
    return path if known else None


def with_links(text: str, rewrite: Callable[[str], str]) -> str:
    """Return a Markdown text with every link that is not external rewritten."""

    def replaced(match: re.Match[str]) -> str:
        link = match[2]
        return match[0] if is_external(link) else match[1] + rewrite(link) + match[3]

    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [_LINK.sub(replaced, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(replaced, text[end:])])


def in_site(link: str, source: str) -> str:
    """Return a link of a file of the checkout as the page of the site needs it.

    Parameters
    ----------
    link
        As the file has it, from its folder.
    source
        Path of the file in the checkout.

    Raises
    ------
    ValueError
        If what it leads to is no part of the site.
    """
    target, mark, anchor = link.partition("#")
    if not target:
        return link
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    page, own = site_path(path), site_path(source)
    if page is None or own is None:
        raise ValueError(f"{source} links to {link}, which is no page of the site.")
    return posixpath.relpath(page, posixpath.dirname(own) or ".") + mark + anchor


def leads_somewhere(link: str, source: str) -> bool:
    """Whether a link of a file of the checkout leads to a file, a folder, or a generated page."""
    target, _, anchor = link.partition("#")
    path = (
        posixpath.normpath(posixpath.join(posixpath.dirname(source), target)) if target else source
    )
    if path.removeprefix(f"{FOLDER}/") in GENERATED:
        return True
    file = ROOT / path
    if anchor and file.suffix == ".md":
        return file.is_file() and anchor in anchors(file.read_text("utf-8"))
    return file.exists()
