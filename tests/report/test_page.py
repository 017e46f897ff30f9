"""Pages and reports: self-contained, safe, and complete."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from phaze_opt.report.images import BROWSER_VARIABLE, find_browser, picture
from phaze_opt.report.markdown import note_of, report_markdown
from phaze_opt.report.page import plot_page, report_page, studies_page, study_page, study_state
from phaze_opt.report.plots.by_kind import PLOT_KINDS
from phaze_opt.report.study_view import StudyView, view_of
from tests.report.studies import HOSTILE, run_study

_LARGEST_BYTES = 9_000_000


class Elements(HTMLParser):
    """Collects the elements of a page with their attributes, and the text outside of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._hidden = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep an element."""
        self.found.append((tag, dict(attrs)))
        self._hidden = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        """Leave a script."""
        self._hidden = False

    def handle_data(self, data: str) -> None:
        """Keep text that is shown."""
        if not self._hidden:
            self.text += data


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> StudyView:
    """View a study whose model has a hostile name."""
    return view_of(run_study(tmp_path_factory.mktemp("page"), model=HOSTILE))


def test_a_report_loads_nothing(view: StudyView) -> None:
    """No element of a report names an address outside of it, and its policy forbids to load."""
    page = report_page(view)
    assert len(page.encode()) < _LARGEST_BYTES
    elements = Elements(page).found
    for tag, attributes in elements:
        assert not {"src", "href", "srcset", "data"} & attributes.keys(), tag
    (policy,) = [a["content"] for tag, a in elements if "http-equiv" in a]
    assert policy is not None and policy.startswith("default-src 'none'")


def test_a_report_holds_plots_answer_and_trials(view: StudyView) -> None:
    """Every plot has a place and a figure, and the answer stands in the text."""
    page = report_page(view)
    elements = Elements(page)
    places = {attributes.get("id") for _, attributes in elements.found}
    assert {f"plot-{kind}" for kind in PLOT_KINDS} <= places
    state = re.search(r'<script type="application/json" id="state">(.*?)</script>', page, re.S)
    assert state is not None
    assert json.loads(state[1])["figures"].keys() == set(PLOT_KINDS)
    assert view.headline in elements.text and view.question[:20] in elements.text
    assert all(design.name in elements.text for design in view.compared)


def test_hostile_names_are_text(view: StudyView) -> None:
    """Tags in a name are shown, and make no element; control characters are gone."""
    for page in (report_page(view), study_page(view, "1", "/state/toy"), plot_page(view, "area")):
        scripts = [a for tag, a in Elements(page).found if tag == "script"]
        assert len(scripts) <= 4
        assert "<script>alert" not in page and "\x1b" not in page
    assert "toy<script>alert(1)</script>[red]" in Elements(report_page(view)).text
    state = study_state(view, "1").decode()
    assert "<script>alert" not in state and "\x1b" not in state


def test_hostile_names_are_text_in_markdown(view: StudyView) -> None:
    """So they are in the note and in the report as Markdown."""
    for text in (note_of(view), report_markdown(view)):
        assert "\x1b" not in text
        rendered = MarkdownIt("commonmark").enable("table").render(text)
        elements = Elements(rendered)
        assert not {"script", "a", "img"} & {tag for tag, _ in elements.found}
        assert "toy<script>alert(1)</script>[red]?[31m|`*" in elements.text


def test_markdown_holds_the_comparison(view: StudyView) -> None:
    """The report as Markdown has a row for each design that is compared."""
    text = report_markdown(view)
    assert f"**{view.headline}**" in text
    for design in view.compared:
        assert any(line.startswith(f"| {design.name}") for line in text.split("\n"))


def test_the_page_links_to_the_dashboard(view: StudyView) -> None:
    """The page of a study leads to the dashboard's own pages of it and of its trials."""
    links = [a.get("href") for tag, a in Elements(study_page(view, "1", "/x")).found if tag == "a"]
    assert f"/dashboard/studies/{view.study_id}" in links
    best = view.trials[0].number
    assert f"/dashboard/studies/{view.study_id}/trials?numbers={best}" in links


def test_the_list_of_studies(view: StudyView) -> None:
    """Every study is listed with its answer; the names of unreadable ones are text."""
    page = studies_page("sqlite:///a.db", [view.summary], {"<b>bad</b>": "is damaged"})
    elements = Elements(page)
    assert view.headline in elements.text and "<b>bad</b>: is damaged" in elements.text
    assert "b" not in [tag for tag, _ in elements.found]


def test_a_picture_needs_a_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a Chromium a sentence says what to do."""
    from phaze_opt.errors import PhazeError
    from phaze_opt.report.figure_style import empty_figure

    monkeypatch.setenv(BROWSER_VARIABLE, "no-such-browser")
    assert find_browser() is None
    with pytest.raises(PhazeError, match="PHAZE_CHROMIUM"):
        picture(empty_figure("Nothing."), "png")


def test_a_picture_is_what_the_browser_drew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data URL that the page holds becomes the file; a page without one is an error."""
    from phaze_opt.errors import PhazeError
    from phaze_opt.report.figure_style import empty_figure

    browser = tmp_path / "browser"
    monkeypatch.setenv(BROWSER_VARIABLE, str(browser))
    for url, expected in (
        ("data:image/png;base64,UE5H", b"PNG"),
        ("data:image/svg+xml,%3Csvg%3E", b"<svg>"),
    ):
        browser.write_text(f"#!/bin/sh\necho '<pre id=\"image\">{url}</pre>'\n")
        browser.chmod(0o755)
        assert picture(empty_figure("Nothing."), "png") == expected
    browser.write_text("#!/bin/sh\necho nothing\n")
    with pytest.raises(PhazeError, match="drew no plot"):
        picture(empty_figure("Nothing."), "png")
