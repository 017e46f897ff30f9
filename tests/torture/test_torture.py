"""The short form of the torture: some tries of every case that needs no other process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from phaze_opt.compiled import load_all
from tests.torture.__main__ import main, table
from tests.torture.answering import Answer, ask, file_hashes, why_wrong
from tests.torture.case import Case, Outcome, Setting, Several, Tally, run_case
from tests.torture.every_case import CASES
from tests.torture.mutation import mutated_bytes, mutated_plain, to_toml
from tests.torture.side_by_side import Plan, run_cases
from tests.torture.world import World

ENOUGH_S = 20.0


@pytest.mark.parametrize("case", [case for case in CASES if case.short], ids=lambda one: one.name)
def test_a_few_tries_of_each_case(case: Case, tmp_path: Path) -> None:
    """The whole of it is ``make torture``."""
    tally = Tally()
    run_case(case, tally, 1, tmp_path, case.short, ENOUGH_S)
    assert (tally.failures, tally.failed) == ([], 0)
    assert tally.tries > 0


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Answer(0, "all is well", "", 0.1), None),
        (Answer(2, "", "storage x\nError: No.", 0.1), None),
        (Answer(1, "", "Error: Unexpected KeyError: 3 (--debug shows where)", 0.1), "sentence"),
        (Answer(1, "Traceback (most recent call last)", "Error: x", 0.1), "sentence"),
        (Answer(2, "", "", 0.1), "no sentence"),
        (Answer(2, "", "Error: \x1b[31m", 0.1), "control"),
        (Answer(2, "", "Error: " + "x" * 5000, 0.1), "5007 letters"),
        (Answer(None, "", "", 60.0), "took 60.0 s"),
        (Answer(0, "", "", 11.0), "took 11.0 s"),
        (Answer(-9, "", "", 0.1), "exit code -9"),
        (Answer(0, "", "", 0.1, 2**30), "took 1024 MiB"),
    ],
)
def test_what_counts_as_a_failure(answer: Answer, why: str | None) -> None:
    """Each kind of wrong answer is found, and a right one is not."""
    found = why_wrong(answer)
    assert found is None if why is None else found is not None and why in found


def test_a_refusal_that_changes_a_file_is_found(tmp_path: Path) -> None:
    """By its hash, also where the size stays."""
    path = tmp_path / "a.json"
    path.write_text("1")
    before = file_hashes(tmp_path)
    path.write_text("2")
    refusal = ask(["schedule", str(tmp_path / "missing.json")])
    assert refusal.code == 3
    assert why_wrong(refusal, before, before) is None
    assert "changed files" in str(why_wrong(refusal, before, file_hashes(tmp_path)))


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    """With the tries that are left, which follow from the seed; failures are kept."""

    def run(setting: Setting) -> Iterator[Outcome | Several]:
        for number in setting.numbers():
            yield f"{setting.random(number).random()}" if number == 2 else Several(1, None)

    case = Case("one", "one", 6, 0, 1.0, run)
    whole, parts = Tally(), Tally()
    run_case(case, whole, 7, tmp_path, 6, 60.0)
    for most in (1, 3, 6):
        run_case(case, parts, 7, tmp_path, most, 60.0)
    assert (parts.tries, parts.failed, parts.failures) == (6, 1, whole.failures)
    assert "| one | one | 6 | 1 |" in table([case], {"one": parts})


def test_a_case_that_breaks_is_a_failure(tmp_path: Path) -> None:
    """Not silence."""

    def run(setting: Setting) -> Iterator[Outcome]:
        yield None
        raise RuntimeError("broken")

    tally = Tally()
    run_case(Case("one", "one", 6, 0, 1.0, run), tally, 7, tmp_path, 6, 60.0)
    assert (tally.tries, tally.failed) == (2, 1) and "broken" in tally.failures[0]


def test_the_command_resumes_and_prints_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second run of the same file does nothing more."""
    arguments = ["--only", "clusters", "--tries", "2", "--resume", str(tmp_path / "run.json")]
    for _ in range(2):
        assert main(arguments, load_all) == 0
        assert "| clusters | changed cluster files | 2 | 0 |" in capsys.readouterr().out


def test_what_is_tried_does_not_depend_on_the_processes(tmp_path: Path) -> None:
    """Nor does a process that dies go unseen."""

    def run(setting: Setting) -> Iterator[Outcome]:
        for number in setting.numbers():
            if setting.name == "deadly" and number == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            yield f"{setting.random(number).random()}"

    cases = [Case(name, name, 4, 0, 1.0, run) for name in ("a", "b", "c", "deadly")]
    found = []
    for processes in (1, 3):
        folder = tmp_path / str(processes)
        folder.mkdir()
        tallies = {case.name: Tally() for case in cases}
        plan = Plan(7, folder, time.monotonic() + 60.0, processes, None)
        run_cases(cases, tallies, plan, lambda: None)
        found.append([tallies[name].failures for name in "abc"])
        assert [tallies[name].tries for name in "abc"] == [4, 4, 4]
        assert tallies["deadly"].failures[-1].endswith("ended with -9")
    assert found[0] == found[1]


def test_a_world_is_brought_back(tmp_path: Path) -> None:
    """Files that were changed, made, deleted, or took the place of a link."""
    folder = tmp_path / "world"
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    for name in ("a", "b"):
        (folder / name).write_text(name)
    world = World(folder, tmp_path / "sound")
    (folder / "a").write_text("changed")
    (folder / "b").unlink()
    (folder / "loop").unlink()
    (folder / "loop").write_text("no link")
    (folder / "new").touch()
    world.restore(file_hashes(folder))
    assert file_hashes(folder) == world.hashes
    assert (folder / "loop").is_symlink() and (folder / "pipe").is_fifo()


def test_mutations_follow_from_the_seed_and_change_something() -> None:
    """Most of them; none fails, and none changes what it is given."""
    plain = {"a": [1, 2.5, {"b": "c"}], "d": None, "e": True}
    text = to_toml(plain).encode()
    changed = [mutated_plain(Random(seed), plain) for seed in range(300)]
    assert repr(changed) == repr([mutated_plain(Random(seed), plain) for seed in range(300)])
    assert plain == {"a": [1, 2.5, {"b": "c"}], "d": None, "e": True}
    assert sum(repr(one) != repr(plain) for one in changed) > 200
    assert sum(mutated_bytes(Random(seed), text) != text for seed in range(300)) > 200
