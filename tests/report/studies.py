"""Studies whose pages, plots and reports are tested; the toy cost model answers for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from phaze_opt.study.study import Study
from tests.study.fakes import toy_study

HOSTILE = "toy<script>alert(1)</script>[red]\x1b[31m|`*"
"""A name with HTML, markup of rich and of Markdown, and an escape sequence."""


def run_study(folder: Path, trials: int = 40, **changes: Any) -> Study:
    """Create a toy study in a folder, and run it."""
    study = toy_study(f"sqlite:///{folder / 'toy.db'}", **changes)
    if trials:
        study.run(trials)
    return study
