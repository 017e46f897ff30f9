"""Commands and study files that give an answer again."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from phaze_opt.report.reproducing import _training_options, reproduce_commands, study_file
from phaze_opt.spec.space import Space
from phaze_opt.spec.study_spec import SearchSpec, StudySpec, WorkloadSpec, read_spec
from phaze_opt.training import Training
from tests.report.studies import run_study

SHIPPED = sorted((Path(__file__).parents[2] / "studies").rglob("*.toml"))


def assert_reads_back(spec: StudySpec, folder: Path) -> None:
    """Hold the study file of a spec to reading back as the spec."""
    path = folder / "again.toml"
    path.write_text(study_file(spec), encoding="utf-8")
    assert read_spec(path) == spec


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_studies_read_back(path: Path, tmp_path: Path) -> None:
    """Every study that comes with the project is written without loss."""
    assert_reads_back(read_spec(path), tmp_path)


def test_every_kind_of_value_reads_back(tmp_path: Path) -> None:
    """So are several workloads, objectives, options of the sampler and numbers of the network."""
    axes: dict[str, object] = {
        "num_tc": (1, 8),
        "pe_vc": "2 * pe_x",
        "pe_x": (16, 64),
        "hbm_gb_per_s": {"min": 400, "max": 1200, "step": 400},
        "network.0.latency_us": [0.5, 1.0],
        "zero": {"solve": [0, 1]},
        "recompute": ["none", "full"],
    }
    spec = StudySpec(
        "several",
        cluster='a "quoted" cluster.toml',
        devices=8,
        global_batch=64,
        workloads=(WorkloadSpec("bert-large", weight=2.0), WorkloadSpec("gpt2-xl", name="g")),
        objectives=("throughput", "area"),
        space=Space(**axes),  # type: ignore[arg-type]
        search=SearchSpec(sampler="nsga2", options={"population_size": 12}),
    )
    assert_reads_back(spec, tmp_path)


def test_names_are_quoted_for_a_shell(tmp_path: Path) -> None:
    """A model whose name holds a command is one word of the line."""
    model = "toy; rm -rf $HOME"
    commands = reproduce_commands(run_study(tmp_path, model=model).summary())
    words = shlex.split(commands[-1])
    assert words[:2] == ["phaze-opt", "evaluate"]
    assert words[words.index("--model") + 1] == model


def test_the_placement_of_a_study_is_that_of_its_best_design(tmp_path: Path) -> None:
    """A study of expert placements names them; others name none."""
    study = run_study(tmp_path)
    summary = study.summary()
    assert summary.best is not None
    resolved = summary.best.resolved
    expert = replace(resolved, spec=replace(resolved.spec, placement="expert"))
    placed = replace(summary, best=replace(summary.best, resolved=expert))
    assert "--placement" not in reproduce_commands(summary)[-1]
    assert "--placement expert" in reproduce_commands(placed)[-1]


def test_options_of_copies_and_scales_are_written_as_the_command_takes_them() -> None:
    """A switch that is on, off, or unsaid where the chip decides; numbers and words with theirs."""
    for on, word in ((True, "--fp8-transposes"), (False, "--no-fp8-transposes")):
        words = _training_options(Training(8, precision="fp8", fp8_transposes=on))
        assert words is not None and word in words
    words = _training_options(Training(8, precision="fp8", bf16_layers_at_end=2))
    assert words == ["--microbatch 1", "--precision fp8", "--bf16-layers-at-end 2"]
    words = _training_options(Training(8, precision="fp8", fp8_scaling="delayed"))
    assert words == ["--microbatch 1", "--precision fp8", "--fp8-scaling delayed"]
