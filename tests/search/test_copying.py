"""Copies of studies, and studies started anew."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest

import phaze_opt.search.copying as copying_module
from phaze_opt.errors import ConflictError
from phaze_opt.search.catalogue import delete_orphans, list_studies
from phaze_opt.search.copying import best_points, copy_study, restart_study
from phaze_opt.search.registry import find_orphans
from phaze_opt.search.storage import open_storage
from tests.search.fakes import reopened, toy_study
from tests.search.test_study import answer


def test_a_copy_is_the_same_study(any_url: str, tmp_path: Path) -> None:
    """A copy in another database has the trials and the answer, and goes on by itself."""
    study = toy_study(any_url)
    study.run(8)
    copy = copy_study(study, "copy", open_storage(f"sqlite:///{tmp_path / 'c.db'}", create=True))
    assert answer(copy) == answer(study)
    assert copy.run(12).counts.done == 12
    assert len(study.trials()) == 8
    assert len(copy.trials()) == 12
    with pytest.raises(ConflictError):
        copy_study(study, "copy", copy.storage)
    assert [each.name for each in list_studies(copy.storage)] == ["copy"]
    assert find_orphans(copy.storage) == {}


def test_starting_anew_begins_with_the_best(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under another cost model the old best points are tried first."""
    study = toy_study(sqlite_url)
    study.run(12)
    monkeypatch.setattr(copying_module, "current_version", lambda: "next")
    anew = restart_study(study, "anew", study.storage)
    assert anew.resolved.cost_model_version == "next"
    monkeypatch.setattr("phaze_opt.search.study.current_version", lambda: "next")
    anew.run(4)
    assert [trial.point for trial in anew.trials()] == best_points(study)[:4]


def test_orphans_are_found_and_deleted(sqlite_url: str) -> None:
    """What a study deleted in the dashboard leaves behind can be listed and removed."""
    study = toy_study(sqlite_url)
    study.run(2)
    optuna.delete_study(study_name="toy", storage=study.storage.optuna)
    assert list(find_orphans(study.storage).values()) == ["toy"]
    assert delete_orphans(study.storage) == 1
    assert find_orphans(study.storage) == {}
    toy_study(sqlite_url)
    assert reopened(sqlite_url).office().counts().done == 0
