"""Captured variants on disk, so that a second run needs no torch.

There is one JSON file per variant, named by the hash of its key. A file that is broken, or whose
content has another key, is captured again; a folder that cannot be written costs only time.
"""

from __future__ import annotations

import hashlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from phaze_opt.codec import to_json, write_whole
from phaze_opt.workload.config import TransformerConfig
from phaze_opt.workload.graph import SCHEMA_VERSION, WorkloadVariant

CAPTURE_VERSION = 6
"""Raised when capture gives other numbers for the same model (a golden file holds that)."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CaptureKey:
    """The model, options and versions of a cached variant."""

    config: TransformerConfig
    tensor_parallel: int
    microbatch: int
    sequence_parallel: bool
    capture_version: int = CAPTURE_VERSION
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class CachedVariant:
    """The content of one file: the key, the number of the model's parameters, the variant."""

    key: CaptureKey
    parameters: int
    variant: WorkloadVariant


def cache_folder() -> Path:
    """Return ``$PHAZE_CACHE``, else the platform's cache folder of the user."""
    chosen = os.environ.get("PHAZE_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("phaze-opt")


def read_variant(key: CaptureKey) -> CachedVariant | None:
    """Return the cached variant, or None if there is no sound one."""
    path = _path(key)
    try:
        cached = msgspec.json.decode(path.read_bytes(), type=CachedVariant)
    except FileNotFoundError:
        return None
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


def _path(key: CaptureKey) -> Path:
    """Return the file of a key."""
    digest = hashlib.sha256(to_json(key)).hexdigest()
    return cache_folder() / "workloads" / f"{digest[:40]}.json"
