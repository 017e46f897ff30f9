"""The dashboard and the report in a real browser, beside a study that two workers run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from selenium.common.exceptions import WebDriverException
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from phaze_opt.report.plots.by_kind import PLOT_KINDS, TITLES
from phaze_opt.report.study_view import view_of
from phaze_opt.study.study import Study, load_study
from phaze_opt.units import format_number
from tests.cli.conftest import SMALL_STUDY

MANY_TRIALS = 5_000
_PATIENCE_S = 90.0

Found = TypeVar("Found")


@dataclass(frozen=True)
class Served:
    """A dashboard on a study that is being run."""

    address: str
    study: Study

    @property
    def base(self) -> str:
        """The address of the server, without a page."""
        return self.address.partition("/study/")[0]

    @property
    def optuna(self) -> str:
        """The address of Optuna Dashboard's pages of the study."""
        return f"{self.base}/dashboard/studies/{self.study.optuna_id}"


def command(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a command of phaze-opt."""
    program = "import phaze_opt.cli.main as main; main.run()"
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PHAZE_STORAGE": f"sqlite:///{folder / 'a.db'}"},
    )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve a study; two workers begin to run it, and the rest of it waits for a test."""
    folder = tmp_path_factory.mktemp("served")
    text = SMALL_STUDY.replace('name = "small"', 'name = "watched"')
    (folder / "watched.toml").write_text(text, encoding="utf-8")
    assert command(folder, "study", "create", "watched.toml").wait() == 0
    server = command(folder, "dashboard", "watched", "--port", "0")
    assert server.stderr is not None
    lines = [server.stderr.readline() for _ in range(2)]
    (address,) = re.findall(r"http://\S+", lines[1])
    yield Served(address, load_study("watched", f"sqlite:///{folder / 'a.db'}"))
    server.terminate()
    server.wait(20)


def wait_for(ask: Callable[[], Found]) -> Found:
    """Ask until the answer is yes."""
    end_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            if found := ask():
                return found
        except WebDriverException:
            pass  # The page is being changed.
        assert time.monotonic() < end_s, "the page did not change in time"
        time.sleep(0.2)


def text_of(browser: Chrome, selector: str) -> str:
    """Return the text of an element."""
    return browser.find_element(By.CSS_SELECTOR, selector).text


def drawn(browser: Chrome, kind: str) -> bool:
    """Whether a plot of ours has marks on its page."""
    shapes = "path.point, g.point path, path.js-line, g.trace"
    return bool(browser.find_elements(By.CSS_SELECTOR, f"#plot-{kind} svg {shapes}"))


def complaints(browser: Chrome) -> list[str]:
    """Return what scripts have complained about since the last look."""
    return [
        entry["message"]
        for entry in browser.get_log("browser")  # type: ignore[no-untyped-call]
        if entry["level"] == "SEVERE" and "favicon" not in entry["message"]
    ]


def requests(browser: Chrome) -> list[str]:
    """Return the addresses that the browser asked for since the last look."""
    entries = browser.get_log("performance")  # type: ignore[no-untyped-call]
    messages: list[Any] = [json.loads(entry["message"])["message"] for entry in entries]
    return [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]


def test_the_page_follows_a_running_study(browser: Chrome, served: Served) -> None:
    """Trials appear on the open page while two workers run; stopped, it shows the best feasible."""
    browser.get(served.address)
    assert "No trial has run yet" in text_of(browser, "#answer")
    folder = Path(str(served.study.storage.url.database)).parent
    # More trials than any machine runs before the page is looked at again; the test stops them.
    asked = ("--trials", str(MANY_TRIALS), "--workers", "2")
    run = command(folder, "study", "run", "watched", *asked)

    def counted() -> int:
        match = re.search(r"lines of ([\d,]+) trials", text_of(browser, "#details"))
        return int(match[1].replace(",", "")) if match else 0

    first = wait_for(counted)
    wait_for(lambda: counted() > first and "running" in text_of(browser, "#head"))
    assert run.poll() is None
    assert command(folder, "study", "stop", "watched").wait() == 0
    run.wait(_PATIENCE_S)
    complete = len(served.study.trials())
    assert first < complete < MANY_TRIALS
    wait_for(lambda: counted() == complete and "stopped" in text_of(browser, "#head"))
    view = view_of(served.study)
    assert text_of(browser, "#answer .headline") == view.headline
    first_row = text_of(browser, "#trials tbody tr td").strip()
    best = served.study.best()
    assert best is not None and first_row == str(best.number)
    feasible = [one.metrics.value for one in served.study.trials() if one.rank and one.metrics]
    assert view.headline == f"{format_number(max(feasible))} samples/s"
    assert complaints(browser) == []


def test_our_page_shows_plots_and_sorts(browser: Chrome, served: Served) -> None:
    """Every plot is drawn with its title, a click sorts the trials, and nothing comes from afar."""
    requests(browser)
    browser.get(served.address)
    for kind in PLOT_KINDS:
        wait_for(lambda kind=kind: drawn(browser, kind))  # type: ignore[misc]
        assert TITLES[kind] in text_of(browser, "main")
    headers = browser.find_elements(By.CSS_SELECTOR, "#trials th")
    headers[0].click()
    cells = browser.find_elements(By.CSS_SELECTOR, "#trials tbody tr:not([hidden]) td:first-child")
    numbers = [int(cell.text) for cell in cells]
    assert numbers == sorted(numbers)
    files = browser.find_elements(By.CSS_SELECTOR, ".files a")
    assert {"breakdown.csv", "pipeline.html", "schedules.html"} <= {one.text for one in files}
    assert all(url.startswith((served.base, "data:", "blob:")) for url in requests(browser))
    assert complaints(browser) == []


def test_a_trial_is_selected_in_all_plots_and_in_the_table(browser: Chrome, served: Served) -> None:
    """A click on its line marks it wherever it is drawn, and another click takes that back."""
    browser.get(served.address)
    wait_for(lambda: drawn(browser, "parallel"))
    row = browser.find_element(By.CSS_SELECTOR, "#trials tbody tr:not([hidden]) td:nth-child(4)")
    marked = """return [...document.querySelectorAll('.figure')].filter((place) =>
        place.data?.some((trace) => trace.uid === 'selected')).map((place) => place.id)"""
    assert browser.execute_script(marked) == []
    row.click()
    of_trials = ["plot-history", "plot-area", "plot-parallel"]
    wait_for(lambda: browser.execute_script(marked) == of_trials)
    assert len(browser.find_elements(By.CSS_SELECTOR, "#trials tr.selected")) == 1
    row.click()
    wait_for(lambda: browser.execute_script(marked) == [])
    assert complaints(browser) == []


def test_nothing_is_cut_off_on_a_telephone(browser: Chrome, served: Served) -> None:
    """At 420 pixels the page is no wider than the screen, and no table scrolls sideways."""
    size = {"width": 420, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        browser.get(served.address)
        wait_for(lambda: drawn(browser, "importance"))
        wide = """return [document.documentElement, ...document.querySelectorAll('.wide')].filter(
            (one) => one.scrollWidth > Math.min(420, one.clientWidth)).map((one) => one.tagName)"""
        assert browser.execute_script(wide) == []
        overlapping = """
            const boxes = [...document.querySelectorAll('#plot-importance .annotation')]
                .map((one) => one.getBoundingClientRect());
            return boxes.filter((a, at) => boxes.some((b, other) => other > at &&
                a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)
            ).length"""
        assert browser.execute_script(overlapping) == 0
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_timelines_open_in_their_sandbox(browser: Chrome, served: Served) -> None:
    """The drawing of the schedules shows lanes, and runs no script."""
    browser.get(served.address)
    link = browser.find_element(By.LINK_TEXT, "schedules.html").get_attribute("href")
    assert link is not None
    browser.get(link)
    assert len(browser.find_elements(By.CSS_SELECTOR, "svg rect")) > 4
    assert "TC 0" in text_of(browser, "body")


def test_optunas_pages_show_note_plots_and_best(browser: Chrome, served: Served) -> None:
    """The study page has our plots, its note the answer, and the best trial its files."""
    best = served.study.best()
    assert best is not None
    browser.get(served.optuna)
    wait_for(lambda: f"Best Trial (number={best.number})" in text_of(browser, "body"))
    wait_for(lambda: all(TITLES[kind] in browser.page_source for kind in PLOT_KINDS))
    assert any(one.kind == "infeasible" for one in served.study.trials())
    wait_for(lambda: "Infeasible" in browser.page_source)
    browser.get(f"{served.optuna}/note")
    wait_for(lambda: view_of(served.study).headline in text_of(browser, "body"))
    browser.get(f"{served.optuna}/trials?numbers={best.number}")
    wait_for(lambda: "the best so far" in text_of(browser, "body"))
    wait_for(lambda: "breakdown.csv" in text_of(browser, "body"))
    # Its attributes are longer than any screen is wide.
    wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.execute_script(wide) == 0


def test_a_report_opens_without_a_network(browser: Chrome, served: Served, tmp_path: Path) -> None:
    """The file shows its plots while the browser is offline, and asks for nothing."""
    folder = Path(str(served.study.storage.url.database)).parent
    report = tmp_path / "report.html"
    assert command(folder, "report", "watched", "--output", str(report)).wait(_PATIENCE_S) == 0
    assert report.stat().st_size < 9_000_000
    offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    try:
        requests(browser)
        browser.get(report.as_uri())
        for kind in PLOT_KINDS:
            wait_for(lambda kind=kind: drawn(browser, kind))  # type: ignore[misc]
        assert view_of(served.study).headline in text_of(browser, "#answer")
        asked = [url for url in requests(browser) if not url.startswith(("data:", "blob:"))]
        assert asked == [report.as_uri()]
        assert complaints(browser) == []
    finally:
        online = {**offline, "offline": False, "downloadThroughput": -1, "uploadThroughput": -1}
        browser.execute_cdp_cmd("Network.emulateNetworkConditions", online)


def test_plots_are_drawn_as_pictures(served: Served, tmp_path: Path) -> None:
    """PNG and SVG come from the same Chromium."""
    folder = Path(str(served.study.storage.url.database)).parent
    for name, begin in (("a.png", b"\x89PNG"), ("a.svg", b"<svg")):
        path = tmp_path / name
        assert command(folder, "plot", "watched", "area", "-o", str(path)).wait(_PATIENCE_S) == 0
        assert path.read_bytes().startswith(begin)
