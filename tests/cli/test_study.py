"""``phaze-opt study``, with the real cost model on a small model."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import select
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import SMALL_STUDY, Phaze


def test_from_file_to_answer(phaze: Phaze, small_study: Path) -> None:
    """Create, run, show, best, trials, ls, export, delete: one study's whole life."""
    made = phaze("study", "create", str(small_study))
    assert made.code == 0
    assert "storage sqlite:///phaze.db" in made.err
    ran = phaze("study", "run", "small")
    assert (ran.code, ran.out) == (0, "6 of 6 trials complete\n")
    shown = phaze("study", "show", "small", "--json").json
    assert shown["state"] == "done"
    assert shown["trials"]["complete"] == 6
    assert shown["cost_model_version"]
    best = phaze("study", "best", "small", "--json").json
    assert best == shown["best"]
    assert best["values"] == [best["evaluation"]["throughput_samples_per_s"]]
    assert [each["name"] for each in best["baselines"]] == ["tpuv4-phaze", "tpuv4-lanes"]
    assert all(each["ratio"] > 0 for each in best["baselines"])
    proofs = best["pass_proofs"]
    assert proofs["proven"] == sum(proofs["methods"].values()) == proofs["passes"] > 0
    assert proofs["gap"] == 0.0 and proofs["effort"] > 0
    proven = phaze("study", "best", "small", "--accelerator-toml", "winner.toml", "--proof")
    assert "with proof" in proven.err and "proven" in proven.err
    winner = phaze("accelerator", "show", "winner.toml", "--json").json
    assert {key: winner[key] for key in ("num_tc", "num_vc", "pe_x", "pe_y", "pe_vc")} == {
        key: best["params"][key] for key in ("num_tc", "num_vc", "pe_x", "pe_y", "pe_vc")
    }
    assert winner["area_mm2"] == best["evaluation"]["area_mm2"]
    assert len(phaze("study", "trials", "small", "--json").json) == 6
    assert [each["study"] for each in phaze("study", "ls", "--json").json] == ["small"]
    table = phaze("study", "show", "small").out
    for word in (
        "best",
        "against",
        "tpuv4-lanes",
        "area used",
        "bound by",
        "time taken",
        "proven",
        "passes",
    ):
        assert word in table
    for command in (("best", "small"), ("trials", "small"), ("ls",)):
        assert phaze("study", *command).code == 0
    phaze("study", "export", "small", "--format", "csv", "--output", "t.csv")
    phaze("study", "export", "small", "--format", "json", "--output", "t.json")
    with Path("t.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    objects = json.loads(Path("t.json").read_text(encoding="utf-8"))
    assert [row["number"] for row in rows] == [str(each["number"]) for each in objects]
    assert phaze("study", "delete", "small", "--yes").code == 0
    assert phaze("study", "show", "small").code == 3


def test_running_again_does_nothing(phaze: Phaze, small_study: Path) -> None:
    """A second create and run with the same numbers redo nothing."""
    phaze("study", "create", str(small_study))
    phaze("study", "run", "small", "--trials", "3")
    before = phaze("study", "show", "small", "--json").json
    assert phaze("study", "create", str(small_study)).code == 4
    assert phaze("study", "create", str(small_study), "--exist-ok").code == 0
    assert phaze("study", "run", "small", "--trials", "3").code == 0
    assert phaze("study", "show", "small", "--json").json == before


def test_areas_say_their_model(phaze: Phaze, small_study: Path) -> None:
    """Those of a study follow its area model; an evaluation has both, and the text names them."""
    small_study.write_text(small_study.read_text() + '[area]\nmodel = "chip"\n')
    phaze("study", "create", str(small_study))
    phaze("study", "run", "small", "--trials", "2")
    best = phaze("study", "best", "small", "--json").json
    evaluation = best["evaluation"]
    assert evaluation["area_mm2"] < evaluation["area_chip_mm2"] == best["area_mm2"]
    rows = phaze("study", "trials", "small", "--json").json
    (row,) = [candidate for candidate in rows if candidate["number"] == best["number"]]
    assert row["area_mm2"] == best["area_mm2"]
    models = [design["area_model"] for design in (best, row, *best["baselines"])]
    assert {*models, phaze("study", "show", "small", "--json").json["area_model"]} == {"chip"}
    assert re.search(r"area used +[\d.]+% \([\d.]+ of [\d.]+ mm² by chip\)", phaze(
        "study", "show", "small"
    ).out)  # fmt: skip
    assert re.search(
        r"[\d.]+ mm² by phaze-22nm, [\d.]+ mm² by chip", phaze("study", "best", "small").out
    )


def test_a_best_design_above_its_boards_power_is_warned_of(phaze: Phaze, small_study: Path) -> None:
    """Where the chip is a part with a rating; a chip with other numbers has none."""
    phaze("accelerator", "new", "part", "--set", "tdp_w=0.001")
    text = small_study.read_text()
    axes = text[text.index("num_tc") : text.index("microbatch")]
    small_study.write_text(text.replace(axes, 'base = "part.toml"\n'))
    phaze("study", "create", str(small_study))
    phaze("study", "run", "small", "--trials", "2")
    for command in (("show", "small"), ("best", "small"), ("best", "small", "--json")):
        ran = phaze("study", *command)
        assert ran.code == 0 and "but its board is rated for 0.001 W" in ran.sentence
    assert "that its board is rated for" in " ".join(phaze("study", "show", "small").out.split())


def test_numbers_that_no_study_has_are_refused(phaze: Phaze, small_study: Path) -> None:
    """More trials than a study may have, and more processes than a machine."""
    phaze("study", "create", str(small_study))
    for option, most in (("--trials", "10,000,000"), ("--workers", "1,024")):
        refused = phaze("study", "run", "small", option, str(2**63))
        assert (refused.code, refused.sentence) == (
            2,
            f"Error: {option[2:]} is {2**63}, but it may be at most {most}.",
        )


def test_known_points_are_not_evaluated_again(phaze: Phaze, small_study: Path) -> None:
    """A second study of the same points finds every evaluation."""
    shares = []
    for name in ("first", "second"):
        phaze("study", "create", str(small_study), "--name", name)
        assert phaze("study", "run", name).code == 0
        shown = phaze("study", "show", name, "--json").json
        shares.append((shown["cached_share"], shown["quickly_proven_schedule_share"]))
    (cached, quick), again = shares
    assert cached < 1.0 and 0.0 < quick <= 1.0
    assert again == (1.0, None)
    shown = " ".join(phaze("study", "show", "first").out.split())
    assert "of the trials' layer schedules are known to be the shortest" in shown
    assert "without search" not in shown and "were known before" in shown


def test_the_same_number_of_trials_everywhere(phaze: Phaze, small_study: Path) -> None:
    """``show`` and ``ls`` say how many trials were asked for, and how a stopped study goes on."""
    phaze("study", "create", str(small_study))
    assert "0 of 6 complete" in phaze("study", "show", "small").out
    phaze("study", "run", "small", "--trials", "3")
    assert "3 of 3 complete" in phaze("study", "show", "small").out
    assert phaze("study", "show", "small", "--json").json["target"] == 3
    assert "3 of 3" in phaze("study", "ls").out
    with sqlite3.connect("phaze.db") as connection:
        connection.execute("UPDATE phaze_ticket SET state = 'open' WHERE k = 2")
        connection.execute("UPDATE phaze_study SET target = 4")
    connection.close()
    assert "stopped; 'phaze-opt study run small --trials 4' goes on" in (
        phaze("study", "show", "small").out
    )


def test_another_spec_under_the_same_name(phaze: Phaze, small_study: Path) -> None:
    """``--exist-ok`` accepts the same study only."""
    phaze("study", "create", str(small_study))
    small_study.write_text(SMALL_STUDY.replace("devices = 4", "devices = 8"), encoding="utf-8")
    ran = phaze("study", "create", str(small_study), "--exist-ok")
    assert ran.code == 4
    assert "another spec" in ran.sentence


@pytest.fixture
def terminal() -> Iterator[Callable[..., tuple[subprocess.Popen[bytes], Callable[[], str]]]]:
    """Return what runs a command with a terminal as its stderr, and what reads the terminal."""
    ends: list[int] = []
    processes: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, out: Any) -> tuple[subprocess.Popen[bytes], Callable[[], str]]:
        ours, theirs = pty.openpty()
        ends.extend((ours, theirs))
        process = subprocess.Popen(
            [sys.executable, "-c", "from phaze_opt.cli.main import run; run()", *arguments],
            env=os.environ | {"TERM": "xterm", "COLUMNS": "200"},
            stdin=theirs,
            stdout=theirs if out is None else out,
            stderr=theirs,
        )
        processes.append(process)

        def read() -> str:
            """Read what there is, for up to a tenth of a second."""
            ready, _, _ = select.select([ours], [], [], 0.1)
            return os.read(ours, 100_000).decode() if ready else ""

        return process, read

    yield start
    for process in processes:
        process.kill()
        process.wait()
    for end in ends:
        os.close(end)


def test_a_study_is_watched_until_ctrl_c(
    phaze: Phaze, small_study: Path, terminal: Callable[..., Any]
) -> None:
    """``show --watch`` shows the study anew until it is done; Ctrl-C ends it cleanly."""
    phaze("study", "create", str(small_study))
    process, read = terminal("study", "show", "small", "--watch", out=None)
    shown = ""
    while shown.count("nothing feasible yet") < 2:
        assert process.poll() is None, shown
        shown += read()
    process.send_signal(signal.SIGINT)
    while process.poll() is None:
        shown += read()
    shown += read()
    assert process.returncode == 130
    assert "Traceback" not in shown and "Error" not in shown
    phaze("study", "run", "small", "--trials", "6")
    process, read = terminal("study", "show", "small", "--watch", out=None)
    while process.poll() is None:
        read()
    assert process.returncode == 0


def test_progress_is_for_terminals(
    phaze: Phaze, small_study: Path, terminal: Callable[..., Any]
) -> None:
    """On a terminal a bar shows the best value, the rate and the time left; elsewhere nothing."""
    phaze("study", "create", str(small_study))
    assert phaze("study", "run", "small", "--trials", "2").err == "storage sqlite:///phaze.db\n"
    process, read = terminal("study", "run", "small", out=subprocess.PIPE)
    shown = ""
    while process.poll() is None:
        shown += read()
    shown += read()
    assert process.stdout.read() == b"6 of 6 trials complete\n"
    for words in ("6/6", "best ", " samples/s", " trials/s, ", " s left"):
        assert words in shown


def test_no_answer_yet(phaze: Phaze, small_study: Path) -> None:
    """Before the first feasible trial there is nothing to show as the best."""
    phaze("study", "create", str(small_study))
    assert phaze("study", "show", "small", "--json").json["best"] is None
    assert "nothing feasible yet" in phaze("study", "show", "small").out
    assert phaze("study", "best", "small").code == 3


def test_delete_asks(phaze: Phaze, small_study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ``--yes`` nothing is deleted unless somebody agrees."""
    phaze("study", "create", str(small_study))
    monkeypatch.setattr("typer.confirm", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
    assert phaze("study", "delete", "small").code == 130
    assert phaze("study", "show", "small").code == 0


@pytest.mark.parametrize(
    ("old", "new", "code", "sentence"),
    [
        ("devices = 4", "devises = 4", 2, "Did you mean 'devices'"),
        ("devices = 4", "devices = 0", 2, "devices is 0"),
        ("global_batch = 16", "global_batch = 1", 2, "global batch of 1"),
        ("gpt:layers=2", "gpt:layer=2", 2, "layers"),
        ("tpuv4-ici-flat", "tpuv4-ici", 2, "Did you mean"),
    ],
)
def test_bad_specs_store_nothing(
    phaze: Phaze, small_study: Path, old: str, new: str, code: int, sentence: str
) -> None:
    """A spec with a mistake is refused, and no study appears."""
    small_study.write_text(SMALL_STUDY.replace(old, new), encoding="utf-8")
    ran = phaze("study", "create", str(small_study))
    assert ran.code == code
    assert sentence in ran.sentence
    assert not Path("phaze.db").exists() or phaze("study", "ls", "--json").json == []


def test_unwritable_databases(phaze: Phaze, small_study: Path, tmp_path: Path) -> None:
    """A database that cannot be written is one sentence."""
    ran = phaze("study", "create", str(small_study), "--storage", "sqlite:///no/such/folder/a.db")
    assert (ran.code, ran.out) == (1, "")
    assert "cannot be made" in ran.sentence
    text = tmp_path / "text.db"
    text.write_text("not a database, but a letter to a friend")
    ran = phaze("study", "create", str(small_study), "--storage", f"sqlite:///{text}")
    assert ran.code == 2
    assert text.read_text() == "not a database, but a letter to a friend"


def test_running_needs_neither_torch_nor_the_file(phaze: Phaze, small_study: Path) -> None:
    """A machine without torch and without the study file runs a study of the database."""
    phaze("study", "create", str(small_study))
    small_study.unlink()
    program = (
        "import sys; sys.modules['torch'] = None;"
        "from phaze_opt.cli.main import run_with; sys.exit(run_with(['study', 'run', 'small']))"
    )
    environment = {key: value for key, value in os.environ.items() if key != "PHAZE_CACHE"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment | {"PHAZE_CACHE": str(small_study.parent / "empty")},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "6 of 6 trials complete\n"), done.stderr


def test_check_stores_nothing(phaze: Phaze, small_study: Path, tmp_path: Path) -> None:
    """A study file can be checked without a database."""
    assert phaze("spec", "check", str(small_study)).code == 0
    checked = phaze("spec", "check", str(small_study), "--json").json
    assert checked["spec"]["devices"] == 4
    assert [path.name for path in tmp_path.iterdir()] == ["small.toml"]


def test_an_unreadable_study_hides_no_other(phaze: Phaze, small_study: Path) -> None:
    """``ls`` lists the readable studies, names the other one, and ``delete`` removes it."""
    for name in ("good", "bad"):
        assert phaze("study", "create", str(small_study), "--name", name).code == 0
    with sqlite3.connect("phaze.db") as connection:
        connection.execute("UPDATE phaze_study SET resolved = '{' WHERE name = 'bad'")
    connection.close()
    listed = phaze("study", "ls", "--json")
    assert (listed.code, [each["study"] for each in listed.json]) == (0, ["good"])
    assert "unreadable bad" in listed.sentence
    assert phaze("study", "delete", "bad", "--yes").code == 0
    assert "unreadable" not in phaze("study", "ls").err


def test_delete_where_nobody_can_be_asked(
    phaze: Phaze, small_study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused, and says how it goes; the study stays."""
    assert phaze("study", "create", str(small_study)).code == 0
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    refused = phaze("study", "delete", "small")
    assert refused.code == 2 and "--yes" in refused.sentence
    assert phaze("study", "show", "small").code == 0


_HOT = """
name = "hot"
model = "gpt:layers=2,hidden=256,heads=4,sequence=128,vocab=1000"
cluster = "tpuv4-ici-flat"
devices = 4
global_batch = 16
baselines = []

[space]
base = "tpuv4-lanes"
num_tc = { min = 1, max = 16 }
num_vc = { min = 1, max = 4 }
pe_x = { min = 64, max = 256 }
pe_y = 128
pe_vc = { min = 64, max = 1024 }

[constraints]
max_power_w = 50

[search]
trials = 8
"""


def test_a_limit_of_the_power_is_kept_by_default(phaze: Phaze) -> None:
    """Where the fastest designs are all too hot, the best one that is not is found, and proven."""
    Path("hot.toml").write_text(_HOT.replace("trials = 8", "trials = 60"))
    assert phaze("study", "create", "hot.toml").code == 0
    found = phaze("study", "enumerate", "hot", "--json").json
    assert 0 < found["feasible"] <= found["evaluated"] < found["points"]
    ran = phaze("study", "run", "hot", "--trials", "5")
    assert ran.code == 0 and "bound" not in ran.err
    best = phaze("study", "best", "hot", "--json").json["values"][0]
    assert best > 0.95 * found["best"]["values"][0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("max_devices = 2", "The bounds say little of max_devices"),
        ('max_power_w = 50\n[search]\nsampler = "climb"', ""),
        ("", "No bound is known for the objective power"),
    ],
)
def test_what_the_bounds_do_not_know_is_said(phaze: Phaze, change: str, words: str) -> None:
    """By the check of the spec, when the study is made, and when it runs."""
    objective = "" if change else 'objectives = ["power"]\n'
    text = objective + _HOT.split("[constraints]")[0]
    Path("hot.toml").write_text(f"{text}[constraints]\n{change}\n")
    checked = " ".join(phaze("spec", "check", "hot.toml").out.split())
    said = [
        phaze("study", "create", "hot.toml").err,
        phaze("study", "run", "hot", "--trials", "2").err,
    ]
    for each in (checked, *said):
        assert words in each and ("climb, not bound" in each) == bool(words)
