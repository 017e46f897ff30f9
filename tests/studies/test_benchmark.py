"""The benchmark: its tables have the certified optima, and its page says what searches find."""

from __future__ import annotations

import gzip
import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.tools.snippets import fences
from phaze_opt.cost_model_version import COST_MODEL_VERSION
from phaze_opt.errors import InputError
from phaze_opt.spec.freezing import freeze
from phaze_opt.spec.ordering import value_bin
from phaze_opt.spec.space import numbered_point
from phaze_opt.spec.study_spec import read_spec
from phaze_opt.study.objective import Objective
from studies.benchmark import VERSION, Problem, load, names
from studies.benchmark import __main__ as program
from studies.benchmark.problem import DATA
from studies.benchmark.searches import BOUND, CLIMB, MOST, SAMPLERS, Budget, search_all, search_once
from studies.benchmark.tables import SPECS, objective_of, write_table
from studies.work import Work

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "studies" / "benchmark"
LARGEST_BYTES, ALL_BYTES = 200_000, 1_000_000

TINY = """# A tiny space.

name = "tiny"
model = "gpt:layers=2,hidden=512,heads=8,sequence=256,vocab=8000"
cluster = "flat-4GiB"
devices = 8
global_batch = 16
[space]
base = "tpuv4-lanes"
num_tc = [1, 2, 64]
devices = [4, 8]
recompute = ["none", "full"]
"""


@pytest.mark.parametrize("name", names())
def test_the_certified_optimum_is_the_largest_value(name: str) -> None:
    """To the bit; every certified design has its value, and no other point is above the last."""
    problem = load(name)
    path = DATA / problem.certificate.file
    proof: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    assert problem.optimum == np.nanmax(problem.values) == problem.evaluate(problem.best)
    axes = [axis.name for axis in problem.axes]
    top: dict[tuple[int, ...], float] = {}
    for design in proof["top"]:
        values = dict(design["point"])
        top[problem.index({axis: values[axis] for axis in axes})] = design["values"][0]
    assert max(top.values()) == problem.optimum
    assert all(problem.values[index] == value for index, value in top.items())
    last = value_bin(min(top.values()))
    feasible = zip(*map(np.ndarray.tolist, np.nonzero(problem.values > 0.0)), strict=True)
    better = {index for index in feasible if value_bin(float(problem.values[index])) > last}
    assert better <= top.keys()
    certificate = problem.certificate
    assert (certificate.status, certificate.gap) == ("certified", 0.0)
    assert certificate.spec_hash == proof["study_hash"] and certificate.checks > 0
    assert certificate.points == proof["points"]
    assert np.isfinite(problem.values).sum() <= certificate.points <= problem.size
    assert certificate.evaluated == proof["evaluated"] < problem.size / 10


@pytest.mark.parametrize("name", names())
def test_a_table_is_whole(name: str) -> None:
    """A value or a reason at every point; what does not count changes nothing."""
    problem = load(name)
    feasible = np.isfinite(problem.values)
    assert problem.version == VERSION and problem.values.shape == problem.codes.shape
    assert np.array_equal(feasible, problem.codes == 0)
    assert np.array_equal(feasible, problem.violations == 0.0)
    assert problem.values[feasible].min() > 0.0 and 0.2 < feasible.mean() < 0.95
    assert {*np.unique(problem.codes[~feasible])} == {*range(1, len(problem.limits) + 1)}
    for place, axis in enumerate(problem.axes):
        if axis.kind == "ordered":
            numbers = [float(choice) for choice in axis.choices]
            assert numbers == sorted(numbers)
        if axis.counts_where is not None:
            other, where = axis.counts_where
            at = [one.name for one in problem.axes].index(other)
            idle = [i for i, choice in enumerate(problem.axes[at].choices) if choice not in where]
            rows = np.moveaxis(problem.values.take(idle, at), place, 0)
            assert np.array_equal(rows, np.broadcast_to(rows[:1], rows.shape), equal_nan=True)


def test_an_axis_that_does_not_count_may_be_left_out() -> None:
    """Where it counts, it may not; where it does not, the first value stands for all."""
    problem = load("chip")
    *others, last = problem.axes
    idle = replace(last, counts_where=("num_tc", (2, 4)))
    limited = replace(problem, axes=(*others, idle))
    point = {name: value for name, value in problem.best.items() if name != last.name}
    assert limited.index(point) == (*problem.index(problem.best)[:-1], 0)
    for wrong in ({**point, "num_tc": 2}, {n: v for n, v in point.items() if n != "num_tc"}):
        with pytest.raises(ValueError, match="no value of"):
            limited.index(wrong)


def test_the_files_are_small() -> None:
    """They can be bundled."""
    sizes = [path.stat().st_size for path in FOLDER.rglob("*") if path.suffix != ".pyc"]
    assert max(sizes) <= LARGEST_BYTES and sum(sizes) <= ALL_BYTES
    assert {*names()} <= {path.stem for path in SPECS.glob("*.toml")}


@pytest.fixture(scope="module")
def chip() -> tuple[Problem, Objective]:
    """Return a problem, and what computes its values."""
    study, workloads = freeze(read_spec(SPECS / "chip.toml"))
    return load("chip"), objective_of(study, workloads)


@pytest.mark.parametrize("seed", range(6))
def test_a_value_is_that_of_the_cost_model(chip: tuple[Problem, Objective], seed: int) -> None:
    """To the bit, unless the cost model is another one now; half of the points are feasible."""
    problem, objective = chip
    some = np.flatnonzero(np.isfinite(problem.values.ravel()) == bool(seed % 2))
    number = int(np.random.default_rng(seed).choice(some))
    metrics = objective(numbered_point(objective.study.spec.space, number))
    point = problem.point(number)
    found = (metrics.value if metrics.feasible else None, metrics.limit)
    stored = (problem.evaluate(point) if metrics.feasible else None, problem.limit(point))
    assert found == stored or problem.certificate.cost_model_version != COST_MODEL_VERSION


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the table of a space with few points, from nothing."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "tiny.toml").write_text(TINY)
    write_table(Work(folder / "work", 1, lambda line: None), folder / "tiny.toml", folder)
    return folder


def test_a_table_can_be_made(tiny: Path, tmp_path: Path) -> None:
    """It has every point, and its version cannot be given to other values."""
    problem = load("tiny", tiny)
    assert problem.about == "A tiny space." and problem.size == 12
    assert problem.certificate.checks > 0 and problem.limits == ("area",)
    large = [problem.point(number) for number in range(12) if problem.point(number)["num_tc"] == 64]
    for point in large:
        assert problem.limit(point) == "area" and problem.violation(point) > 1.0
        assert math.isnan(problem.evaluate(point))
    tried = problem.values.ravel()[list(problem.bound_order)]
    assert problem.regret(tried)[-1] <= 1e-3
    for name in ("tiny.json", "tiny.npz", "tiny.toml"):
        shutil.copy(tiny / name, tmp_path)
    (tmp_path / "tiny.toml").write_text(TINY.replace("global_batch = 16", "global_batch = 32"))
    with pytest.raises(InputError, match="raise VERSION"):
        write_table(Work(tmp_path / "w", 1, lambda line: None), tmp_path / "tiny.toml", tmp_path)
    document = json.loads((tmp_path / "tiny.json").read_bytes())
    (tmp_path / "tiny.json").write_text(json.dumps({**document, "checksum": "0"}))
    with pytest.raises(ValueError, match="not those of version"):
        load("tiny", tmp_path)


@given(st.lists(st.one_of(st.floats(0.0, 1.0), st.just(math.nan), st.floats(-9.0, 0.0))))
def test_regret_never_rises(shares: list[float]) -> None:
    """It is 1 before a feasible trial, that of the best so far after it, and 0 at the optimum."""
    problem = load(names()[0])
    values = [*(share * problem.optimum for share in shares), problem.optimum]
    regret = problem.regret(values)
    assert np.all(np.diff(regret) <= 0.0) and np.all((regret >= 0.0) & (regret <= 1.0))
    assert regret[-1] == 0.0 and np.array_equal(problem.regret([values, values])[1], regret)
    known = [share for share in shares if share > 0.0]
    best = max(known, default=0.0)
    assert regret[: len(shares)].tolist()[-1:] in ([], [pytest.approx(1.0 - best)])


@pytest.mark.parametrize("name", names())
def test_points_have_numbers(name: str) -> None:
    """A point and its index are one; what is no point is refused in a sentence."""
    problem = load(name)
    for number in np.random.default_rng(0).integers(problem.size, size=20).tolist():
        point = problem.point(number)
        assert np.ravel_multi_index(problem.index(point), problem.values.shape) == number
    first = problem.axes[0].name
    for wrong, words in (
        ({"other": 1}, "has no axis 'other'"),
        ({first: -1}, f"{first} is -1, but it must be of"),
    ):
        with pytest.raises(ValueError, match=words):
            problem.evaluate({**problem.random_point(np.random.default_rng(0)), **wrong})
    with pytest.raises(ValueError, match=f"no value of {first}"):
        problem.evaluate({})
    with pytest.raises(ValueError, match="no problem 'other'"):
        load("other")


def test_it_needs_numpy_alone(tmp_path: Path) -> None:
    """Also as a copy of its folder, elsewhere and under another name."""
    shutil.copytree(FOLDER, tmp_path / "known_optima")
    code = "from {0} import load; load('chip')"
    heavy = "print([name for name in ('phaze_opt', 'optuna', 'scipy') if name in sys.modules])"
    for folder, package in ((ROOT, "studies.benchmark"), (tmp_path, "known_optima")):
        command = [sys.executable, "-c", f"import sys; {code.format(package)}; {heavy}"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        assert done.stdout == "[]\n"


def test_the_programs_of_the_readme_run(capsys: pytest.CaptureFixture[str]) -> None:
    """In their order, the second one with what the first one made."""
    named: dict[str, Any] = {}
    for fence in fences((FOLDER / "README.md").read_text("utf-8")):
        exec(compile(fence.text, "README.md", "exec"), named)
    axes, shown = named["problem"].axes, capsys.readouterr().out
    assert len(axes) == len([axis for axis in axes if f"{axis.name} {axis.kind} " in shown])
    assert len(named["values"]) == 100 and len(named["study"].trials) == 200


@pytest.mark.parametrize("sampler", [*SAMPLERS, CLIMB])
def test_a_search_follows_from_its_seed(sampler: str) -> None:
    """The same seed gives the same regrets, and another one other regrets."""
    problem = load("experts")
    first, again, other = (search_once(problem, sampler, seed, 15) for seed in (1, 1, 2))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_the_program_writes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same from nothing, and where answers are kept; what is not allowed is refused."""
    asked = ["--only", "chip", "paper", "--samplers", BOUND, "random", "climb"]
    written = []
    for work in ("one", "one", "two"):
        options = ["--seeds", "2", "--trials", "12", "--work", str(tmp_path / work)]
        monkeypatch.setattr("sys.argv", ["", *asked, *options, "--output", str(tmp_path / "out")])
        program.main()
        written.append([path.read_bytes() for path in sorted((tmp_path / "out").iterdir())])
    assert written[0] == written[1] == written[2]
    page, drawing = (part.decode() for part in written[0])
    assert page.count("## chip") == page.count("## paper") == 1 and "experts" not in page
    assert page.count("| `climb` |") == 3 and "<svg" in drawing
    for wrong in (["--seeds", "0"], ["--only", "other"], ["--samplers", "other"]):
        monkeypatch.setattr("sys.argv", ["", *wrong])
        with pytest.raises(SystemExit, match="2"):
            program.main()


def test_the_committed_page_is_that_of_the_tables(tmp_path: Path) -> None:
    """It has every problem and sampler, and the rows of the searches that are soon run again."""
    page = (FOLDER / "RESULTS.md").read_text("utf-8")
    assert f"Version {VERSION} of the benchmark" in page
    for name in names():
        section = page.split(f"## {name}\n")[1].split("\n## ")[0]
        problem = load(name)
        assert f"{problem.size:,} points" in section and f"{problem.optimum:,.6g}" in section
        assert all(f"| `{sampler}` |" in section for sampler in (*SAMPLERS, CLIMB, BOUND))
    work = Work(tmp_path, 1, lambda line: None)
    for sampler in ("random", BOUND):
        curves = search_all(work, load("chip"), sampler, Budget(20, 200)).curves
        medians = [f"{np.median(curves[:, trials - 1]):.1%}" for trials in (10, 50, 200)]
        row = f"| `{sampler}` | {' | '.join(medians)} | {np.mean(curves[:, -1] <= 0.01):.0%} |"
        assert row in page.split("## chip\n")[1].split("\n## ")[0]
    for sampler, most in MOST.items():
        assert f"`{sampler}` {most.seeds} seeds of {most.trials} trials" in page
