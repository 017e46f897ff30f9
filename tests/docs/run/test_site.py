"""The site is built offline without a warning, and needs nothing from elsewhere."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from docs.tools.every_row import every_row
from docs.tools.links import ROOT
from docs.tools.measured import accuracy_rows
from docs.tools.truth import README, with_rows
from phaze_opt.validation.registry import GROUPS, validate

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


def test_the_table_of_truth_is_true(site: Path) -> None:
    """README's rows are those of the page on accuracy; ``make docs-update`` writes them."""
    page = (site / "accuracy.html").read_text("utf-8")
    found = re.findall(r"<tr>\n(.*?)</tr>", page, re.DOTALL)
    rows = [tuple(map(unescape, re.findall(r"<td.*?>(.*?)</td>", row))) for row in found]
    text = README.read_text("utf-8")
    assert with_rows(text, [row for row in rows if len(row) == 6]) == text
    assert text.count("(`") >= 8


def test_every_measured_row_is_in_its_page(site: Path) -> None:
    """With its prediction; those of training have a range, and drawings a dot for each row."""
    for group in GROUPS:
        tables = validate(group).tables
        count = sum(len(table.rows) for table in tables)
        page = (site / "accuracy" / f"{group}.html").read_text("utf-8")
        assert page.count("<tr>") == count + len(tables)
        drawing = (site / "accuracy" / f"errors-{group}.svg").read_text("utf-8")
        assert drawing.count("<circle") == count
    with (site / "accuracy" / "rows.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == len(every_row())
    ranged = [row for row in rows if row["low"]]
    assert {row["kind"] for row in ranged} == {"training"} and len(ranged) > 200
    for row in ranged:
        assert float(row["low"]) <= float(row["predicted"]) <= float(row["high"])
