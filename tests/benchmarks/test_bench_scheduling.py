"""Speed of the scheduler: ``make bench``."""

import gzip
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from phaze_opt.scheduling.problem_file import read_problems
from phaze_opt.scheduling.solve_schedule import solve_schedule
from tests.scheduling.strategies import layer_like

REFERENCE = Path(__file__).parents[1] / "data" / "scheduling" / "exact_makespans.jsonl.gz"


def test_reference_problems(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """All 252 layer graphs to proven optimality."""
    path = tmp_path / "problems.jsonl"
    path.write_bytes(gzip.decompress(REFERENCE.read_bytes()))
    problems = read_problems(path)
    solve_schedule(problems[0])  # the compiled search is loaded once per process

    def solve_all() -> None:
        for problem in problems:
            assert solve_schedule(problem).status == "optimal"

    benchmark.pedantic(solve_all, rounds=3)


@pytest.mark.parametrize(("count", "width"), [(20, 2), (42, 3), (42, 4)])
def test_layers(benchmark: BenchmarkFixture, count: int, width: int) -> None:
    """Ten random layer-like graphs with bandwidths."""
    problems = [layer_like(seed, count, width) for seed in range(10)]
    benchmark.pedantic(lambda: [solve_schedule(problem) for problem in problems], rounds=3)


def test_wide_graph(benchmark: BenchmarkFixture) -> None:
    """160 operators, eight wide, until the effort is spent."""
    problem = layer_like(0, 160, 8)
    benchmark.pedantic(lambda: solve_schedule(problem), rounds=2)
