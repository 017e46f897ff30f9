"""Names stand for objects, in Python as on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from phaze_opt.cli.main import run_with

import phaze_opt as po
from phaze_opt.evaluation_json import evaluation_to_json_dict
from phaze_opt.explanation import explain
from phaze_opt.workload.workload_file import write_workload
from phaze_opt.workload.zoo import LoadWorkload

evaluate: Any = po.evaluate
explanation: Any = po.explain
TINY = "gpt:layers=2,hidden=64,heads=2,sequence=32,vocab=128"
TRAINING = po.Training(16, 2, "full", sequence_parallel=True)
NAMED: Any = (TINY, "h100", "dgx-h100", TRAINING)


def objects(tensor_degrees: tuple[int, ...] = (1, 2), model: str = TINY, **options: Any) -> Any:
    """Return what the names stand for, made by hand."""
    captured: dict[str, Any] = {
        "tensor_parallel": tensor_degrees,
        "microbatch": (2,),
        "sequence_parallel": True,
    }
    workload = po.load_workload(model, **captured, **options)
    return workload, po.load_accelerator("h100"), po.load_cluster("dgx-h100", 4), TRAINING


@pytest.mark.parametrize("placement", ["solve", (2, 1, 2), "2x1x2", [1, 4, 1]])
def test_names_are_what_they_stand_for(placement: Any) -> None:
    """The model is captured as training and placement need it."""
    whole = placement if placement != "2x1x2" else (2, 1, 2)
    tensor_degrees = (1, 2) if placement == "solve" else (whole[2],)
    by_name = evaluate(*NAMED, placement=placement, devices=4)
    assert by_name == evaluate(*objects(tensor_degrees), placement=whole)
    assert by_name.feasible


def test_some_may_be_named_and_others_not() -> None:
    """Each argument by itself may be a name or an object."""
    expected, made = evaluate(*objects()), objects()
    for place, name in enumerate(NAMED[:3]):
        given: list[Any] = [*made]
        given[place] = name
        assert evaluate(*given, devices=4 if place == 2 else None) == expected


def test_options_of_a_named_model() -> None:
    """Sequence and attention change it as they do on the command line."""
    shape: dict[str, Any] = {"sequence": 64, "attention": "flash"}
    by_name = evaluate(*NAMED, devices=4, **shape)
    assert by_name == evaluate(*objects(**shape))
    assert by_name != evaluate(*NAMED, devices=4)


def test_files_are_named_by_their_paths(tmp_path: Path) -> None:
    """A captured model, a chip and a network in files, as text or as paths."""
    write_workload(objects()[0], tmp_path / "m.json")
    (tmp_path / "a.toml").write_text('base = "h100"\n')
    (tmp_path / "c.toml").write_text('base = "dgx-h100"\n')
    paths = [tmp_path / name for name in ("m.json", "a.toml", "c.toml")]
    expected = evaluate(*objects()).throughput_samples_per_s
    for given in (paths, map(str, paths)):
        result = evaluate(*given, TRAINING, devices=4)
        assert result.throughput_samples_per_s == expected


def test_python_and_the_command_line_agree(capsys: pytest.CaptureFixture[str]) -> None:
    """One point, whoever names it; its explanation too."""
    words = ["--model", TINY, "--accelerator", "h100", "--cluster", "dgx-h100", "--devices", "4"]
    words += ["--global-batch", "16", "--microbatch", "2", "--recompute", "full", "--json"]
    words += ["--sequence-parallel", "--placement", "2x1x2", "--sequence", "64"]
    assert run_with(["evaluate", *words]) == 0
    printed = json.loads(capsys.readouterr().out)
    options: Any = {"placement": "2x1x2", "devices": 4, "sequence": 64}
    result = evaluate(*NAMED, **options)
    assert printed == json.loads(json.dumps(evaluation_to_json_dict(result)))
    assert explanation(*NAMED, **options).evaluation == result


def test_a_named_model_is_tried_under_other_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would make it fit is sought by its name, with its sequence."""
    loads: list[LoadWorkload] = []
    monkeypatch.setattr(explain, "explain_point", lambda point, load, cache: loads.append(load))
    explanation(*NAMED, placement=(1, 4, 1), devices=4, sequence=64)
    (load,) = loads
    expected = po.load_workload(TINY, microbatch=(2,), sequence=64)
    assert load(po.Training(8, 2), 1) == expected


@pytest.mark.parametrize(
    ("given", "options", "sentence"),
    [
        (NAMED, {}, "devices is missing: say how many accelerators the network 'dgx-h100' joins"),
        (objects, {"devices": 4}, "devices is 4, but the cluster is an object that has its own"),
        (objects, {"sequence": 4}, "sequence is 4, but the workload is an object"),
        (objects, {"attention": "flash"}, "attention is 'flash', but the workload is an object"),
        (
            ("bert-larg", *NAMED[1:]),
            {"devices": 4},
            "Unknown model 'bert-larg'. Did you mean 'bert-large'",
        ),
        (("bert-large", "h10", *NAMED[2:]), {"devices": 4}, "Did you mean 'h100'?"),
        (NAMED, {"devices": 4, "placement": "4x1"}, "placement is '4x1', but it must be solve, "),
        (NAMED, {"devices": 4, "placement": (0, 1, 1)}, r"placement is \(0, 1, 1\), but it must"),
        (NAMED, {"devices": 4, "power_limit_w": 0}, "power_limit_w is 0, but it must be positive"),
        (NAMED, {"devices": 4, "lane_rate": -1.0}, "lane_rate is -1.0, but it must be positive"),
    ],
)
def test_what_names_nothing_is_refused(given: Any, options: Any, sentence: str) -> None:
    """Unknown names, and options that belong to a name beside an object."""
    with pytest.raises(po.InputError, match=sentence):
        evaluate(*(given() if callable(given) else given), **options)


def test_a_study_is_made_from_a_file_and_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study file and a captured model by their paths, a base by its own, as text or not."""
    monkeypatch.chdir(tmp_path)
    Path("base.toml").write_text('base = "tpuv4-lanes"\n')
    text = 'name = "a"\nmodel = "bert-large"\ncluster = "flat-4GiB"\ndevices = 1\n'
    Path("a.toml").write_text(f"{text}global_batch = 4\n[space]\nnum_tc = [1, 2]\n")
    write_workload(po.load_workload(TINY), Path("m.json"))
    study = po.create_study(Path("a.toml"), "sqlite:///a.db", workload="m.json")
    assert study.workloads() == (po.load_workload(TINY),)
    again = po.create_study("a.toml", "sqlite:///a.db", exist_ok=True, workload=[Path("m.json")])
    assert again.uid == study.uid
    assert po.Space(base=Path("base.toml")) == po.Space(base="base.toml")
    spec: Any = {"cluster": "flat-4GiB", "devices": 1, "global_batch": 8}
    assert po.StudySpec("a", model=Path("m.json"), **spec).model == "m.json"  # type: ignore[arg-type]
    with pytest.raises(
        po.InputError, match=re.escape("2 workloads are given, but the study has 1")
    ):
        po.create_study("a.toml", "sqlite:///b.db", workload=["m.json", "m.json"])
    assert not Path("b.db").exists()
