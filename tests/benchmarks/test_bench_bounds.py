"""Speed of finding the best boxes among 10^8 and 10^10 chips, and of evaluating what is left."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from phaze_opt.bounds.best_first import BestFirst
from phaze_opt.bounds.space_chips import allowed_chips
from phaze_opt.spec.freezing import check_names
from phaze_opt.spec.study_spec import read_spec
from phaze_opt.study.study import create_study
from phaze_opt.whole_space.engine import Engine
from tests.whole_space.enumerations import case_spec

SPACES = Path(__file__).parent / "large_spaces"
CELLS = 1_000


@pytest.mark.parametrize("name", ["chips-1e8", "chips-1e10"])
def test_count_of_chips(benchmark: BenchmarkFixture, name: str) -> None:
    """The chips of all boxes are counted, none is listed."""
    study = check_names(read_spec(SPACES / f"{name}.toml"))
    chips = benchmark(allowed_chips, study)
    assert len(chips) > 8_000_000


def test_first_boxes(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """Regions are halved, and bounded again by their cores, up to the first thousand boxes."""
    spec = read_spec(SPACES / "chips-1e10.toml")
    study = create_study(spec, f"sqlite:///{tmp_path / 'a.db'}")
    engine = Engine(study, study.evaluator)

    def first_boxes() -> object:
        return BestFirst(engine.grid, engine.rule).order.cell(CELLS)

    assert benchmark(first_boxes) is not None


def test_designs_with_many_options(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """Of six choices of solved options those that surely lose are not evaluated."""
    study = create_study(case_spec("folded-experts"), f"sqlite:///{tmp_path / 'a.db'}")
    engine = Engine(study, study.evaluator, keeps=False)
    options, sizes, rows = engine.grid.shape
    places = [(option, sizes - 1, rows - 1) for option in range(options)]
    points = [engine.grid.point(*place) for place in places]
    assert any(each.feasible for each in benchmark(engine.evaluate, points, places))
