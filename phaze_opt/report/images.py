"""Plots as pictures, PNG or SVG: drawn by a Chromium where the machine has one."""

from __future__ import annotations

import base64
import binascii
import os
import re
import shutil
import subprocess
import tempfile
import urllib.parse
from pathlib import Path

from phaze_opt.errors import PhazeError
from phaze_opt.report.figure_style import Figure
from phaze_opt.report.page import image_page

BROWSER_VARIABLE = "PHAZE_CHROMIUM"
"""Environment variable that names the program, where it has another name or place."""

_PROGRAMS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "microsoft-edge",
)
_LONGEST_S = 120
_DRAWING_MS = 20_000
_WIDTH = 1100
_IMAGE = re.compile(r'<pre id="image">data:image/(?:png|svg\+xml)(;base64)?,([^<]+)</pre>')


def find_browser() -> str | None:
    """Return the path of a Chromium; ``None`` where there is none."""
    named = os.environ.get(BROWSER_VARIABLE)
    for program in (named,) if named else _PROGRAMS:
        path = shutil.which(program)
        if path is not None:
            return path
    return None


def picture(figure: Figure, file_format: str) -> bytes:
    """Draw a figure as ``png`` or ``svg``.

    Raises
    ------
    PhazeError
        If there is no Chromium, or it draws nothing.
    """
    browser = find_browser()
    if browser is None:
        raise PhazeError(
            f"A plot as .{file_format} is drawn by a Chromium, and none is found; install one, "
            f"name it in {BROWSER_VARIABLE}, or write .html, which any browser shows."
        )
    with tempfile.TemporaryDirectory(prefix="phaze-plot-") as folder:
        page = Path(folder, "plot.html")
        page.write_text(image_page(figure, file_format, _WIDTH), encoding="utf-8")
        image = _IMAGE.search(_drawn(browser, page, Path(folder, "profile")))
    if image is None:
        raise PhazeError(f"The browser {browser} drew no plot; write .html instead.")
    try:
        if image[1]:
            return base64.b64decode(image[2], validate=True)
        return urllib.parse.unquote(image[2]).encode()
    except (binascii.Error, ValueError):
        raise PhazeError(f"The browser {browser} drew a damaged plot.") from None


def _drawn(browser: str, page: Path, profile: Path) -> str:
    """Let a browser run a page of ours, and return what the page then holds."""
    command = [
        browser,
        "--headless=new",
        "--disable-gpu",
        "--no-first-run",
        f"--user-data-dir={profile}",
        f"--virtual-time-budget={_DRAWING_MS}",
        "--dump-dom",
    ]
    if os.geteuid() == 0:
        # Chromium refuses to run as root in its sandbox; it reads nothing but the page of ours.
        command.append("--no-sandbox")
    try:
        done = subprocess.run(
            [*command, page.as_uri()], capture_output=True, timeout=_LONGEST_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PhazeError(f"The browser {browser} cannot draw: {error}.") from None
    return done.stdout.decode(errors="replace")
