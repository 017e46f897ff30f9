"""Disks that are full, cannot be written, or lose the database while it is used."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.store.hostile import make_study
from tests.store.test_read_only import READING, answers, as_a_user, hashes
from tests.study.fakes import toy_study
from tests.torture.case import Case, Outcome, Setting
from tests.torture.runs import (
    await_trials,
    driving,
    ends,
    random_search,
    sqlite_urls,
    toy_run,
    what_is_wrong,
)

TRIALS = 12


def run_full(setting: Setting) -> Iterator[Outcome]:
    """Let no file grow above some size; then run again without the limit."""
    with driving(setting.folder) as drive, sqlite_urls(setting.folder) as new_url:
        for number in setting.numbers():
            toy = toy_run(setting, number, TRIALS, new_url)
            toy.study.storage.close()
            size = Path(str(toy.study.storage.url.database)).stat().st_size
            limit = str(size + toy.random.randrange(0, 400_000))
            full = drive(toy.url, "--file-bytes", limit)
            outcome = ends([full], (0, 1))
            _, err = full.communicate()
            if outcome is None and full.returncode == 1 and err.count("Error: ") > 2:
                outcome = f"more than a sentence: {err[:300]!r}"
            yield outcome or ends([drive(toy.url)]) or what_is_wrong(toy.url, toy.expected)


def run_read_only(setting: Setting) -> Iterator[Outcome]:
    """Read a database in a folder that cannot be written, as another user than root."""
    sound = setting.folder / "sound.db"
    make_study(f"sqlite:///{sound}")
    expected = [answer[:2] for answer in json.loads(answers(f"sqlite:///{sound}", READING))]
    for number in setting.numbers():
        random = setting.random(number)
        folder = Path(tempfile.mkdtemp(prefix="phaze-"))
        try:
            shutil.copy(sound, folder / "study.db")
            (folder / "study.db").chmod(0o444)
            folder.chmod(0o555)
            before = hashes(folder)
            url, order = f"sqlite:///{folder / 'study.db'}", random.sample(range(len(READING)), 3)
            commands = [READING[index] for index in order]
            found = json.loads(as_a_user(partial(answers, url, commands)))
            same = [one[:2] for one in found] == [expected[index] for index in order]
            kept = hashes(folder) == before
            yield None if same and kept else f"{commands}: {found}, unchanged: {kept}"
        finally:
            folder.chmod(0o755)
            shutil.rmtree(folder)


def run_vanished(setting: Setting) -> Iterator[Outcome]:
    """Delete the file of a running study: every worker says so, and no file is made."""
    with driving(setting.folder) as drive, sqlite_urls(setting.folder) as new_url:
        for number in setting.numbers():
            random = setting.random(number)
            url = new_url()
            study = toy_study(url, search=random_search(200, number))
            process = drive(url, "--evaluator", "slow_evaluator")
            await_trials(study, random.randrange(1, 6), [process])
            study.storage.close()
            path = Path(str(study.storage.url.database))
            for each in path.parent.glob(f"{path.name}*"):
                each.unlink()
            outcome = ends([process], (1,))
            _, err = process.communicate()
            if outcome is None and "is gone" not in err:
                outcome = f"said {err[-300:]!r}"
            left = [each.name for each in path.parent.glob(f"{path.name}*")]
            yield outcome or (f"left {left}" if left else None)


FULL = Case("full", "disk full during a run", 60, 0, 0.05, run_full)
READ_ONLY = Case("read-only", "database that cannot be written", 60, 1, 0.02, run_read_only)
VANISHED = Case("vanished", "database deleted during a run", 30, 0, 0.04, run_vanished)
