import json
from pathlib import Path
from typing import Any

import pytest

from phaze_opt.codec import to_builtins
from phaze_opt.errors import InputError, NotFoundError
from phaze_opt.scheduling.problem_file import read_problems, to_result
from phaze_opt.scheduling.solve_schedule import solve

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
    """The result is what the contract of the command says."""
    path = tmp_path / "problem.json"
    path.write_text(changed())
    (problem,) = read_problems(path)
    result = to_builtins(to_result(problem, solve(problem)))
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
    """Among many problems, what is wrong is told with the line of its problem."""
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
