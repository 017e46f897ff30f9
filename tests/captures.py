"""Captured models that tests outside of `tests.workload` read, so that none waits for a capture.

``python -m tests.captures [FOLDER]`` captures them anew, and besides what FOLDER holds, the
workload cache that a run of the tests has filled. A model that is not there is captured by the
test that loads it.
"""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from phaze_opt.codec import to_json
from phaze_opt.workload.cache import CAPTURE_VERSION, CachedVariant, CaptureKey, file_name
from phaze_opt.workload.graph import SCHEMA_VERSION

PATH = Path(__file__).parent / "data" / "captures.zip"
LATER = PATH.with_name("later_captures.zip")
"""What was captured since the archive was written; with it all are put together again."""
_SAME_TIME = (1980, 1, 1, 0, 0, 0)


def stored_captures() -> list[CachedVariant]:
    """Return all captures of the archives."""
    return [msgspec.json.decode(content, type=CachedVariant) for content in _stored()]


def _archives() -> list[Path]:
    return [path for path in (PATH, LATER) if path.exists()]


def _stored() -> list[bytes]:
    found: dict[str, bytes] = {}
    for path in _archives():
        with zipfile.ZipFile(path) as archive:
            found |= {name: archive.read(name) for name in archive.namelist()}
    return [content for _, content in sorted(found.items())]


def unpack_into(cache: Path) -> None:
    """Fill a cache folder, unless another process has made it."""
    own = cache.with_name(f"{cache.name}-{os.getpid()}")
    for path in _archives():
        with zipfile.ZipFile(path) as archive:
            archive.extractall(own / "workloads")
    try:
        own.rename(cache)
    except OSError:
        shutil.rmtree(own)


@dataclass(frozen=True)
class _Keyed:
    """The key of a file, whatever the schema of its variant."""

    key: CaptureKey


def _current_key(content: bytes) -> CaptureKey:
    key = msgspec.json.decode(content, type=_Keyed).key
    return replace(key, capture_version=CAPTURE_VERSION, schema_version=SCHEMA_VERSION)


def main(folders: list[str]) -> None:
    """Write the archive."""
    from phaze_opt.workload.zoo import capture_key

    kept = _stored()
    found = [
        path.read_bytes() for folder in folders for path in Path(folder, "workloads").glob("*.json")
    ]
    keys = {file_name(key): key for key in map(_current_key, [*kept, *found])}
    unfinished = PATH.with_suffix(".unfinished")
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, key in sorted(keys.items()):
            entry = zipfile.ZipInfo(name, _SAME_TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, to_json(capture_key(key)), compresslevel=9)
    unfinished.replace(PATH)
    LATER.unlink(missing_ok=True)
    print(f"Wrote {len(keys)} captures.")


if __name__ == "__main__":
    main(sys.argv[1:])
