"""Fronts: with bounds they are those of all points, to the bit, and fewer points are evaluated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.economics.choices import Economics
from phaze_opt.errors import ConflictError, InputError
from phaze_opt.report.fronts import front_tables
from phaze_opt.report.layout import LINE, to_text
from phaze_opt.spec.objectives import ObjectiveName
from phaze_opt.spec.ordering import Rank
from phaze_opt.spec.space import Space
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.store.enumerations import BoundStore
from phaze_opt.study.study import Study, create_study
from phaze_opt.study.trials import Metrics
from phaze_opt.whole_space import front_search
from phaze_opt.whole_space.answers import Front
from phaze_opt.whole_space.engine import Engine
from phaze_opt.whole_space.exhaustive import RankedDesign
from phaze_opt.whole_space.front_bounds import front_objectives
from phaze_opt.whole_space.front_search import Archive, FrontDesign, find_front
from phaze_opt.whole_space.fronts import front_of_study, front_to_json_dict
from tests.study.fakes import toy_evaluator
from tests.whole_space.enumerations import CASES, RUN
from tests.whole_space.test_exhaustive import toy

FRONTS: dict[str, dict[str, Any]] = {
    "paper": {
        "space": Space.phaze(
            num_tc=[4, 16],
            num_vc=4,
            pe_x=128,
            pe_y=128,
            glb_mib=[16, 64],
            hbm_gib=[2, 8],
            microbatch=[1, 4],
        )
    },
    "today": {"objectives": ("energy_per_sample", "throughput_per_area", "throughput")},
    "gpus": {},
    "torus": {},
    "several": {"objectives": ("area", "tokens")},
    "networks": {
        "objectives": ("throughput_per_dollar", "throughput", "area"),
        "economics": Economics(network="levels"),
    },
    "dollars": {"objectives": ("throughput", "throughput_per_dollar", "throughput_per_watt")},
}


def study_of(name: str, folder: Path) -> Study:
    """Create a study of a small space, with the real cost model."""
    spec = StudySpec(**({"name": name} | RUN | CASES[name] | FRONTS[name]))
    return create_study(spec, f"sqlite:///{folder / 'a.db'}")


def answer(front: Front) -> list[tuple[Any, ...]]:
    """Return what does not depend on the way to it."""
    return [(member.values, member.design.point) for member in front.found.designs]


@pytest.mark.parametrize("name", FRONTS)
def test_bounds_change_nothing_but_the_work(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With bounds the front is that of all points, to the bit, with and without energy."""
    monkeypatch.setattr(front_search, "BATCH_ROWS", 3)
    study = study_of(name, tmp_path)
    for energy in (False, True):
        every = front_of_study(study, energy=energy, bounds=False)
        bounded = front_of_study(study, energy=energy)
        assert answer(bounded) == answer(every)
        assert every.found.evaluated == every.found.points == bounded.found.points
        assert 0 < len(bounded.found.designs) <= bounded.found.feasible <= bounded.found.evaluated
        assert front_of_study(study, energy=energy) == bounded
        if name in ("paper", "several") and not energy:
            assert bounded.found.evaluated < every.found.evaluated


def test_processes_find_the_same(tmp_path: Path) -> None:
    """Several processes evaluate the points of one, and count them alike."""
    study = study_of("paper", tmp_path)
    engine = Engine(study, study.evaluator)
    here = find_front(engine, None, ("throughput", "area"))
    there = front_of_study(study, workers=2).found
    assert here is not None
    assert [member.values for member in here.designs] == [member.values for member in there.designs]
    assert here.evaluated == there.evaluated


def test_stopped_anywhere_it_goes_on(tmp_path: Path) -> None:
    """What was evaluated before the stop is not evaluated again."""
    study = toy(tmp_path)
    calls: list[int] = []

    def counted(*args: Any) -> Any:
        calls.append(1)
        return toy_evaluator(*args)

    engine = Engine(study, counted)
    store = BoundStore(study.storage)
    names: tuple[ObjectiveName, ...] = ("throughput", "area")
    for after in (0, 3, 10):
        begun = len(calls)
        stopped = find_front(
            engine,
            store,
            names,
            bounds=False,
            stopped=lambda: len(calls) - begun >= after,  # noqa: B023
        )
        assert stopped is None
    whole = find_front(engine, store, names, bounds=False)
    assert whole is not None and len(calls) == whole.evaluated == whole.points


def test_answers_in_words_and_json(tmp_path: Path) -> None:
    """The table fits 80 columns; the front is sorted by its first objective."""
    study = toy(tmp_path)
    front = front_of_study(study, bounds=False)
    assert all(len(line) <= LINE + 1 for line in to_text(front_tables(study, front)).split("\n"))
    plain = front_to_json_dict(study, front)
    assert plain["objectives"] == ["throughput_samples_per_s", "area_mm2"]
    values = [design["values"] for design in plain["front"]]
    assert values == sorted(values, key=lambda pair: -pair[0])
    assert [pair[1] for pair in values] == sorted((pair[1] for pair in values), reverse=True)


def test_refusals(tmp_path: Path) -> None:
    """What has no bound, and other versions, are refused in a sentence."""
    study = toy(tmp_path, objectives=("throughput", "power"))
    assert front_objectives(study.resolved.spec, energy=True) == (
        "throughput",
        "power",
        "energy_per_sample",
    )
    with pytest.raises(InputError, match="No bound is known for the objective power"):
        front_of_study(study)
    with pytest.raises(InputError, match="workers is 0"):
        front_of_study(study, bounds=False, workers=0)
    object.__setattr__(study.resolved, "cost_model_version", "old")
    with pytest.raises(ConflictError, match="--current-version"):
        front_of_study(study)


def design(number: int, costs: tuple[float, ...]) -> tuple[Rank, FrontDesign]:
    """Return a design that only an archive looks at."""
    metrics = Metrics(False, "none", 1.0, (-1.0,), None, (), False, 0, 0, 0.0)
    design = FrontDesign(RankedDesign((("number", number),), metrics), costs)
    return Rank(1.0, 1, 1.0, 1.0, (number,)), design


@given(
    st.lists(st.tuples(*[st.integers(0, 4).map(float)] * 3), min_size=1, max_size=30),
    st.permutations(range(30)),
)
def test_an_archive_is_the_front(points: list[tuple[float, ...]], order: list[int]) -> None:
    """Whatever the order, it holds what nothing dominates, and of equals the first by rank."""
    archive = Archive(3)
    for number in order:
        if number < len(points):
            archive.add(points[number], *design(number, points[number]))
    costs = np.array(points)

    def beaten(point: tuple[float, ...]) -> bool:
        return bool(((costs <= point).all(axis=1) & (costs < point).any(axis=1)).any())

    expected = {point: points.index(point) for point in points if not beaten(point)}
    numbers = {own: dict(kept.design.point)["number"] for own, (_, kept) in archive.kept.items()}
    assert numbers == expected
    assert archive.dominated(costs).tolist() == [beaten(point) for point in points]
    assert [archive.dominates(point) for point in points] == [beaten(point) for point in points]
