"""Predictions of other models stand beside what was measured, with version and command."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from docs.tools.peers import FOLDER, peer_rows, peers_table
from phaze_opt.calibration.calibrate import Measurements, calibrate
from phaze_opt.calibration.measured_files import read_products
from phaze_opt.codec import data_rows
from phaze_opt.hardware.presets import find_accelerator, load_accelerator


def test_every_prediction_can_be_made_again() -> None:
    """Each row says what predicted it, in which version, and how."""
    for name in ("calculon.csv", "simumax.csv"):
        with (FOLDER / name).open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        assert len({(row["table"], row["case"]) for row in rows}) == len(rows) > 8
        for row in rows:
            assert row["version"].startswith(("calculon-ai/", "MooreThreads/"))
            assert row["command"] and float(row["predicted_s"]) > 0.0


def test_means_are_said_as_they_are() -> None:
    """Ours are smaller than Calculon's over its rows; the page names every table where not."""
    of_calculon = [row for row in peer_rows() if row.peer == "Calculon"]
    assert len(of_calculon) == 9 and len(peer_rows()) == 40
    theirs, ours = (
        sum(abs(getattr(row, name)) for row in of_calculon) for name in ("peer_error", "own_error")
    )
    assert ours < theirs
    page = peers_table()
    for peer, name in {(row.peer, row.table) for row in peer_rows()}:
        rows = [row for row in peer_rows() if (row.peer, row.table) == (peer, name)]
        worse = sum(abs(row.own_error) - abs(row.peer_error) for row in rows) >= 0.0
        assert (f"{peer} on {name}" in page) == worse


def test_the_chip_is_calibrated_on_the_operators_of_the_other(tmp_path: Path) -> None:
    """`phaze-opt calibrate --rows sustained` gives its one constant again."""
    columns = ("m", "n", "k", "layout", "latency_s")
    rows = data_rows("validation", "gemm_sustained.csv")
    lines = [
        ",".join(row[name] for name in columns) for row in rows if row["accelerator"] == "b200"
    ]
    path = tmp_path / "products.csv"
    path.write_text("\n".join([",".join(columns), *lines]))
    measured = Measurements({"gemm": path.name}, gemm=read_products(path), sustained=True)
    found = calibrate(find_accelerator("b200"), measured).chip.accelerator.calibration
    stated = load_accelerator(str(FOLDER / "b200-simumax.toml")).calibration
    assert found.sustained_peak_share == pytest.approx(stated.sustained_peak_share, rel=1e-6)
    assert len(lines) == 257
