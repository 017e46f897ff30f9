"""Captured variants on disk, so that a second run needs no torch.

There is one JSON file per variant, named by the hash of its key. A file that is broken, or whose
content has another key, is captured again; a folder that cannot be written costs only time. The
package comes with an archive of such files, for the named models and some published configurations
at small microbatches (``python -m tests.workload.shipped`` writes it).
"""

from __future__ import annotations

import functools
import hashlib
import io
import logging
import os
import zipfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import msgspec
from msgspec import UNSET, UnsetType

from phaze_opt.codec import to_json, write_whole
from phaze_opt.workload.config import TransformerConfig
from phaze_opt.workload.graph import SCHEMA_VERSION, WorkloadVariant

CAPTURE_VERSION = 8
"""Raised when capture gives other numbers for the same model (a golden file holds that)."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CaptureKey:
    """The model, options and versions of a cached variant; see `WorkloadVariant`."""

    config: TransformerConfig
    tensor_parallel: int
    microbatch: int
    sequence_parallel: bool
    capture_version: int = CAPTURE_VERSION
    schema_version: int = SCHEMA_VERSION
    expert_tensor: int | UnsetType = UNSET


@dataclass(frozen=True)
class CachedVariant:
    """The content of one file: the key, the variant, the number of the model's parameters.

    The number of those that work on a token stands beside it where it is another.
    """

    key: CaptureKey
    parameters: int
    variant: WorkloadVariant
    active_parameters: int | UnsetType = UNSET


def cache_folder() -> Path:
    """Return ``$PHAZE_CACHE``, else the platform's cache folder of the user."""
    chosen = os.environ.get("PHAZE_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("phaze-opt")


def read_variant(key: CaptureKey) -> CachedVariant | None:
    """Return the variant from the cache or the package, or None if there is no sound one."""
    path = _path(key)
    try:
        cached = msgspec.json.decode(path.read_bytes(), type=CachedVariant)
    except FileNotFoundError:
        return _shipped_variant(key)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _log.warning("Capturing again: the cached workload %s is unreadable (%s).", path, error)
        return None
    return cached if cached.key == key else None


def write_variant(cached: CachedVariant) -> None:
    """Write a variant whole or not at all."""
    path = _path(cached.key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, to_json(cached))
    except OSError as error:
        _log.warning("The captured workload is not kept: %s (%s).", path, error.strerror)


def _shipped_variant(key: CaptureKey) -> CachedVariant | None:
    """Return the variant that the package comes with, or None."""
    archive = _shipped_archive()
    try:
        content = archive.read(file_name(key))
    except KeyError:
        return None
    cached = msgspec.json.decode(content, type=CachedVariant)
    return cached if cached.key == key else None


@functools.cache
def _shipped_archive() -> zipfile.ZipFile:
    """Open the archive of the package."""
    content = resources.files("phaze_opt.workload").joinpath("data", "captures.zip").read_bytes()
    return zipfile.ZipFile(io.BytesIO(content))


def file_name(key: CaptureKey) -> str:
    """Return the name of the file that holds a key's variant."""
    return f"{hashlib.sha256(to_json(key)).hexdigest()[:40]}.json"


def _path(key: CaptureKey) -> Path:
    """Return the file of a key."""
    return cache_folder() / "workloads" / file_name(key)
