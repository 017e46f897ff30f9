"""``phaze-opt accelerator`` and ``phaze-opt workload``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Phaze

TINY = "gpt:layers=2,hidden=64,heads=2,sequence=32,vocab=128"


def test_accelerators_are_listed(phaze: Phaze) -> None:
    """Both baselines are among the presets."""
    names = {row["name"] for row in phaze("accelerator", "ls", "--json").json}
    assert {"tpuv4-phaze", "tpuv4-lanes"} <= names
    assert "tpuv4-phaze" in phaze("accelerator", "ls").out


def test_an_accelerator_shows_its_numbers(phaze: Phaze) -> None:
    """Every number is shown, with what was changed, and with its source."""
    shown = phaze("accelerator", "show", "tpuv4-phaze", "--set", "hbm_gib=80", "--json").json
    assert shown["hbm_bytes"] == 80 * 2**30
    assert shown["area_mm2"] == pytest.approx(278.82667631216)
    assert shown["calibration"]["usable_hbm_share"] == 0.94
    table = phaze("accelerator", "show", "tpuv4-phaze").out
    assert "calibration.hbm_efficiency" in table and "Phaze" in table


def test_workloads_are_listed(phaze: Phaze) -> None:
    """The models of the package are shown with their shapes."""
    rows = phaze("workload", "ls", "--json").json
    assert {"bert-large", "gpt2-xl"} <= {row["name"] for row in rows}
    assert "gpt2-xl" in phaze("workload", "ls").out


def test_a_workload_is_captured_into_a_file(phaze: Phaze) -> None:
    """A captured file stands for the model everywhere."""
    assert phaze("workload", "capture", TINY, "--output", "tiny.json").code == 0
    assert Path("tiny.json").exists()
    direct = phaze("workload", "show", TINY, "--json").json
    from_file = phaze("workload", "show", "tiny.json", "--json").json
    assert direct["layers"] == from_file["layers"]
    assert "block" in phaze("workload", "show", "tiny.json").out
