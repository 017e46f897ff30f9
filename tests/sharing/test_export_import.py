"""Studies in bundles: the same study elsewhere, and nothing of a bundle that is not in order."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phaze_opt.codec import to_json
from phaze_opt.errors import ConflictError, InputError, NotFoundError
from phaze_opt.report.publishing import Publisher, publish
from phaze_opt.report.study_view import view_of
from phaze_opt.sharing.bundle import read_bundle, write_bundle
from phaze_opt.sharing.bundle_file import pack, unpack
from phaze_opt.sharing.copying import copy_study
from phaze_opt.sharing.export_import import export_bundle, import_snapshot, read_bundle_file
from phaze_opt.sharing.merging import merge_studies
from phaze_opt.sharing.snapshot import take_snapshot
from phaze_opt.spec.frozen import hash_as_written
from phaze_opt.spec.space import Space
from phaze_opt.spec.study_spec import SearchSpec
from phaze_opt.store.artifacts import DatabaseArtifacts
from phaze_opt.store.caches import ScheduleCache
from phaze_opt.store.opening import open_storage
from phaze_opt.store.studies import UID_KEY, study_uids
from phaze_opt.study.study import Study, create_study
from phaze_opt.whole_space.answers import find_certificate
from phaze_opt.whole_space.enumerating import certificate_of, enumerate_study, verify_certificate
from phaze_opt.whole_space.fronts import front_of_study
from tests.sharing.test_merging import QUICK
from tests.store.test_caches import SCHEDULE
from tests.study.fakes import (
    COUNT_VARIABLE,
    TOY,
    quick_study,
    toy_evaluator,
    toy_spec,
    toy_study,
)
from tests.study.test_study import answer


def exported(study: Study) -> bytes:
    """Return a study as a bundle."""
    return write_bundle(take_snapshot(study))


def imported(bundle: bytes, url: str, name: str | None = None) -> Study:
    """Make a study of a bundle in a database."""
    snapshot = read_bundle(bundle, "bundle")
    study = import_snapshot(snapshot, open_storage(url, create=True), name)
    study.evaluator = toy_evaluator
    return study


def test_the_same_study_elsewhere(any_url: str, tmp_path: Path) -> None:
    """Trials, answer, notes, target and summary are there, and a second export is the same."""
    study = toy_study(any_url, space=QUICK)
    study.run(8)
    publish(study)
    bundle = exported(study)
    copy = imported(bundle, f"sqlite:///{tmp_path / 'a.db'}")
    assert (copy.name, answer(copy)) == ("toy", answer(study))
    assert [replace(trial, rank=None) for trial in copy.trials()] == [
        replace(trial, rank=None) for trial in study.trials()
    ]
    assert copy.summary().trials == study.summary().trials
    assert exported(copy) == bundle
    system = [
        stored.storage.optuna.get_study_system_attrs(stored.optuna_id) for stored in (study, copy)
    ]
    assert system[0] == system[1]
    assert any("note" in key for key in system[0])


def test_under_another_name_in_the_same_database(any_url: str) -> None:
    """A name that is taken is refused; under another one the bundle is the same again."""
    study = toy_study(any_url, space=QUICK)
    study.run(3)
    row, number = study.optuna_trials()[1]._trial_id, study.optuna_id
    note = f"dashboard:{row}:note_str:0"
    study.storage.optuna.set_study_system_attr(number, note, "of the second trial")
    bundle = exported(study)
    with pytest.raises(ConflictError, match="exists already"):
        imported(bundle, any_url)
    with pytest.raises(InputError, match="not allowed"):
        imported(bundle, any_url, "../toy")
    theirs = imported(bundle, any_url, "theirs")
    assert exported(theirs) == bundle
    attributes = study.storage.optuna.get_study_system_attrs(theirs.optuna_id)
    row = theirs.optuna_trials()[1]._trial_id
    assert attributes[f"dashboard:{row}:note_str:0"] == "of the second trial"
    assert note not in attributes
    assert set(study_uids(study.storage)) == {"toy", "theirs"}


def test_going_on_costs_nothing_for_known_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An imported study has the trials that the original would have had, and computes only new."""
    search = SearchSpec(sampler="tpe", trials=16, seed=3)
    study = toy_study(f"sqlite:///{tmp_path / 'a.db'}", search=search, space=QUICK)
    study.run(12)
    copy = imported(exported(study), f"sqlite:///{tmp_path / 'b.db'}")
    count = tmp_path / "count"
    monkeypatch.setenv(COUNT_VARIABLE, str(count))
    spec = toy_spec(search=search, space=QUICK)
    again = create_study(spec, copy.storage, name="anew", workload=TOY)
    again.evaluator = toy_evaluator
    again.run(12)
    assert not count.exists()
    assert again.summary().cached_share == 1.0
    copy.run()
    study.run()
    assert [trial.point for trial in copy.trials()] == [trial.point for trial in study.trials()]


def test_options_that_lost_are_taken_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where options are solved, all that were tried are known elsewhere, not only the best."""
    space = {"num_tc": [1, 2, 4], "recompute": {"solve": ["none", "full"]}, "microbatch": [1, 8]}
    study = toy_study(f"sqlite:///{tmp_path / 'a.db'}", space=space)
    study.run(6)
    copy = imported(exported(study), f"sqlite:///{tmp_path / 'b.db'}")
    count = tmp_path / "count"
    monkeypatch.setenv(COUNT_VARIABLE, str(count))
    again = create_study(toy_spec(space=space), copy.storage, name="anew", workload=TOY)
    again.evaluator = toy_evaluator
    again.run(6)
    assert not count.exists()


def test_schedules_are_taken_along(tmp_path: Path) -> None:
    """What the evaluations of a study needed, and what no other study did."""

    def evaluator(*arguments: Any) -> Any:
        arguments[4].setdefault("needed", SCHEDULE)
        return toy_evaluator(*arguments)

    study = quick_study(f"sqlite:///{tmp_path / 'a.db'}")
    study.evaluator = evaluator
    study.run()
    other = ScheduleCache(study.storage)
    other["other"] = SCHEDULE
    other.flush()
    copy = imported(exported(study), f"sqlite:///{tmp_path / 'b.db'}")
    cache = ScheduleCache(copy.storage)
    assert cache["needed"] == SCHEDULE
    assert "other" not in cache


def test_what_runs_is_open_in_a_bundle(any_url: str, tmp_path: Path) -> None:
    """A running trial is failed and its ticket open: its worker goes on with the original."""
    study = toy_study(any_url, space=QUICK)
    study.run(3)
    complete, office = study.optuna_trials()[0], study.office()
    office.issue(6)
    for begin in (study.optuna_study.ask, lambda: study.optuna_study.add_trial(complete)):
        ticket = office.claim("somebody", 6)
        assert ticket is not None
        begin()
        office.assign(ticket, len(study.trials()) - 1)
    bundle = exported(study)
    copy = imported(bundle, f"sqlite:///{tmp_path / 'a.db'}")
    assert [trial.kind for trial in copy.trials()][3:] == ["failed", "feasible"]
    counts = copy.office().counts()
    assert (counts.open, counts.held, counts.done) == (2, 0, 4)
    assert copy.run(6).counts.done == 6
    assert study.office().counts().held == 2


def test_what_is_stored_already_stays(tmp_path: Path) -> None:
    """A bundle does not replace evaluations of the database; it fills what nobody computed yet."""
    study = quick_study(f"sqlite:///{tmp_path / 'a.db'}")
    study.run()
    snapshot = take_snapshot(study)
    altered = {
        key: replace(evaluation, body=evaluation.body.replace('"mfu":0.5', '"mfu":0.25'))
        for key, evaluation in snapshot.evaluations.items()
    }
    bundle = write_bundle(replace(snapshot, evaluations=altered))
    copy = imported(bundle, f"sqlite:///{tmp_path / 'a.db'}", "altered")
    best = copy.best()
    assert best is not None and best.evaluation is not None
    assert best.evaluation.mfu == 0.5


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the bundle of a study that has run."""
    study = quick_study(f"sqlite:///{tmp_path_factory.mktemp('sound') / 'a.db'}")
    study.run()
    return exported(study)


def with_member(bundle: bytes, name: str, change: Callable[[Any], Any], line: int = 0) -> bytes:
    """Return a bundle in which somebody changed one document, with checksums that are right."""
    manifest, members = unpack(bundle, "bundle", lambda name: True)
    lines = members[name].splitlines()
    plain = json.loads(lines[line])
    lines[line] = to_json(change(plain) or plain)
    members[name] = b"\n".join(lines)
    return pack(
        members, spec_hash=manifest.spec_hash, cost_model_version=manifest.cost_model_version
    )


def at(*path: Any, value: Any) -> Callable[[Any], Any]:
    """Return what sets one value in a document."""

    def change(plain: Any) -> None:
        for key in path[:-1]:
            plain = plain[key]
        plain[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("spec.json", at("spec", "devices", value=4), "not the one that it declares"),
        ("spec.json", at("spec", "name", value="../x"), "not allowed"),
        ("spec.json", at("run", value="rm -rf"), "Unknown key"),
        ("study.json", at("target", value="many"), "not valid"),
        ("study.json", at("target", value=2**70), "must be positive"),
        ("tickets.jsonl", at("attempts", value=2**40), "Ticket 0"),
        ("trials.jsonl", at("number", value=7), "its number is 7"),
        ("trials.jsonl", at("state", value="RUNNING"), "RUNNING"),
        ("trials.jsonl", at("values", value=[1.0, 2.0]), "2 values"),
        ("trials.jsonl", at("values", value=None), "not valid"),
        ("trials.jsonl", at("started", value="yesterday"), "not valid"),
        ("trials.jsonl", at("started", value="2026-01-01T00:00:00"), "without a zone"),
        ("trials.jsonl", at("params", "log2_num_tc", value=99), "not valid"),
        ("trials.jsonl", at("axes", "log2_num_tc", "name", value="os.system"), "not valid"),
        ("trials.jsonl", at("axes", "log2_num_tc", "attributes", "high", value=99), "is one of"),
        ("tickets.jsonl", at("k", value=1), "Ticket 0"),
        ("tickets.jsonl", at("state", value="held"), "Ticket 0"),
        ("tickets.jsonl", at("trial_number", value=99), "Ticket 0"),
        ("evaluations.jsonl", at("key", value="k"), "no SHA-256"),
        ("evaluations.jsonl", at("evaluation", "feasible", value=3), "not valid"),
    ],
)
def test_what_contradicts_itself_is_refused(
    sound: bytes, name: str, change: Callable[[Any], Any], sentence: str
) -> None:
    """Checksums that are right do not help a document that is not."""
    with pytest.raises(InputError, match=sentence):
        read_bundle(with_member(sound, name, change), "bundle")


def test_odd_attributes_do_no_harm(sqlite_url: str, tmp_path: Path) -> None:
    """What names a trial that is not there, or none, is left out; a UUID is never taken over."""
    study = quick_study(sqlite_url)
    study.run()
    odd = {"nsga:parent:1": [[1]], "nsga:parent:2": 3, "dashboard:99:note_str:0": "", "kept": 1}
    snapshot = replace(
        take_snapshot(study), system_attributes=odd, user_attributes={UID_KEY: study.uid}
    )
    copy = imported(write_bundle(snapshot), f"sqlite:///{tmp_path / 'a.db'}")
    assert copy.storage.optuna.get_study_system_attrs(copy.optuna_id) == {"kept": 1}
    assert copy.uid != study.uid and study_uids(copy.storage) == {"toy": copy.uid}


def test_a_bundle_without_fields_that_came_later_is_read(sound: bytes) -> None:
    """An older program declares the hash of the spec as it wrote it."""
    manifest, members = unpack(sound, "bundle", lambda _: True)
    plain = json.loads(members["spec.json"])
    del plain["base"]["calibration"]["hbm_rate_low"]
    older = pack(
        {**members, "spec.json": to_json(plain)},
        spec_hash=hash_as_written(plain),
        cost_model_version=manifest.cost_model_version,
    )
    assert read_bundle(older, "bundle").resolved == read_bundle(sound, "bundle").resolved
    with pytest.raises(InputError, match="not the one that it declares"):
        read_bundle(with_member(older, "spec.json", at("area_limit_mm2", value=1.0)), "bundle")


def test_another_workload_is_refused(sqlite_url: str) -> None:
    """A workload must be the one that the spec names, and one at all."""
    study = quick_study(sqlite_url)
    member = f"workloads/{study.resolved.workload_hashes[0]}.json"
    altered = with_member(exported(study), member, at("parameters", value=11))
    with pytest.raises(InputError, match="not the one that it is named for"):
        read_bundle(altered, "bundle")
    snapshot = take_snapshot(study)
    with pytest.raises(InputError, match="not those of its spec"):
        read_bundle(write_bundle(replace(snapshot, workloads={})), "bundle")


SPACE = Space("tpuv4-lanes", num_tc=[2, 4], pe_x=[64, 128], hbm_gib=[16, 32], microbatch=(1, 2))


def proven_study(url: str) -> Study:
    """Return a study whose space is enumerated, with its front, and with files of trials."""
    spec = toy_spec(space=SPACE, baselines=(), search=SearchSpec("random", trials=3, seed=7))
    study = create_study(spec, url, workload=TOY)
    study.run(show=Publisher)
    enumerate_study(study, top=3)
    front_of_study(study)
    return study


def stored_files(study: Study) -> dict[str, bytes]:
    """Return the files of the best trial by name, as its page offers them."""
    artifacts = DatabaseArtifacts(study.storage)
    return {
        name: artifacts.open_reader(address.rpartition("/")[2]).read()
        for name, address in view_of(study).files
    }


def test_answers_about_the_space_and_files_go_along(any_url: str, tmp_path: Path) -> None:
    """Enumeration, front, certificate and files are there at once, and give the same bundle."""
    study = proven_study(any_url)
    bundle = exported(study)
    for url, name in ((f"sqlite:///{tmp_path / 'b.db'}", "toy"), (any_url, "theirs")):
        copy = imported(bundle, url, name)
        assert exported(copy) == bundle
        assert stored_files(copy) == stored_files(study) != {}
        assert enumerate_study(copy, top=3) == enumerate_study(study, top=3)
        assert front_of_study(copy) == front_of_study(study)
    # Each has files of its own.
    theirs = stored_files(copy)
    study.delete()
    assert stored_files(copy) == theirs


def test_a_certificate_goes_along(tmp_path: Path) -> None:
    """The one of the longest top: it is written again without computing, and verifies."""
    study = proven_study(f"sqlite:///{tmp_path / 'a.db'}")
    enumeration = enumerate_study(study, top=5)
    elsewhere = open_storage(f"sqlite:///{tmp_path / 'b.db'}", create=True)
    copy = copy_study(study, "copy", elsewhere)
    for made in (imported(exported(study), f"sqlite:///{tmp_path / 'c.db'}"), copy):
        certificate = find_certificate(made.storage, made.resolved, 5)
        assert certificate == certificate_of(study, enumeration, 5)
        assert certificate is not None and verify_certificate(certificate, workloads=[TOY])
    second = copy_study(study, "second", study.storage)
    merged = merge_studies(study, second, "joined", study.storage).study
    snapshot = take_snapshot(merged)
    assert snapshot.certificate == certificate
    assert [answer.asked for answer in snapshot.answers][:2] == [3, 5]
    assert snapshot.files.keys() == take_snapshot(study).files.keys()


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("answers.jsonl", at("top", value=2), "not one to what was asked"),
        ("answers.jsonl", at("answer", "version", value="6"), "another cost-model version"),
        ("answers.jsonl", at("answer", "status", value="time_limit"), "not one to what was asked"),
        ("answers.jsonl", at("answer", "top", 0, "point", 0, 1, value=3), "not valid"),
        ("answers.jsonl", at("answer", "top", value=[]), "of no answer of its study"),
        ("answers.jsonl", at("answer", "evaluated", value=1), "of no answer of its study"),
        ("certificate.json", at("evaluated", value=1), "was altered"),
        ("certificate.json", at("format", value=9), "has format 9"),
    ],
)
def test_answers_that_contradict_the_study_are_refused(
    proven: bytes, name: str, change: Callable[[Any], Any], sentence: str
) -> None:
    """An answer must be one of the study, and a certificate that of an answer."""
    with pytest.raises(InputError, match=sentence):
        read_bundle(with_member(proven, name, change), "bundle")


@pytest.fixture(scope="module")
def proven(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the bundle of a study with answers and files."""
    return exported(proven_study(f"sqlite:///{tmp_path_factory.mktemp('proven') / 'a.db'}"))


def test_files_that_nobody_names_or_that_are_others_are_refused(proven: bytes) -> None:
    """A file has the name of its content, and an attribute that names it."""
    snapshot = read_bundle(proven, "bundle")
    name, content = next(iter(snapshot.files.items()))
    for files in (
        {**snapshot.files, name: content + b"x"},
        {**snapshot.files, "0" * 64: b""},
        {other: body for other, body in snapshot.files.items() if other != name},
    ):
        with pytest.raises(InputError, match=r"another one|no attribute names"):
            read_bundle(write_bundle(replace(snapshot, files=files)), "bundle")


@pytest.mark.parametrize("value", ["null", "{", 3, '{"artifact_id": 1}', "[]"])
def test_files_that_cannot_be_read_are_left_out(proven: bytes, tmp_path: Path, value: Any) -> None:
    """A file that the dashboard removed, and attributes of another program, name none."""
    study = imported(proven, f"sqlite:///{tmp_path / 'a.db'}")
    attributes = {"artifacts:gone": value, "dashboard:artifacts:1:gone": "null"}
    for key, odd in attributes.items():
        study.storage.optuna.set_study_system_attr(study.optuna_id, key, odd)
    assert exported(study) == proven


def test_files_that_are_none(tmp_path: Path, sqlite_url: str) -> None:
    """A missing file, a folder, and what is no zip are refused in one sentence."""
    with pytest.raises(NotFoundError, match="no bundle at"):
        read_bundle_file(tmp_path / "none.zip")
    with pytest.raises(InputError, match="is a folder"):
        read_bundle_file(tmp_path)
    path = tmp_path / "a.zip"
    path.write_text("A letter to a friend.")
    with pytest.raises(InputError, match="no bundle at all"):
        read_bundle_file(path)
    export_bundle(quick_study(sqlite_url), path)
    assert read_bundle_file(path).trials == ()
