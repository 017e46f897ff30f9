"""Fixtures that every test sees."""

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import settings

from phaze_opt.compiled import load_all
from phaze_opt.garbage import KeptSoFar
from tests.captures import unpack_into
from tests.migrations import migrations_read_once
from tests.statements import statements_compiled_once

# Databases and driven processes, for every room that writes studies.
pytest_plugins = ["tests.databases"]

# How long an example takes says nothing of the code on a machine that is busy.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")

MEMORY = Path("/dev/shm")
LEAST_MEMORY_BYTES = 4 * 2**30

# Every commit of a database waits for the disk, which no test needs: none loses power.
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= LEAST_MEMORY_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    os.environ.setdefault("TMPDIR", str(MEMORY))
    tempfile.tempdir = os.environ["TMPDIR"]

# What is imported while tests are collected stays: searching it for garbage is half of that time.
gc.disable()


def pytest_collection_finish() -> None:
    """Search only what tests make from now on, and less often: it takes an eighth of their time."""
    gc.freeze()
    gc.set_threshold(200_000, 20, 20)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def workload_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep captured workloads in a folder of this run, shared by its worker processes."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "workload-cache"
    unpack_into(folder)
    before = os.environ.get("PHAZE_CACHE")
    os.environ["PHAZE_CACHE"] = str(folder)
    yield folder
    if before is None:
        del os.environ["PHAZE_CACHE"]
    else:
        os.environ["PHAZE_CACHE"] = before


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Let programs that a test starts hear Ctrl-C, though a shell's background jobs ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def loaded() -> None:
    """Load the compiled loops before the first test, so that no test is slow for that."""
    load_all()
    gc.freeze()  # they stay, too


@pytest.fixture(scope="session", autouse=True)
def kept_already() -> Iterator[None]:
    """Spare every study to count what is frozen, and so stays: that takes a thirtieth of a run."""
    with patch.object(KeptSoFar, "begin", lambda kept: None):
        yield


@pytest.fixture(scope="session", autouse=True)
def read_and_compiled_once() -> Iterator[None]:
    """Let Optuna read its migrations, and SQLAlchemy compile statements, once per test process."""
    with migrations_read_once(), statements_compiled_once():
        yield


@pytest.fixture(scope="session", autouse=True)
def global_random_left_alone() -> Iterator[None]:
    """Spare hypothesis to seed and restore Python's and NumPy's global generators per example.

    Nothing draws from them: whoever wants random numbers has a generator of its own.
    """
    with patch("hypothesis.core.deterministic_PRNG", nullcontext):
        yield
