"""A folder that is before every try as it was before the first, whatever commands write there."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.torture.answering import file_hashes


class World:
    """The files of a folder as they are now, to which it can be brought back.

    Parameters
    ----------
    folder
        With everything in it.
    beside
        Where copies of its files are kept; does not exist yet.
    """

    def __init__(self, folder: Path, beside: Path) -> None:
        self._folder, self._beside = folder, beside
        self.hashes = file_hashes(folder)
        shutil.copytree(folder, beside, symlinks=True, copy_function=_copy)

    def restore(self, after: Mapping[str, str]) -> None:
        """Bring back what a try changed, by the hashes after it."""
        changed = {name for name, _ in set(self.hashes.items()) ^ set(after.items())}
        for name in changed:
            path, sound = self._folder / name, self._beside / name
            for each in (path, *path.parent.glob(f"{path.name}-*")):
                each.unlink(missing_ok=True)
            if sound.is_symlink() or sound.exists():
                _copy(str(sound), str(path))


def _copy(source: str, target: str) -> None:
    """Copy a file or a link; what is neither, as a pipe, is left out."""
    if Path(source).is_symlink() or Path(source).is_file():
        shutil.copy2(source, target, follow_symlinks=False)
