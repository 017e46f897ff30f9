"""Comparison of studies: its numbers follow from the exported trials, and from counting points."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from phaze_opt.errors import InputError
from phaze_opt.report.comparison import comparison_tables, write_comparison
from phaze_opt.report.export import write_trials
from phaze_opt.report.layout import to_text
from phaze_opt.spec.space import Space, all_points
from phaze_opt.spec.study_spec import SearchSpec
from phaze_opt.store.caches import EvaluationCache, ScheduleCache
from phaze_opt.store.opening import open_storage
from phaze_opt.store.storage import Storage
from phaze_opt.study.objective import Objective
from phaze_opt.study.study import Study, create_study
from phaze_opt.whole_space.comparing import SHARES, Comparison, compare
from phaze_opt.whole_space.enumerating import enumerate_study
from tests.study.fakes import TOY, toy_evaluator, toy_spec

SMALL = Space(num_tc=(1, 8), pe_x=(64, 128), hbm_gib=[32, 80], microbatch=[1, 2, 8])
AXES = tuple(SMALL.searched)


def toy_studies(storage: Storage, searches: Sequence[SearchSpec], **changes: Any) -> list[Study]:
    """Run studies of one question."""
    studies = []
    for number, search in enumerate(searches):
        spec = toy_spec(**({"space": SMALL, "search": search} | changes))
        study = create_study(spec, storage, name=f"toy{number}", workload=TOY)
        study.evaluator = toy_evaluator
        study.run()
        studies.append(study)
    return studies


def opened(tmp_path: Path) -> Storage:
    """Return a new database."""
    return open_storage(f"sqlite:///{tmp_path / 'a.db'}", create=True)


def exported(study: Study, tmp_path: Path) -> list[dict[str, Any]]:
    """Return the complete trials of a study as a file of ``study export`` has them."""
    path = tmp_path / f"{study.name}.json"
    write_trials(study, path, "json")
    rows: list[dict[str, Any]] = json.loads(path.read_text())
    return [row for row in rows if row["state"] in ("feasible", "infeasible")]


def all_values(study: Study) -> list[float]:
    """Evaluate every point; return the values of the feasible ones."""
    objective = Objective(
        study.resolved,
        study.workloads(),
        EvaluationCache(study.storage, "me", 30.0),
        ScheduleCache(study.storage),
        toy_evaluator,
    )
    results = [objective(point) for point in all_points(study.resolved.spec.space)]
    return [metrics.value for metrics in results if metrics.feasible]


def test_numbers_are_those_of_the_exported_trials(tmp_path: Path) -> None:
    """Everything that is compared can be computed again from files and the whole space."""
    searches = [
        SearchSpec("random", 12, 1),
        SearchSpec("climb", 16, 2),
        SearchSpec("brute-force", 49, 3),
    ]
    studies = toy_studies(opened(tmp_path), searches)
    enumerate_study(studies[1], top=40, bounds=False)
    comparison = compare(studies)
    values = all_values(studies[0])
    best = max(values)
    assert comparison.optimum is not None and comparison.optimum.status == "certified"
    assert comparison.optimum.value == best
    for score, study in zip(comparison.studies, studies, strict=True):
        rows = exported(study, tmp_path)
        cells = [row["value"] if row["state"] == "feasible" else -math.inf for row in rows]
        points = [tuple(row[axis] for axis in AXES) for row in rows]
        assert score.complete == len(rows)
        assert score.duplicates == len(points) - len(set(points))
        assert sum(score.infeasible.values()) == cells.count(-math.inf)
        assert score.value == max(cells) and score.regret == 1 - max(cells) / best
        for reached in score.reached[:-1]:
            near = [cell >= best * (1 - reached.within) for cell in cells]
            if True not in near:
                assert reached.trials is None and reached.seconds is None
                continue
            number = near.index(True) + 1
            assert reached.trials == number
            seconds = sum(row["duration_s"] for row in rows[:number])
            assert reached.seconds == pytest.approx(seconds)
        assert [reached.within for reached in score.reached] == list(SHARES)
        trials = [reached.trials or math.inf for reached in score.reached]
        assert all(near <= nearer for near, nearer in pairwise(trials))
        assert score.best_values[-1] == max(cells)
    whole = comparison.studies[2]
    assert (whole.rank, whole.place, whole.reached[-1].trials is None) == (1, 1, False)
    assert whole.duplicates == 1  # a ticket of a baseline passed a place, which comes at the end
    assert comparison.points == SMALL.points
    for search in comparison.random:
        good = 1 if search.within == 0 else sum(v >= best * (1 - search.within) for v in values)
        assert search.points in (good, None)
    assert comparison.random[2].points is not None
    check_shown(comparison, tmp_path)


def check_shown(comparison: Comparison, tmp_path: Path) -> None:
    """Check that tables are at most 80 columns wide, and that the plot names every study."""
    lines = to_text(comparison_tables(comparison)).splitlines()
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    page = tmp_path / "compared.html"
    write_comparison(comparison, page)
    text = page.read_text(encoding="utf-8")
    assert all(f"{score.name} ({score.sampler})" in text for score in comparison.studies)


def test_without_an_enumeration_the_best_known_is_the_measure(tmp_path: Path) -> None:
    """The best of the studies then has no regret, and random search is unknown."""
    studies = toy_studies(
        opened(tmp_path), [SearchSpec("random", 12, 1), SearchSpec("random", 3, 2)]
    )
    comparison = compare(studies)
    assert comparison.optimum is not None and comparison.optimum.status == "best known"
    best = min(comparison.studies, key=lambda score: score.rank or 99)
    assert best.regret == 0.0 and best.place is None
    assert all(search.expected_trials is None for search in comparison.random)
    check_shown(comparison, tmp_path)


def test_fronts_are_measured_by_their_volume(tmp_path: Path) -> None:
    """The joined front has all of its volume; a study that found all of it too; no one more."""
    searches = [SearchSpec("brute-force", 49, 1), SearchSpec("random", 6, 1)]
    studies = toy_studies(opened(tmp_path), searches, objectives=("throughput", "area"))
    comparison = compare(studies)
    whole, part = (score.hypervolume for score in comparison.studies)
    assert whole == pytest.approx(1.0)
    assert part is not None and 0.0 <= part < 1.0
    assert comparison.optimum is None and comparison.random == ()
    lines = to_text(comparison_tables(comparison)).splitlines()
    assert max(map(len, lines)) <= 80


def test_other_questions_are_refused(tmp_path: Path) -> None:
    """Only the search may differ, and a study stands once."""
    storage = opened(tmp_path)
    (study,) = toy_studies(storage, [SearchSpec("random", 3, 1)])
    other = create_study(toy_spec(devices=4), storage, name="other", workload=TOY)
    with pytest.raises(InputError, match="toy0 and other ask different questions; 'phaze-opt"):
        compare([study, other])
    with pytest.raises(InputError, match="each must be named once"):
        compare([study, study])
    with pytest.raises(InputError, match="at least one"):
        compare([])
