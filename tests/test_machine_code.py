"""Machine code on disk: the same answers and refusals as numba's, and numba where there is none."""

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phaze_opt import compiled, machine_code

MODULE = """
import numpy as np
from phaze_opt.compiled import lazily_compiled
@lazily_compiled("Tuple((f8[::1], i8))(f8[:, ::1], Tuple((i8[::1], f8)), b1, i8[:])")
def kernel(table, pair, flag, loose):
    places, factor = pair
    if not flag:
        raise ValueError("no flag")
    return table[0] * factor + places, loose.sum() // len(places)
"""
TABLE, PLACES, LOOSE = np.arange(6.0).reshape(2, 3), np.array([1, 2, 3]), np.arange(8)[::2]
GOOD = TABLE, (PLACES, 2.0), True, LOOSE


def make(module: Path) -> Any:
    """Import the module as a new process would."""
    sys.modules.pop("kernel_of_a_test", None)
    importlib.invalidate_caches()
    compiled._digest.cache_clear()
    return importlib.import_module("kernel_of_a_test").kernel


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the module, and let numba compile its function."""
    path = tmp_path_factory.mktemp("machine") / "kernel_of_a_test.py"
    path.write_text(MODULE)
    sys.path.insert(0, str(path.parent))
    try:
        kernel = make(path)
        kernel(*GOOD)
        assert kernel._run is kernel._dispatcher
    finally:
        sys.path.remove(str(path.parent))
    return path


@pytest.fixture
def kernel(module: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import it anew."""
    monkeypatch.syspath_prepend(str(module.parent))
    return make(module)


def file_of(kernel: Any) -> Path:
    """Return the file with the machine code."""
    return compiled._machine_code_path(kernel.py_func)


def test_same_as_numba(kernel: Any) -> None:
    """The results are those of numba's function and of Python's."""
    found, count = kernel(*GOOD)
    assert kernel._run is not kernel._dispatcher
    for other in (kernel._dispatcher, kernel.py_func):
        same, other_count = other(*GOOD)
        assert found.tobytes() == same.tobytes() and count == other_count
        assert type(count) is int or other is kernel.py_func


def test_numba_is_not_imported(module: Path) -> None:
    """A new process runs it without numba, until it raises or numba compiles something else."""
    program = """
import sys, numpy as np
from kernel_of_a_test import kernel
good = np.arange(6.0).reshape(2, 3), (np.array([1, 2, 3]), 2.0), True, np.arange(8)[::2]
found, count = kernel(*good)
assert found.tolist() == [1.0, 4.0, 7.0] and count == 4 and "numba" not in sys.modules
for _ in range(1000):
    found, _ = kernel(*good)
try:
    kernel(good[0], good[1], False, good[3])
except ValueError as error:
    assert str(error) == "no flag"
else:
    raise AssertionError
import numba
@numba.njit("f8[::1](f8[::1])")
def doubled(array):
    return array * 2.0
assert doubled(found).tolist() == [2.0, 8.0, 14.0]
assert kernel(*good)[0].tolist() == kernel._dispatcher(*good)[0].tolist() == [1.0, 4.0, 7.0]
"""
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, cwd=module.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "wrong",
    [
        (TABLE[0], GOOD[1], True, LOOSE),  # another number of dimensions
        (TABLE.astype(np.int64), GOOD[1], True, LOOSE),  # as large entries of another type
        (TABLE.T, GOOD[1], True, LOOSE),  # another order
        (TABLE[:, ::2], GOOD[1], True, LOOSE),  # gaps
        (np.broadcast_to(TABLE[:1], (2, 3)), GOOD[1], True, LOOSE),  # cannot be written
        (TABLE.tolist(), GOOD[1], True, LOOSE),  # no array
        (TABLE, (PLACES[::2], 2.0), True, LOOSE),  # gaps within a tuple
        (TABLE, (PLACES,), True, LOOSE),  # too short a tuple
        (TABLE, GOOD[1], True, LOOSE.astype(np.int32)),  # smaller entries
    ],
    ids=range(9),
)
def test_other_types_are_refused(kernel: Any, wrong: tuple[Any, ...]) -> None:
    """Arrays that the machine code would misread raise, as with numba."""
    for function in (kernel, kernel._dispatcher):
        with pytest.raises((TypeError, AttributeError, ValueError)):
            function(*wrong)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes()[:99] + b"?" + path.read_bytes()[100:]),
    ],
    ids=["missing", "empty", "short", "changed"],
)
def test_damaged_files_are_written_anew(kernel: Any, damage: Callable[[Path], object]) -> None:
    """Where the file is not what was written, numba is asked, and the file is written again."""
    path = file_of(kernel)
    whole = path.read_bytes()
    damage(path)
    assert kernel(*GOOD)[1] == 4
    assert kernel._run is kernel._dispatcher
    assert path.read_bytes() == whole


def test_other_machines_compile(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine code for another processor or version is never run."""
    monkeypatch.setattr(machine_code, "_platform", lambda: ("another",))
    assert kernel(*GOOD)[1] == 4
    assert kernel._run is kernel._dispatcher


def test_settings_of_numba_are_heard(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What numba's variables say about compiled code holds: then it is asked."""
    machine_code._platform.cache_clear()
    monkeypatch.setenv("NUMBA_OPT", "0")
    assert machine_code.linked(file_of(kernel), kernel.__module__, "kernel") is None


def test_missing_symbols_are_no_crash(kernel: Any, tmp_path: Path) -> None:
    """Machine code that needs what this process does not have is not linked."""
    code = compiled._machine_code(kernel._dispatcher, kernel._signature)
    machine_code.write(code, tmp_path / "whole")
    machine_code.write(code._replace(externals=["no_such_symbol"]), tmp_path / "lacking")
    assert machine_code.linked(tmp_path / "whole", kernel.__module__, "kernel") is not None
    assert machine_code.linked(tmp_path / "lacking", kernel.__module__, "kernel") is None
