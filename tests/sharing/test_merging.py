"""Two studies joined into one."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from phaze_opt.errors import ConflictError
from phaze_opt.sharing.copying import copy_study
from phaze_opt.sharing.merging import SOURCES_KEY, merge_studies
from phaze_opt.sharing.snapshot import take_snapshot
from phaze_opt.spec.sampler_options import SamplerName
from phaze_opt.spec.space import Space
from phaze_opt.spec.study_spec import SearchSpec
from phaze_opt.store.opening import open_storage
from phaze_opt.study.study import Study
from phaze_opt.study.trials import trial_to_json_dict
from tests.study.fakes import COUNT_VARIABLE, toy_study
from tests.study.test_study import points


def best_design(study: Study) -> tuple[object, ...]:
    """Return the best design without the number of its trial."""
    best = study.best()
    assert best is not None
    return best.point, best.metrics.values, best.evaluations


QUICK = Space.phaze(microbatch=(2, 2), recompute=["none"])


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_study_in_two_places_is_that_in_one(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampler: SamplerName
) -> None:
    """Split over two databases and joined again: the points and the best of one run."""
    search = SearchSpec(sampler=sampler, trials=10, seed=2)
    whole = toy_study(f"sqlite:///{tmp_path / 'whole.db'}", search=search, space=QUICK)
    whole.run()
    first = toy_study(sqlite_url, search=search, space=QUICK)
    first.run(4)
    elsewhere = open_storage(f"sqlite:///{tmp_path / 'other.db'}", create=True)
    second = copy_study(first, "toy", elsewhere)
    second.run()
    first.run(7)
    merged = merge_studies(first, second, "joined", first.storage)
    joined = merged.study
    assert set(points(joined)) == set(points(whole))
    assert len(points(joined)) == len(set(points(joined)))
    assert best_design(joined) == best_design(whole)
    assert (sum(merged.taken), merged.unlike) == (len(points(joined)), 0)
    assert merged.taken[0] == len(set(points(first)))
    assert joined.summary().state == "done"
    monkeypatch.setenv(COUNT_VARIABLE, str(tmp_path / "count"))
    joined.run(len(points(joined)))
    assert not (tmp_path / "count").exists()
    assert joined.run(12).counts.done == 12


def test_where_a_trial_comes_from_is_kept(tmp_path: Path) -> None:
    """Through a second merge and a copy: study and number of every trial, oldest first."""
    storage = open_storage(f"sqlite:///{tmp_path / 'a.db'}", create=True)
    first = toy_study(storage.url.render_as_string(), space=QUICK)
    first.run(4)
    second = copy_study(first, "theirs", storage)
    second.run(7)
    joined = merge_studies(first, second, "joined", storage).study
    again = merge_studies(joined, first, "again", storage).study
    copy = copy_study(again, "copy", storage)
    expected = [f"toy:{number}" for number in range(4)] + [f"theirs:{n}" for n in range(4, 7)]
    for study in (joined, again, copy):
        assert [trial.origin for trial in study.trials()] == expected
    assert trial_to_json_dict(joined.trials()[4])["origin"] == "theirs:4"
    assert "origin" not in trial_to_json_dict(first.trials()[0])
    sources = take_snapshot(joined).user_attributes[SOURCES_KEY]
    assert sources == [{"study": "toy", "trials": 4}, {"study": "theirs", "trials": 3}]


def test_only_equal_specs_are_joined(tmp_path: Path) -> None:
    """Studies of another spec are refused, and a name that is taken; nothing is made."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    first = toy_study(url)
    other = toy_study(url, name="other", global_batch=128)
    with pytest.raises(ConflictError, match="study diff toy other"):
        merge_studies(first, other, "joined", first.storage)
    with pytest.raises(ConflictError, match="exists already"):
        merge_studies(first, first, "other", first.storage)


def test_values_that_differ_are_counted(tmp_path: Path) -> None:
    """The same program gives the same values: where they differ, those of the first stay."""
    first = toy_study(f"sqlite:///{tmp_path / 'a.db'}", space=QUICK)
    first.run(4)
    second = copy_study(first, "theirs", first.storage)
    with first.storage.writing() as session:
        rows = "SELECT trial_id FROM trials WHERE study_id = :id AND number < 2"
        session.execute(
            text(f"UPDATE trial_values SET value = value * 2 WHERE trial_id IN ({rows})"),
            {"id": second.optuna_id},
        )
    merged = merge_studies(first, second, "joined", first.storage)
    assert (merged.taken[1], merged.unlike) == (0, 2)
    assert best_design(merged.study) == best_design(first)
