import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from phaze_opt.codec import to_builtins
from phaze_opt.errors import InputError, NotFoundError
from phaze_opt.scheduling.problem_file import (
    ResourceUse,
    read_problems,
    to_result,
    utilisation,
)
from phaze_opt.scheduling.schedule_problem import (
    Schedule,
    ScheduledOperator,
    ScheduleOperator,
    ScheduleProblem,
)
from phaze_opt.scheduling.solve_schedule import solve_schedule
from tests.scheduling.strategies import problems

ROW: dict[str, Any] = {
    "name": "pair",
    "num_tc": 1,
    "num_vc": 1,
    "operators": [
        {"id": "a", "core": "TC", "latency_s": 2, "intra_op_latency_s": 2.0, "hbm_fraction": 0.3},
        {"id": "b", "core": "VC", "latency_s": 1.0, "intra_op_latency_s": 1.0},
    ],
    "edges": [["b", "a"]],
}


def changed(**changes: Any) -> str:
    """Write the row's JSON with other keys."""
    return json.dumps({**ROW, **changes})


def with_operator(**changes: Any) -> str:
    """Write the row's JSON with another first operator."""
    return changed(operators=[{**ROW["operators"][0], **changes}, ROW["operators"][1]])


def test_one_problem_or_lines(tmp_path: Path) -> None:
    """A file holds one problem, written over several lines or not, or one on each line."""
    path = tmp_path / "problems.json"
    path.write_text(json.dumps(ROW, indent=2))
    (problem,) = read_problems(path)
    assert problem.edges == ((1, 0),)
    path.write_text(f"{changed()}\n\n{changed(name='again', optimal_makespan_s=3.0)}\n")
    assert [entry.name for entry in read_problems(path)] == ["pair", "again"]


def test_shares_on_all_cores_default_to_those_on_one(tmp_path: Path) -> None:
    """A file may give one share for both modes; without any it is 0."""
    path = tmp_path / "problem.json"
    path.write_text(changed())
    first, second = read_problems(path)[0].operators
    assert (first.intra_op_hbm_fraction, second.hbm_fraction) == (0.3, 0.0)


def test_result_has_the_promised_keys(tmp_path: Path) -> None:
    """The result has the keys of the command's contract."""
    path = tmp_path / "problem.json"
    path.write_text(changed())
    (problem,) = read_problems(path)
    result = to_builtins(to_result(problem, solve_schedule(problem)))
    assert result["makespan_s"] == 3.0
    assert list(result) == [
        "name",
        "makespan_s",
        "status",
        "bound_s",
        "gap",
        "solve_s",
        "utilisation",
    ]
    assert result["utilisation"]["tc"] == {"average": pytest.approx(2 / 3), "peak": 1.0}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "Expected `object`"),
        (changed(edges=[["a", "z"]]), "no operator 'z'"),
        (changed(edges=[["a", "b"], ["b", "a"]]), "cycle"),
        (changed(colour="red"), "colour"),
        (changed(tensors=[{"form": "a", "to": [], "bytes": 1}]), "'form'. Did you mean 'from'"),
        (changed(tensors=[{"from": "a", "to": "b", "bytes": 1}]), r"got 'b' - at .*\.to`"),
        (with_operator(core="DSP"), "'a'.*'DSP'"),
        (with_operator(latency_s=float("nan")), "'a' is nan"),
        (with_operator(latency_s=-1), "'a' is -1"),
        (with_operator(hbm_fraction=2), "'a' is 2"),
        (with_operator(id="b"), "Two operators.*'b'"),
        (changed(num_tc=0), "No core.*'a'"),
    ],
)
def test_malformed_files_are_refused(tmp_path: Path, text: str, words: str) -> None:
    """Every kind of wrong file is refused in one sentence."""
    path = tmp_path / "problem.json"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read_problems(path)


def test_a_refusal_names_the_line(tmp_path: Path) -> None:
    """Among many problems, the refusal names the line of the invalid one."""
    path = tmp_path / "problems.jsonl"
    path.write_text(f"{changed()}\n{with_operator(latency_s=-1)}\n")
    with pytest.raises(InputError, match=r"line 2 is not valid: latency_s of operator 'a'"):
        read_problems(path)


def test_missing_and_binary_files(tmp_path: Path) -> None:
    """A file that is not there is not found; one that is not text is refused."""
    with pytest.raises(NotFoundError):
        read_problems(tmp_path / "nothing.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="UTF-8"):
        read_problems(tmp_path / "binary.json")


@settings(max_examples=60, deadline=None)
@given(problem=problems(most=8))
def test_average_at_most_peak_at_most_one(problem: ScheduleProblem) -> None:
    """For a valid schedule, average use <= peak use <= 1."""
    loads = utilisation(problem, solve_schedule(problem))
    for load in (loads.tc, loads.vc, loads.hbm, loads.glb, loads.link):
        assert 0.0 <= load.average <= load.peak + 1e-9
        assert load.peak <= 1.0 + 1e-6


def test_both_modes_and_types_count() -> None:
    """Both modes count, and a fused operator counts for tensor cores and for vector cores."""
    problem = ScheduleProblem(
        "three",
        2,
        4,
        (
            ScheduleOperator("a", "TC+VC", 2.0, 2.0, hbm_fraction=0.5),
            ScheduleOperator("b", "TC", 3.0, 1.0, intra_op_hbm_fraction=1.0),
            ScheduleOperator("c", "none", 1.0, 1.0, hbm_fraction=0.25, link_fraction=1.0),
        ),
        ((0, 1), (1, 2)),
    )
    schedule = Schedule(
        (
            ScheduledOperator("a", 0.0, 2.0, False),
            ScheduledOperator("b", 2.0, 3.0, True),
            ScheduledOperator("c", 3.0, 4.0, False),
        ),
        4.0,
        "optimal",
        4.0,
        "bound",
        0.0,
    )
    loads = utilisation(problem, schedule)
    assert loads.tc == ResourceUse(average=0.5, peak=1.0)
    assert loads.vc == ResourceUse(average=0.125, peak=0.25)
    assert loads.hbm == ResourceUse(average=0.5625, peak=1.0)
    assert loads.link == ResourceUse(average=0.25, peak=1.0)
