"""``phaze-opt study export``, ``import``, ``merge``, ``workers``: with the real cost model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import SMALL_STUDY, Phaze


def test_given_away_and_taken_in(phaze: Phaze, small_study: Path) -> None:
    """Export, import elsewhere, export again: the same bytes; run on, and join both."""
    phaze("study", "create", str(small_study))
    phaze("study", "run", "small", "--trials", "3")
    options = ("--format", "bundle", "--output")
    made = phaze("study", "export", "small", *options, "a.zip")
    assert made.code == 0 and made.out.startswith("3 trials and ")
    elsewhere = ("--storage", "sqlite:///other.db")
    taken = phaze("study", "import", "a.zip", "--name", "theirs", *elsewhere)
    assert (taken.code, taken.out.split()[:2]) == (0, ["study", "theirs"])
    phaze("study", "export", "theirs", *options, "b.zip", *elsewhere)
    assert Path("a.zip").read_bytes() == Path("b.zip").read_bytes()
    best = [
        phaze("study", "best", *arguments, "--json").json
        for arguments in (("small",), ("theirs", *elsewhere))
    ]
    assert best[0] | {"study": ""} == best[1] | {"study": ""}
    assert phaze("study", "run", "theirs", *elsewhere).out == "6 of 6 trials complete\n"
    joined = phaze("study", "merge", "small", "theirs", "ours", "--second-storage", elsewhere[1])
    assert joined.code == 0
    phaze("study", "run", "small")
    rows = [phaze("study", "trials", name, "--json").json for name in ("ours", "small")]
    keys = [{row["evaluation_key"] for row in each} for each in rows]
    assert keys[0] == keys[1]
    assert rows[0][-1]["origin"].startswith("theirs:")
    assert phaze("study", "import", "a.zip").code == 4
    assert phaze("study", "workers").out.split()[:2] == ["study", "host"]
    assert phaze("study", "workers", "small", "--json").json == []


def test_a_bundle_that_is_none_writes_nothing(phaze: Phaze, small_study: Path) -> None:
    """Not even the database is made."""
    phaze("study", "create", str(small_study))
    phaze("study", "export", "small", "--format", "bundle", "--output", "a.zip")
    Path("phaze.db").unlink()
    whole = Path("a.zip").read_bytes()
    for data in (whole[:-1], whole + b"x", b"", whole.replace(b"1980", b"1981")[:-70]):
        Path("b.zip").write_bytes(data)
        refused = phaze("study", "import", "b.zip")
        assert (refused.code, refused.out) == (2, "")
        assert not Path("phaze.db").exists()
    assert phaze("study", "import", "none.zip").code == 3
    assert phaze("study", "import", "a.zip").code == 0


def test_what_cannot_be_joined(phaze: Phaze, small_study: Path) -> None:
    """Studies of different specs are refused, and say how to see the difference."""
    phaze("study", "create", str(small_study))
    small_study.write_text(SMALL_STUDY.replace("devices = 4", "devices = 8"), encoding="utf-8")
    phaze("study", "create", str(small_study), "--name", "other")
    refused = phaze("study", "merge", "small", "other", "both")
    assert refused.code == 4
    assert "study diff small other" in refused.sentence


@pytest.mark.parametrize("url", ["mysql://me@host/db", "mariadb://me@host/db"])
def test_mysql_is_not_supported(phaze: Phaze, url: str) -> None:
    """It is said in one sentence."""
    refused = phaze("study", "ls", "--storage", url)
    assert (refused.code, refused.out) == (2, "")
    assert "MySQL and MariaDB are not" in refused.sentence


def test_the_list_of_workers_says_that_code_differs(
    phaze: Phaze, small_study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a note beside the result, also where nobody works any more."""
    phaze("study", "create", str(small_study))
    for total, code in (("2", "aaa"), ("3", "bbb")):
        monkeypatch.setattr("phaze_opt.store.tickets.code_hash", lambda code=code: code)
        phaze("study", "run", "small", "--trials", total)
    ran = phaze("study", "workers", "small", "--json")
    assert (ran.code, ran.json) == (0, [])
    assert "small: workers run different code" in ran.err
    assert phaze("study", "show", "small", "--json").json["code_hashes"] == {"aaa": 2, "bbb": 1}
    assert "different code" in phaze("study", "show", "small").out
