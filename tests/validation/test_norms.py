"""Norms against measured kernels, forward and backward, and rows that a cache cannot keep."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest

from phaze_opt.estimator.single import estimate_vector
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.validation.norms import validate_norms


def test_norms_are_within_15_percent_both_ways() -> None:
    """All measured rows together, and those of the H200, which fill the chip, within 6 %."""
    tables = validate_norms()
    rows = [row for table in tables for row in table.rows]
    assert len(rows) == 26
    assert fmean(abs(row.error) for row in rows) <= 0.15
    own = [row for table in tables if table.accelerator == "h200" for row in table.rows]
    assert fmean(abs(row.error) for row in own) <= 0.06


def test_long_rows_are_read_twice_where_a_cache_cannot_keep_them() -> None:
    """Half more traffic on an MI210, and none on a chip that manages its buffer."""
    chip = load_accelerator("mi210")
    short, long = (estimate_vector("layernorm", 4096, columns, chip) for columns in (2048, 8192))
    assert short.hbm_bytes == pytest.approx(4 * 4096 * 2048)
    assert long.hbm_bytes == pytest.approx(6 * 4096 * 8192)
    managed = replace(chip, concurrent_operators=True)
    kept = estimate_vector("layernorm", 4096, 8192, managed)
    assert kept.hbm_bytes == pytest.approx(4 * 4096 * 8192)
