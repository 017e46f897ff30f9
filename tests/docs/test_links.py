"""Every link inside the project leads somewhere, in the checkout and in the site."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from docs.tools.links import ROOT, in_site, is_external, leads_somewhere, links, slug, with_links


def documents() -> list[str]:
    """Name every document of the checkout, from its root."""
    found = [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs" / "notebooks").glob("*.ipynb"),
        *(ROOT / "studies").glob("**/*.md"),
    ]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def text_of(path: Path) -> str:
    """Return the Markdown of a document, of a notebook that of its cells."""
    if path.suffix == ".md":
        return path.read_text("utf-8")
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


@pytest.mark.parametrize("name", documents())
def test_links_lead_somewhere(name: str) -> None:
    """To a file, to a heading of it, or to a page that is generated."""
    for link in links(text_of(ROOT / name)):
        if not is_external(link):
            assert leads_somewhere(link, name), f"{name} links to {link}"


@pytest.mark.parametrize("name", [name for name in documents() if name != "README.md"])
def test_links_of_pages_have_a_place_in_the_site(name: str) -> None:
    """What the site shows links only to what the site shows."""
    with_links(text_of(ROOT / name), lambda link: in_site(link, name))


def test_links_are_rewritten_for_the_site() -> None:
    """Documents from elsewhere stand at their own path, pages one folder higher."""
    assert in_site("../studies/README.md#which-sampler", "docs/own-study.md") == (
        "studies/README.md#which-sampler"
    )
    assert in_site("../docs/slurm.md", "studies/README.md") == "../slurm.md"
    assert in_site("../accuracy.md", "docs/notebooks/certificate.ipynb") == "../accuracy.md"
    assert in_site("notebooks/mixtral.ipynb", "docs/index.md") == "notebooks/mixtral.md"
    assert in_site("#words", "docs/concepts.md") == "#words"
    with pytest.raises(ValueError, match="no page of the site"):
        in_site("../Makefile", "docs/concepts.md")


def test_a_missing_file_or_heading_is_noticed() -> None:
    """Otherwise the tests above would pass whatever the links are."""
    assert leads_somewhere("concepts.md#words", "docs/index.md")
    assert not leads_somewhere("concepts.md#wrods", "docs/index.md")
    assert not leads_somewhere("conceptions.md", "docs/index.md")
    assert slug("`[area]`, `[constraints]`, `[search]`") == "area-constraints-search"


def test_fences_hold_no_links() -> None:
    """What looks like a link in code is code."""
    text = "[a](b.md)\n\n```python\nx[0](c)\n```\n\n[d](e.md)\n"
    assert list(links(text)) == ["b.md", "e.md"]
    assert with_links(text, str.upper) == text.replace("b.md", "B.MD").replace("e.md", "E.MD")
