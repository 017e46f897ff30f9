"""The site is built offline without a warning, and needs nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from docs.tools.links import ROOT
from docs.tools.measured import accuracy_rows
from docs.tools.truth import README, with_rows

FETCHED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}
"""What a browser fetches with a page, by tag; links of ``<a>`` are followed by people only."""


class Fetched(HTMLParser):
    """Collects what a page makes a browser fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the address of a tag that is fetched."""
        address = dict(attrs).get(FETCHED.get(tag, ""))
        if address:
            self.urls.append(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site, with every warning an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    """Scripts, style sheets, fonts and pictures are files of the site, and they are there."""
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        parser = Fetched()
        parser.feed(page.read_text("utf-8"))
        for url in parser.urls:
            assert not re.match(r"[a-z]+:|//", url), f"{page.name} fetches {url}"
            if page.name != "404.html":  # its addresses begin at the root of a server
                assert (page.parent / url.partition("?")[0]).resolve().exists(), url
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", sheet.read_text("utf-8")), sheet.name


def test_formulas_are_drawn_by_the_browser(site: Path) -> None:
    """Every formula of the pages is MathML; none is left as LaTeX."""
    page = (site / "cost-model.html").read_text("utf-8")
    formulas = (ROOT / "docs" / "cost-model.md").read_text("utf-8").count("```math")
    assert page.count("<math ") == formulas > 20
    assert "\\frac" not in page


def test_generated_parts_are_in_their_pages(site: Path) -> None:
    """The table of accuracy has a row for every measured table that `validate` shows."""
    page = (site / "accuracy.html").read_text("utf-8")
    assert "generated:" not in page
    assert page.count("<tr>") >= len(accuracy_rows())


def test_the_table_of_truth_is_true() -> None:
    """README's rows are those of ``phaze-opt validate``; ``make docs-update`` writes them."""
    text = README.read_text("utf-8")
    assert with_rows(text, accuracy_rows(every=True)) == text
    assert text.count("(`") >= 8
