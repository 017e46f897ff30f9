"""Paths that a person wrote."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from phaze_opt.codec import read_file, write_whole
from phaze_opt.errors import InputError, NotFoundError, PhazeError
from phaze_opt.paths import look, path_error
from phaze_opt.store.opening import open_storage
from phaze_opt.user_files import check_writable, find_base, write_file


@pytest.fixture(params=["x" * 300, "x/" * 3000, "loop", "loop/x", "file/x", "a\0b"])
def impossible(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a path at which there can be no file."""
    for name in ("loop", "loop.toml"):
        (tmp_path / name).symlink_to(name)
    (tmp_path / "file").touch()
    return tmp_path / str(request.param)


def test_a_path_at_which_no_file_can_be_is_refused_everywhere(impossible: Path) -> None:
    """Reading, writing, as a base and as a storage, in one sentence."""

    def find(name: str, above: tuple[Path, ...]) -> None:
        read_file(Path(name), "base")

    with pytest.raises(InputError, match="cannot be read"):
        look(impossible, "The file")
    with pytest.raises(InputError, match="cannot be read"):
        read_file(impossible, "file")
    with pytest.raises(InputError, match="cannot be read"):
        find_base(f"{impossible}.toml", Path("file.toml"), "file", find, ())
    with pytest.raises(InputError, match="cannot be read"):
        check_writable(impossible)
    with pytest.raises(InputError):
        open_storage(f"sqlite:///{impossible}", create=True)
    if impossible.name != "loop":  # the link itself is replaced by the file
        with pytest.raises(InputError, match="cannot be written"):
            write_file(impossible, "a")


def test_what_is_not_there(tmp_path: Path) -> None:
    """It is not found when it is read, and may be written where there is a folder."""
    assert look(tmp_path / "a.json", "The file") is None
    with pytest.raises(NotFoundError):
        read_file(tmp_path / "a.json", "file")
    check_writable(tmp_path / "a.json")
    with pytest.raises(PhazeError, match="folder does not exist"):
        check_writable(tmp_path / "missing" / "a.json")


def test_a_storage_whose_name_is_no_text_is_refused(tmp_path: Path) -> None:
    """SQLite is told names as UTF-8."""
    with pytest.raises(InputError, match="UTF-8"):
        open_storage(f"sqlite:///{tmp_path}/\udcff.db", create=True)
    assert list(tmp_path.iterdir()) == []


def test_the_longest_name_can_be_written(tmp_path: Path) -> None:
    """The file beside it has a shorter one."""
    path = tmp_path / ("é" * 127)
    write_whole(path, b"a")
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_a_wrong_name_is_the_input_and_a_full_disk_is_not() -> None:
    """Exit code 2 and 1."""
    assert path_error("No.", OSError(errno.ENAMETOOLONG, "")).exit_code == 2
    assert path_error("No.", ValueError()).exit_code == 2
    assert path_error("No.", OSError(errno.ENOSPC, "")).exit_code == 1
