"""A browser without a window; its program and driver are Debian's chromium and chromium-driver."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

from phaze_opt.report.images import find_browser


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """Start a browser that keeps a log of what it loads and of what scripts complain about."""
    program, driver = find_browser(), shutil.which("chromedriver")
    assert program is not None and driver is not None, "chromium and chromium-driver are needed"
    options = ChromeOptions()
    options.binary_location = program
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    profile: Path = tmp_path_factory.mktemp("profile")
    arguments = ["--headless=new", "--disable-gpu", "--window-size=1280,1600"]
    arguments += ["--no-first-run", "--disable-background-networking", "--disable-dev-shm-usage"]
    for argument in (*arguments, f"--user-data-dir={profile}"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    started = Chrome(options=options, service=Service(driver))
    started.set_script_timeout(60)
    yield started
    started.quit()
