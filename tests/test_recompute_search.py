"""The fastest recompute of a point, found among all sets of parts."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from phaze_opt.cli.main import run_with

from phaze_opt.errors import InputError
from phaze_opt.evaluation import Evaluation, evaluate, evaluate_one
from phaze_opt.evaluation_json import evaluation_from_json_dict, evaluation_to_json_dict
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.named_point import named_point
from phaze_opt.network.presets import load_cluster
from phaze_opt.point import Point, captured_variants
from phaze_opt.recompute_search import all_choices
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.spec.designs import training_of
from phaze_opt.spec.freezing import freeze
from phaze_opt.spec.space import Space
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.training import Training
from phaze_opt.workload.zoo import load_workload

LLAMA = "llama:layers=8,hidden=1024,heads=16,kv_heads=4,ffn=2816,sequence=2048,vocab=32000"
EAGER = "gpt:layers=8,hidden=1024,heads=16,sequence=1024,vocab=32000"
MIXTURE = (
    "moe:layers=4,hidden=512,heads=8,sequence=1024,vocab=8000,experts=8,top_k=2,expert_ffn=512,"
    "ffn=1024,dense_layers=1"
)
TRAINING = Training(16, 4, optimizer="adam")


def point_of(model: str, chip: str, hbm_gib: float, **options: Any) -> Point:
    """Name a point on 4 devices with little memory."""
    accelerator = load_accelerator(chip, hbm_gib=hbm_gib)
    training = replace(TRAINING, recompute="solve", **options)
    degrees = (options["context_parallel"],) if "context_parallel" in options else (1,)
    workload = load_workload(model, microbatch=(4,), context_parallel=degrees)
    return named_point(workload, accelerator, load_cluster("dgx-h100", 4), training).point


def found(point: Point, cache: dict[str, Schedule] | None = None) -> Evaluation:
    """Evaluate a point with the recompute that is found."""
    inputs = point.workload, point.accelerator, point.cluster, point.training
    return evaluate(*inputs, cache=cache)


def time_s(point: Point, training: Training, cache: dict[str, Schedule]) -> float:
    """Return the time with a given recompute; infinite where it does not fit."""
    return evaluate_one(replace(point, training=training), cache).time_per_batch_s or math.inf


@pytest.mark.parametrize(
    ("model", "chip", "sizes_gib", "options"),
    [
        (LLAMA, "h100", (4.0, 6.0), {}),
        (EAGER, "h100", (3.0, 4.0, 6.0), {"zero": 1}),
        (MIXTURE, "h100", (1.0, 1.25), {"expert_parallel": 2}),
        (LLAMA, "h100", (2.5, 3.0, 4.0), {"context_parallel": 2, "overlap": "all"}),
        (LLAMA, "tpuv4-lanes", (3.0, 4.0), {"residency": False}),
    ],
)
def test_it_is_the_fastest_of_all_sets(
    model: str, chip: str, sizes_gib: tuple[float, ...], options: dict[str, Any]
) -> None:
    """None, selective, full, every single part, and whatever parts together for each kind."""
    cache: dict[str, Schedule] = {}
    different = set()
    for hbm_gib in sizes_gib:
        point = point_of(model, chip, hbm_gib, **options)
        trainings = list(all_choices(captured_variants(point), point.training))
        trainings += [
            replace(point.training, recompute=name) for name in ("selective", "full")
        ]  # fmt: skip
        least_s = min(time_s(point, training, cache) for training in trainings)
        result = found(point, cache)
        assert (result.time_per_batch_s or math.inf) == least_s
        different.add(result.recompute)
    assert len(different) > 1


def test_little_memory_takes_parts_and_much_takes_none() -> None:
    """The evaluation names what was found, and is that of a run which states it."""
    names = []
    for hbm_gib in (80.0, 6.0, 4.0):
        point = point_of(LLAMA, "h100", hbm_gib)
        result = found(point)
        assert result.recompute
        names.append(result.recompute)
        stated: dict[str, Any] = {"recompute": result.recompute}
        if result.recompute not in ("none", "selective", "full"):
            stated = {"recompute": "selective", "recompute_parts": result.recompute}
        again = evaluate_one(replace(point, training=replace(point.training, **stated)))
        assert again.time_per_batch_s == result.time_per_batch_s
        assert again.recompute is None
        plain = json.loads(json.dumps(evaluation_to_json_dict(result)))
        assert evaluation_from_json_dict(plain) == result
    assert names[0] == "none" and len(set(names)) == 3
    assert any(name not in ("none", "selective", "full") for name in names)


def test_what_never_fits_says_what_full_recompute_lacks() -> None:
    """As an infeasible point does."""
    result = found(point_of(LLAMA, "h100", 0.25))
    assert not result.feasible and result.reason and "more than the usable" in result.reason


def test_elsewhere_it_is_refused_in_a_sentence() -> None:
    """A study has solved axes for it; points of objects state what they run."""
    with pytest.raises(InputError, match="recompute is solve, which only evaluate and explain"):
        evaluate_one(point_of(LLAMA, "h100", 80.0))
    with pytest.raises(InputError, match="a study has axes that are solved"):
        StudySpec("parts", LLAMA, "dgx-h100", 4, 16, recompute="solve")
    with pytest.raises(InputError, match="a study has axes that are solved"):
        StudySpec("parts", LLAMA, "dgx-h100", 4, 16, space=Space("h100", recompute=["solve"]))


def test_parts_are_options_of_a_study() -> None:
    """They imply selective recompute, and those that no layer has are refused at once."""
    axis = {"solve": ["", "mlp", "layernorm,mlp"]}
    spec = StudySpec(
        "parts", LLAMA, "dgx-h100", 4, 16, space=Space("h100", recompute_parts=axis),
        baselines=("h100",),
    )  # fmt: skip
    assert freeze(spec)
    options: dict[str, Any] = {
        "global_batch": 16,
        "interleave": 1,
        "recompute": "none",
        "recompute_parts": "mlp",
    }
    assert training_of(options, None).recompute == "selective"
    with pytest.raises(InputError, match="recompute_parts names moe, which no layer"):
        freeze(replace(spec, space=Space("h100", recompute_parts=["moe"])))


def test_the_command_line_takes_both(capsys: pytest.CaptureFixture[str]) -> None:
    """`--recompute solve` and `--recompute-parts`, which implies selective recompute."""
    words = ["--model", LLAMA, "--accelerator", "h100", "--set", "hbm_gib=2", "--cluster"]
    words += ["dgx-h100", "--devices", "4", "--global-batch", "16", "--microbatch", "4"]
    words += ["--optimizer", "adam", "--json"]
    assert run_with(["evaluate", *words, "--recompute", "solve"]) == 0
    solved = json.loads(capsys.readouterr().out)
    assert run_with(["explain", *words, "--recompute", "solve"]) == 0
    assert json.loads(capsys.readouterr().out)["recompute"] == solved["recompute"]
    parts = solved["recompute"]
    assert run_with(["evaluate", *words, "--recompute-parts", parts]) == 0
    stated = json.loads(capsys.readouterr().out)
    assert stated["time_per_batch_s"] == solved["time_per_batch_s"]
    assert run_with(["evaluate", *words, "--recompute-parts", "mpl"]) == 2
    assert "Unknown part in recompute_parts" in capsys.readouterr().err
