"""Text and HTML of tables: the same words, whoever shows them."""

from __future__ import annotations

import html
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import rich.console
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Group

import phaze_opt as po
from phaze_opt.report.layout import add_row, grid, pairs, section, to_html, to_text
from tests.study.fakes import toy_study

TINY = "gpt:layers=2,hidden=64,heads=2,sequence=32,vocab=128"


class Page(HTMLParser):
    """The text of a page, and its elements; refuses what is not closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.open, self.elements = "", [""], set[str]()
        self.feed(page)
        self.close()
        assert self.open == [""]

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        """Open an element."""
        self.open.append(tag)
        self.elements.add(tag)
        assert attrs in ([], [("style", "font-weight: bold")])

    def handle_endtag(self, tag: str) -> None:
        """Close the element that is open."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Add text, all of which stands in the one element that keeps spaces."""
        assert self.open[1] == "pre"
        self.text += data


@given(cells=st.lists(st.text(), min_size=1, max_size=4), title=st.text())
@example(["<script>alert(1)</script>", "&amp; [bold]x[/bold] </pre>"], "a < b & c {code}")
def test_html_is_the_text_escaped(cells: list[str], title: str) -> None:
    """Whatever stands in a cell or a title is text: a page shows it, and never obeys it."""
    table, named = grid(">number", "name"), pairs()
    for cell in cells:
        add_row(table, cell, cell)
        add_row(named, cell, cell)
    shown = Group(section(title, table), section("Second", named))
    page = Page(to_html(shown))
    assert page.text == to_text(shown)
    assert page.elements == {"pre", "span"}


def test_a_notebook_shows_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every noun that prints as tables; in a notebook, where rich prints elsewhere, too."""
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    workload = po.load_workload(TINY, microbatch=(2,))
    chip, cluster = po.load_accelerator("tpuv4-lanes"), po.load_cluster("dgx-a100", devices=4)
    point = workload, chip, cluster, po.Training(global_batch=16, microbatch=2)
    result = po.evaluate(*point)
    study = toy_study(f"sqlite:///{tmp_path / 'a.db'}")
    study.run(trials=2)
    hostile = replace(workload, model="<img src=x onerror=alert(1)>")
    best, summary = study.best(), study.summary()
    nouns = (
        *point[:3],
        result,
        result.placement,
        po.explain(*point),
        study,
        best,
        summary,
        hostile,
    )
    for noun in nouns:
        shown = noun._repr_html_()  # type: ignore[union-attr]
        assert Page(shown).text == str(noun)
        assert len(str(noun).splitlines()) > 3
        assert len(shown) < 2 * len(html.escape(str(noun))) + 1000
    assert "<img" not in hostile._repr_html_()
