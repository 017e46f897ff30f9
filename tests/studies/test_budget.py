"""The study of budgets, small: what its page and its table say is what was found."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from studies.budget import __main__ as budget

STUDY = """
name = "budget-{name}"
model = "gpt:layers=2,hidden=512,heads=8,sequence=256,vocab=8000"
cluster = "flat-4GiB"
global_batch = 16
devices = 8
baselines = ["tpuv4"]
[space]
base = "tpuv4-lanes"
num_tc = [1, 2]
devices = [4, 8]
[area]
model = "chip"
[constraints]
{limit}
"""
LIMITS = {"dollars": "max_cost_usd = 1e6", "watts": "max_power_w_rack = 40_000"}


def test_budgets_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of the table for every design, a section of the page for every study."""
    for name, limit in LIMITS.items():
        (tmp_path / f"{name}.toml").write_text(STUDY.format(name=name, limit=limit))
    monkeypatch.setattr(budget, "FOLDER", tmp_path)
    options = ["--workers", "1", "--work", str(tmp_path / "w"), "--output", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["budget", *options])
    budget.main()
    with (tmp_path / "designs.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["study"], row["place"]) for row in rows] == [
        (name, str(place)) for name in LIMITS for place in range(1, 5)
    ]
    for row in rows:
        assert float(row["tco_usd_low"]) <= float(row["tco_usd"]) <= float(row["tco_usd_high"])
    text = (tmp_path / "RESULTS.md").read_text("utf-8")
    assert "1,000,000 USD" in text and "40,000 W per rack of 32" in text
    assert text.count("- certified: 4 designs") == text.count("Certificate checked") == 2
    assert text.count("as fast as tpuv4 on 8 devices") == 2
    assert "<svg" in (tmp_path / budget.PICTURE).read_text("utf-8")
