"""Copies of studies, and studies started anew."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import optuna
import pytest

import phaze_opt.sharing.copying as copying_module
import phaze_opt.sharing.snapshot as snapshot_module
import phaze_opt.store.stored_study as stored_module
from phaze_opt.errors import ConflictError
from phaze_opt.sharing.copying import best_points, copy_study, restart_study
from phaze_opt.spec.study_spec import SearchSpec, StudySpec
from phaze_opt.store.failures import DatabaseError
from phaze_opt.store.leases import expire
from phaze_opt.store.opening import open_storage
from phaze_opt.store.studies import (
    delete_orphans,
    delete_study,
    find_orphans,
    study_uids,
)
from phaze_opt.store.tables import StudyRow, TicketRow
from phaze_opt.store.tickets import TicketOffice
from phaze_opt.study.study import Study
from phaze_opt.workload.graph import Workload
from tests.study.fakes import quick_study, reopened, toy_study
from tests.study.test_study import answer


def _complete_studies(study: Study) -> list[str]:
    """List the studies of a database whose creation was completed."""
    return [name for name, uid in study_uids(study.storage).items() if uid is not None]


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
    assert _complete_studies(copy) == ["copy"]
    assert find_orphans(copy.storage) == {}


def test_a_copy_keeps_the_parents_of_a_generation(tmp_path: Path) -> None:
    """Genetic samplers name parents by rows, which have other numbers in another database."""
    search = SearchSpec(sampler="nsga2", trials=23, seed=1)
    study = toy_study(f"sqlite:///{tmp_path / 'a.db'}", search=search)
    study.run(21)
    storage = open_storage(f"sqlite:///{tmp_path / 'b.db'}", create=True)
    quick_study(storage, name="another").run()
    copy = copy_study(study, "copy", storage)
    study.run()
    copy.run()
    assert [trial.point for trial in copy.trials()] == [trial.point for trial in study.trials()]


def test_starting_anew_begins_with_the_best(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under another cost model the old best points are tried first."""
    study = toy_study(sqlite_url)
    study.run(12)
    for module in ("study.study", "spec.frozen"):
        monkeypatch.setattr(f"phaze_opt.{module}.current_version", lambda: "next")
    anew = restart_study(study, "anew", study.storage)
    assert anew.resolved.cost_model_version == "next"
    assert anew.summary().target == 20
    anew.run(4)
    assert [trial.point for trial in anew.trials()] == best_points(study)[:4]


def test_starting_anew_captures_anew(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the present program captures replaces what is stored, unless there is no torch."""
    study = toy_study(sqlite_url)
    stored = study.workloads()
    newer = (replace(stored[0], parameters=stored[0].parameters + 1),)
    monkeypatch.setattr(copying_module, "names_a_shape", lambda model: True)
    monkeypatch.setattr(copying_module, "capture_models", lambda spec: newer)
    assert restart_study(study, "anew", study.storage).workloads() == newer

    def without_torch(spec: StudySpec) -> tuple[Workload, ...]:
        raise ModuleNotFoundError("No module named 'torch'")

    monkeypatch.setattr(copying_module, "capture_models", without_torch)
    assert restart_study(study, "kept", study.storage).workloads() == stored


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


@pytest.mark.parametrize(
    ("owner", "step"),
    [
        (stored_module, "_store_frozen"),
        (TicketOffice, "write_all"),
        (snapshot_module, "write_results"),
        (snapshot_module, "_store_trials"),
    ],
)
def test_a_copy_that_is_being_made_is_no_orphan(
    any_url: str, monkeypatch: pytest.MonkeyPatch, owner: ModuleType | type, step: str
) -> None:
    """Whoever deletes orphans while a study is copied takes nothing away from the copy."""
    study = toy_study(any_url)
    study.run(4)
    take = getattr(owner, step)

    def take_and_clean_up(*arguments: Any) -> None:
        take(*arguments)
        assert delete_orphans(study.storage) == 0

    monkeypatch.setattr(owner, step, take_and_clean_up)
    copy = copy_study(study, "copy", study.storage)
    assert answer(copy) == answer(study)
    assert copy.run(6).counts.done == 6


def test_a_copy_that_fails_leaves_nothing(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full in the middle leaves neither half a study nor its rows."""
    study = toy_study(sqlite_url)
    study.run(2)

    def fail(*arguments: Any) -> None:
        raise DatabaseError("The disk is full.")

    monkeypatch.setattr(snapshot_module, "_store_trials", fail)
    with pytest.raises(DatabaseError, match="full"):
        copy_study(study, "copy", study.storage)
    assert _complete_studies(study) == ["toy"]
    assert find_orphans(study.storage) == {}
    monkeypatch.undo()
    copy_study(study, "copy", study.storage)


def test_a_copy_that_was_killed_can_be_deleted(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a killed process leaves has trials but no UUID yet; its name can be freed."""
    study = toy_study(sqlite_url)
    study.run(2)
    store_trials = snapshot_module._store_trials

    def copy_and_die(*arguments: Any) -> None:
        store_trials(*arguments)
        raise SystemExit

    monkeypatch.setattr(snapshot_module, "_store_trials", copy_and_die)
    monkeypatch.setattr(stored_module, "_deleted_on_error", lambda *arguments: nullcontext())
    with pytest.raises(SystemExit):
        copy_study(study, "copy", study.storage)
    assert _complete_studies(study) == ["toy"]
    delete_study("copy", study.storage)
    assert study_uids(study.storage) == {"toy": study.uid}
    assert find_orphans(study.storage) == {}


def test_a_renamed_study_with_an_expired_lease(sqlite_url: str) -> None:
    """After the dashboard's rename a lost trial is settled, and deleting takes all rows along."""
    study = toy_study(sqlite_url)
    study.run(3)
    office = study.office()
    office.issue(5)
    lost = office.claim("gone", 5)
    assert lost is not None
    office.assign(lost, study.optuna_study.ask().number)
    optuna.copy_study(
        from_study_name="toy",
        from_storage=study.storage.optuna,
        to_storage=study.storage.optuna,
        to_study_name="renamed",
    )
    renamed = reopened(sqlite_url, "renamed")
    # The rename is two steps; in between both names share the rows, and neither is an orphan.
    assert find_orphans(study.storage) == {}
    optuna.delete_study(study_name="toy", storage=study.storage.optuna)
    expire(study.storage, ["gone"])
    assert renamed.run(5).counts.done == 5
    kinds = [trial.kind for trial in renamed.trials()]
    assert (kinds.count("failed"), kinds.count("running"), len(kinds)) == (1, 0, 6)
    renamed.delete()
    with study.storage.reading() as session:
        assert session.query(TicketRow).count() == session.query(StudyRow).count() == 0
