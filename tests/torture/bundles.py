"""Bundles: changed bytes, and documents changed under checksums that are right."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from phaze_opt.sharing.bundle_file import unpack
from phaze_opt.sharing.export_import import export_bundle
from phaze_opt.store.opening import open_storage
from phaze_opt.store.studies import study_uids
from tests.sharing.test_export_import import with_member
from tests.study.fakes import quick_study
from tests.torture.answering import ask, file_hashes, in_folder, why_wrong
from tests.torture.case import Case, Outcome, Setting
from tests.torture.mutation import mutated_bytes, mutated_plain

IMPORT = ("study", "import", "bundle.zip", "--storage", "sqlite:///new.db")


def run(setting: Setting) -> Iterator[Outcome]:
    """Change the bundle of a study, and import it."""
    study = quick_study(f"sqlite:///{setting.folder / 'source.db'}")
    study.run()
    path = setting.folder / "bundle.zip"
    export_bundle(study, path)
    study.storage.close()
    sound = path.read_bytes()
    _, members = unpack(sound, "bundle", lambda name: True)
    documents = [
        name for name in sorted(members) if name.endswith((".json", ".jsonl")) and members[name]
    ]
    with in_folder(setting.folder):
        for number in setting.numbers():
            random = setting.random(number)
            if random.random() < 0.6:
                name = random.choice(documents)
                line = random.randrange(len(members[name].splitlines()))
                changed = with_member(sound, name, partial(mutated_plain, random), line)
            else:
                changed = mutated_bytes(random, sound)
            path.write_bytes(changed)
            open_storage("sqlite:///new.db", create=True).close()
            before = file_hashes(setting.folder)
            answer = ask(IMPORT)
            outcome = why_wrong(answer, before, file_hashes(setting.folder))
            storage = open_storage("sqlite:///new.db")
            studies = len(study_uids(storage))
            storage.close()
            if outcome is None and studies != (answer.code == 0):
                outcome = f"exit code {answer.code}, but {studies} studies are there"
            yield outcome
            for made in setting.folder.glob("new.db*"):
                made.unlink()


CASE = Case("bundles", "changed bundles", 1000, 4, 0.05, run)
