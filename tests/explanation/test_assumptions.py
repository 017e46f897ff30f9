"""Numbers that nobody stated and that decide the answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from phaze_opt.evaluation import Evaluation, evaluate
from phaze_opt.explanation.assumptions import LEAST_SHARE, binding_assumptions
from phaze_opt.hardware.chip_file import AcceleratorPreset
from phaze_opt.hardware.presets import accelerator_presets, find_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.report.words import assumption_words
from phaze_opt.training import Training
from phaze_opt.workload.graph import Workload
from phaze_opt.workload.zoo import load_workload

B200 = "num_tc = 148\npe_x = 64\npe_y = 64\nnum_vc = 148\npe_vc = 128\n"


@pytest.fixture(scope="module")
def workload() -> Workload:
    """Llama 3 with 8 billion parameters, a sample at a time."""
    return load_workload("llama3-8b", tensor_parallel=(1, 2))


def naive(tmp_path: Path, text: str) -> AcceleratorPreset:
    """Return a B200 as somebody writes it."""
    path = tmp_path / "b200.toml"
    path.write_text(B200 + text)
    return find_accelerator(str(path))


def run(workload: Workload, preset: AcceleratorPreset) -> Evaluation:
    """Train on 64 devices."""
    training = Training(256, 1, "selective", "adam", zero=1)
    return evaluate(workload, preset.accelerator, load_cluster("dgx-b200", 64), training)


def test_a_naive_chip_is_as_fast_as_the_preset(tmp_path: Path, workload: Workload) -> None:
    """At least 0.8 of its throughput; what it leaves to a chip on paper is named."""
    text = "glb_mib = 126\nhbm_gib = 180\nhbm_gb_per_s = 8000\nclock_ghz = 1.856\n"
    preset = naive(tmp_path, text)
    evaluation, real = run(workload, preset), run(workload, accelerator_presets()["b200"])
    assert evaluation.throughput_samples_per_s >= 0.8 * real.throughput_samples_per_s
    assumptions = binding_assumptions(preset.assumed, evaluation)
    assert {assumption.field for assumption in assumptions} == {"calibration.array_efficiency"}
    assert not binding_assumptions(accelerator_presets()["b200"].assumed, real)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("glb_mib = 126\nhbm_gib = 180\nclock_ghz = 1.856\n", "hbm_bytes_per_s"),
        ("glb_mib = 126\nhbm_gib = 180\nhbm_gb_per_s = 8000\n", "clock_hz"),
        (
            "glb_mib = 126\nhbm_gb_per_s = 8000\nhbm_gib = 180\nl2_tc_kib = 64\n"
            "glb_bytes_per_cycle = 4096\nclock_ghz = 1.8\n",
            None,
        ),
    ],
)
def test_the_field_that_binds_is_named(
    tmp_path: Path, workload: Workload, text: str, field: str | None
) -> None:
    """What is stated is not named, whatever it binds."""
    preset = naive(tmp_path, text)
    evaluation = run(workload, preset)
    named = {
        assumption.field: assumption
        for assumption in binding_assumptions(preset.assumed, evaluation)
    }
    own = {name for name in named if not name.startswith("calibration.")}
    assert own == ({field} if field else set())
    for assumption in named.values():
        assert assumption.share > LEAST_SHARE
        assert assumption.origin in assumption_words(assumption, preset.accelerator)


def test_a_memory_that_nobody_stated_and_that_is_too_small_is_named(
    tmp_path: Path, workload: Workload
) -> None:
    """As what the run does not fit."""
    preset = naive(tmp_path, "glb_mib = 126\nhbm_gb_per_s = 8000\nclock_ghz = 1.856\n")
    training = Training(256, 1, "none", "adam")
    evaluation = evaluate(
        workload, preset.accelerator, load_cluster("dgx-b200", 2), training, (1, 2, 1)
    )
    named = {
        assumption.field: assumption
        for assumption in binding_assumptions(preset.assumed, evaluation)
    }
    assert named["hbm_bytes"].resource == "memory"
    words = assumption_words(named["hbm_bytes"], preset.accelerator)
    assert "hbm_gib, which is 32 (default), and the run does not fit it" in words
