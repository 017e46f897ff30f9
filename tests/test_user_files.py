"""Files that people write: names in other units, and bases."""

from __future__ import annotations

import errno
import os
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.errors import ConflictError, InputError, PhazeError
from phaze_opt.user_files import (
    Alias,
    CsvRow,
    alias_of,
    check_writable,
    commented_line,
    find_base,
    read_rows,
    without_aliases,
    write_file,
)

ALIASES = {
    "size_mib": Alias("size_bytes", Fraction(2**20), whole=True),
    "rate_gb_per_s": Alias("rate_bytes_per_s", Fraction(10**9)),
    "delay_us": Alias("delay_s", Fraction(1, 10**6)),
}


@given(st.sampled_from(list(ALIASES)), st.floats(1e-12, 1e18))
def test_what_is_shown_in_a_unit_reads_back(name: str, value: float) -> None:
    """To the last bit, or it is not shown in that unit."""
    alias = ALIASES[name]
    number = round(value) if alias.whole else value
    shown = alias_of(alias.field, number, ALIASES)
    if shown is not None:
        assert without_aliases({shown[0]: shown[1]}, ALIASES, "test") == {alias.field: number}


@given(st.decimals(1, 10**6, places=3))
def test_a_decimal_number_is_scaled_without_an_error(number: object) -> None:
    """A person's decimal number gives the float nearest to its exact multiple."""
    text = str(number)
    fields = without_aliases({"rate_gb_per_s": float(text)}, ALIASES, "test")
    assert fields["rate_bytes_per_s"] == float(Fraction(text) * 10**9)
    assert alias_of("rate_bytes_per_s", fields["rate_bytes_per_s"], ALIASES) is not None


def test_names_that_are_no_aliases_are_kept() -> None:
    """Switches, unknown names and fields pass; a switch has no unit."""
    entry = {"on": True, "other": "text", "size_bytes": 3}
    assert without_aliases(entry, ALIASES, "test") == entry
    assert alias_of("size_bytes", True, ALIASES) is None
    assert alias_of("other", 3, ALIASES) is None


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"size_mib": 1, "size_bytes": 2**20}, "size_mib and size_bytes state the same"),
        ({"size_mib": "1"}, "size_mib is '1' in the test, but it must be a finite number"),
        ({"size_mib": True}, "must be a finite number"),
        ({"delay_us": float("nan")}, "delay_us is nan"),
        ({"delay_us": float("inf")}, "delay_us is inf"),
        ({"rate_gb_per_s": 1e300}, r"1e\+300 is too large for rate_bytes_per_s"),
    ],
)
def test_doubled_and_wrong_units_are_refused(entry: dict[str, object], message: str) -> None:
    """By name."""
    with pytest.raises(InputError, match=message):
        without_aliases(entry, ALIASES, "test")


def test_a_line_without_a_value_is_a_comment() -> None:
    """TOML has no word for nothing."""
    assert commented_line("a", None, "what").startswith("# a =")
    assert commented_line("a", 1.5, "what").startswith("a = 1.5 ")


def test_a_base_is_a_name_or_a_path_from_the_file(tmp_path: Path) -> None:
    """A path is that of the file's folder, and a circle is refused."""
    path = tmp_path / "mine.toml"

    def find(name: str, above: tuple[Path, ...]) -> str:
        """Go on as far as the circle."""
        return find_base("mine.toml", Path(name), "test", find, above) if above else name

    assert find_base("h100", path, "test", find, ()) == "h100"
    with pytest.raises(InputError, match=r"based on mine\.toml, which is based on it again"):
        find_base("other.toml", path, "test", find, ())
    with pytest.raises(InputError, match="which is based on it again"):
        find_base("./mine.toml", path, "test", find, ())


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is written beside and renamed, so that a failure changes nothing."""
    path = tmp_path / "a.json"
    write_file(path, "before")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PhazeError, match="No space left"):
        write_file(path, b"after" * 1000)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_links_are_replaced_and_pipes_written_into(tmp_path: Path) -> None:
    """Nothing is written through a link to somewhere else, and a folder is refused."""
    (tmp_path / "file").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_file(tmp_path / "link", "content")
    assert not (tmp_path / "link").is_symlink() and (tmp_path / "link").read_text() == "content"
    assert (tmp_path / "file").read_text() == "kept"
    write_file(Path("/dev/null"), "content")
    assert not Path("/dev/null").is_file()
    with pytest.raises(PhazeError, match="cannot be written"):
        write_file(tmp_path, "content")


def test_only_what_has_content_is_kept(tmp_path: Path) -> None:
    """A file is refused unless it may be replaced; an empty one, or a device, loses nothing."""
    path = tmp_path / "a.toml"
    path.write_text("mine")
    with pytest.raises(ConflictError, match=r"a\.toml exists already; --force replaces it\.$"):
        check_writable(path)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(ConflictError, match="link exists already"):
        check_writable(tmp_path / "link")
    check_writable(path, force=True)
    path.write_text("")
    check_writable(path)
    check_writable(Path("/dev/null"))
    with pytest.raises(InputError, match="it is a folder"):
        check_writable(tmp_path, force=True)


def test_a_pipe_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    """Instead of waiting for ever; one that somebody reads gets the content."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(PhazeError, match="nobody reads the pipe"):
        write_file(pipe, "content")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_file(pipe, "content")
        assert os.read(reader, 100) == b"content"
    finally:
        os.close(reader)


def doubled(row: CsvRow) -> int:
    """Return twice the number of a row."""
    text = row["a"] or ""
    if not text.isdecimal():
        raise InputError(f"a is {text!r}.")
    return 2 * int(text)


def test_rows_of_a_table(tmp_path: Path) -> None:
    """Columns in any order, spaces after commas, and a mark of the encoding, as Excel writes."""
    path = tmp_path / "a.csv"
    path.write_bytes("\ufeffb, a\nx, 1\n\ny, 20\n".encode())
    assert read_rows(path, ("a", "b"), doubled) == [2, 40]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("b\n1\n", "has no column 'a'"),
        ("", "has no column 'a'"),
        ("a\n1\nx\n", "Line 3 of .*: a is 'x'"),
        ("a\n1\n" + 131_073 * "1" + "\n", "Line 3 of .* at most 131,072 letters"),
        (131_073 * "a" + "\n1\n", "Line 1 of .* at most 131,072 letters"),
        ('a\n"' + 70_000 * "xy\n", "Line .* at most 131,072 letters"),
        ("a," + 131_073 * "x" + "\n1,2\n", "Line 1 of .* at most 131,072 letters"),
    ],
    ids=range(7),
)
def test_tables_that_are_none(tmp_path: Path, text: str, words: str) -> None:
    """A missing column, a wrong cell, and one that is longer than Python reads, in its line."""
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read_rows(path, ("a",), doubled)
