"""Tables for the terminal."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from rich.console import Console, RenderableType

from phaze_opt.evaluation import Evaluation, evaluate
from phaze_opt.explanation.explain import explain
from phaze_opt.hardware.presets import accelerator_presets, load_accelerator
from phaze_opt.network.presets import cluster_presets, load_cluster
from phaze_opt.report.explanation import explanation_tables
from phaze_opt.report.layout import sentence
from phaze_opt.report.markdown import note_of
from phaze_opt.report.studies import best_tables, studies_table, study_tables, trials_table
from phaze_opt.report.study_view import view_of
from phaze_opt.report.tables import (
    accelerator_tables,
    cluster_tables,
    evaluation_tables,
    rows_table,
    workload_tables,
)
from phaze_opt.training import Training
from phaze_opt.workload.zoo import load_workload
from tests.study.fakes import toy_study

HOSTILE = "\x1b[2J[red]x[/red]<script>\r../\n$(rm)![a](b)"
TINY = "gpt:layers=2,hidden=64,heads=2,sequence=32,vocab=128"


def printed(table: RenderableType, width: int = 200) -> str:
    """Print as to a file."""
    stream = io.StringIO()
    Console(file=stream, width=width).print(table)
    return stream.getvalue()


def run(
    global_batch: int = 16, microbatch: int = 2, power_limit_w: float | None = None
) -> Evaluation:
    """Evaluate a tiny model on 7 devices, 4 of which 2 replicas of 2 stages use."""
    return evaluate(
        load_workload(TINY, microbatch=(microbatch,)),
        load_accelerator("tpuv4-lanes"),
        load_cluster("tpuv4-ici-flat", 7),
        Training(global_batch, microbatch),
        (2, 2, 1),
        power_limit_w=power_limit_w,
    )


def test_hostile_names_are_shown_not_run(tmp_path: Path) -> None:
    """A name with escape characters, markup or a script is only text, on terminal and page."""
    study = toy_study(f"sqlite:///{tmp_path / 'a.db'}", model=HOSTILE)
    study.run(3)
    summary = study.summary()
    for table in (
        study_tables(study),
        studies_table([summary]),
        rows_table([{"a": HOSTILE}]),
        sentence(HOSTILE),
    ):
        text = printed(table)
        assert "\x1b" not in text and "\r" not in text
        assert "[red]" in text
    note = note_of(view_of(study))
    assert "\n$" not in note and "\r" not in note
    rendered = MarkdownIt().render(note)
    assert "<script" not in rendered and "<a " not in rendered and "<img" not in rendered


def test_no_rows_no_table() -> None:
    """An empty list prints nothing, and does not fail."""
    assert printed(rows_table([])).strip() == ""
    assert printed(studies_table([])).split()[0] == "study"


def test_idle_devices_are_said() -> None:
    """Devices on which no stage runs are counted beside those that are used."""
    evaluation = run()
    assert evaluation.unused_devices == 3
    assert "4 used, 3 idle" in printed(evaluation_tables(evaluation))
    whole = replace(evaluation, unused_devices=0)
    assert "idle" not in printed(evaluation_tables(whole))


def test_padding_is_said() -> None:
    """A global batch that the microbatches do not divide is said to be filled up."""
    assert "beyond the global batch" not in printed(evaluation_tables(run()))
    evaluation = run(global_batch=17)
    assert evaluation.padding_samples == 3
    assert "3 samples per batch beyond the global batch" in printed(evaluation_tables(evaluation))


def test_power_is_said() -> None:
    """The text has the power of a device, and of a point above the limit power and limit."""
    evaluation = run()
    power_w = evaluation.power_w_per_device
    assert f"{power_w:.4g} W per device on average" in printed(evaluation_tables(evaluation))
    limited = run(power_limit_w=power_w / 2)
    assert limited.power_w_per_device == power_w
    text = printed(evaluation_tables(limited))
    assert f"{power_w:.4g} W per device is above the limit of {power_w / 2:g} W" in text
    assert "none fits" not in text


def narrow(table: RenderableType) -> None:
    """Check that 80 columns show a table's words in the order of wide ones: no cell is folded."""
    assert printed(table, 80).split() == printed(table, 500).split()


@pytest.mark.parametrize("name", ["dgx-a100", "tpuv4-torus"])
def test_catalogues_fit_80_columns(name: str) -> None:
    """Accelerators, clusters and workloads are shown without folded cells."""
    narrow(cluster_tables(cluster_presets()[name]))
    narrow(accelerator_tables(load_accelerator("h100"), "h100"))
    workload = load_workload(TINY)
    text = printed(workload_tables(workload), 80)
    assert "embedding" in text and "forward" in text


def test_evaluations_fit_80_columns() -> None:
    """No cell of the tables of an evaluation or of its explanation is folded."""
    narrow(evaluation_tables(run()))
    narrow(evaluation_tables(run(power_limit_w=0.001)))
    explanation = explain(
        load_workload(TINY, microbatch=(2,)),
        load_accelerator("tpuv4-lanes", hbm_bytes=300_000),
        load_cluster("tpuv4-ici-flat", 7),
        Training(16, 2),
    )
    narrow(explanation_tables(explanation))


def test_studies_fit_80_columns(tmp_path: Path) -> None:
    """No cell of the tables of studies is folded."""
    study = toy_study(f"sqlite:///{tmp_path / 'a.db'}", model="m" * 60)
    study.run(6)
    best = study.best()
    assert best is not None
    narrow(best_tables(best))
    narrow(trials_table(study.resolved.spec, study.trials()))
    narrow(studies_table([study.summary()]))


def test_every_preset_says_where_its_numbers_come_from() -> None:
    """Sources are listed once each, under the numbers that refer to them."""
    preset = accelerator_presets()["a100-80"]
    provenance = {
        name: {"source": origin.source, "confidence": origin.confidence}
        for name, origin in preset.provenance.items()
    }
    text = printed(accelerator_tables(preset.accelerator, "a100-80", provenance), 80)
    sources = {origin["source"] for origin in provenance.values()}
    assert all(f"[{number}] " in text for number in range(1, len(sources) + 1))
    assert "calibration.hbm_efficiency" in text
