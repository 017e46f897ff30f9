"""Compiled loops: they need no cache folder, and code compiled from other files is never used."""

import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from phaze_opt import compiled
from phaze_opt.arrays import FloatArray

ROOT = Path(__file__).parents[1]

PROGRAMS = {
    "estimator": """
from phaze_opt.estimator.gemm_traffic import repeated_bytes
assert repeated_bytes(8, 8, 8, 2.0, 1e9) == 0
""",
    # The compiled functions of the room take long to compile; the smallest part of one does not.
    "scheduling": """
from phaze_opt.compiled import lazily_compiled
from phaze_opt.scheduling.search_states import has
has = lazily_compiled("boolean(i8[::1], i8, i8)", allocates=False)(has.py_func)
assert has(np.array([4]), 0, 2) and not has(np.array([4]), 0, 1)
""",
    "placement": """
from phaze_opt.placement.overlap import forward_queue_s
assert forward_queue_s(np.array([3.0]), np.array([1.0]))[0].tolist() == [[0.0, 3.0]]
""",
    "partitioning": """
from phaze_opt.partitioning.dag_kernels import left_over
steps = np.array([0, 1, 1]), np.array([0]), np.array([1])
assert left_over(steps, np.array([2.0])).tolist() == [2.0, 0.0]
""",
    "numba alone": """
import numba
from phaze_opt.scheduling.search_states import has
try:
    numba.njit("boolean(i8[::1], i8, i8)", cache=True)(has.py_func)
except RuntimeError as error:
    assert "cannot cache function" in str(error)
else:
    raise AssertionError("numba found a cache folder that can be written")
""",
}


@compiled.compiled_as("float64[::1], int64")
class Scaled(NamedTuple):
    """Some values, and what they are multiplied by."""

    values: FloatArray
    factor: int


@compiled.inlined
def product(value: Any, factor: Any) -> Any:
    """Multiply numbers or arrays."""
    return value * factor


@compiled.lazily_compiled("float64(Scaled)")
def largest(scaled: Scaled) -> float:
    """Return the largest product."""
    most = -np.inf
    for value in scaled.values:
        most = max(most, product(value, scaled.factor))
    return most


def test_named_tuples_and_inlined_functions() -> None:
    """A signature names the tuple; what is inlined is plain Python where nobody compiles it."""
    values = np.array([1.0, 4.0, 2.0])
    assert largest(Scaled(values, 3)) == 12.0
    assert product(values, 2).tolist() == [2.0, 8.0, 4.0]
    with pytest.raises(TypeError):
        largest(Scaled(values, 0.5))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the package to a folder where each ``__pycache__`` is a file; root ignores modes."""
    folder = tmp_path_factory.mktemp("package")
    copy = folder / "phaze_opt"
    shutil.copytree(ROOT / "phaze_opt", copy, ignore=shutil.ignore_patterns("__pycache__"))
    for path in [copy, *copy.rglob("*")]:
        if path.is_dir():
            (path / "__pycache__").touch()
    return folder


def test_no_cache_folder_is_needed(package: Path) -> None:
    """Each room computes where no cache folder can be written; numba by itself refuses."""
    below_a_file = str(package / "phaze_opt" / "__pycache__" / "folder")
    names = ("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR")
    program = (
        "import numpy as np, phaze_opt\n"
        f"assert phaze_opt.__file__.startswith({str(package)!r})\n"
        f"for room, program in {PROGRAMS!r}.items():\n"
        "    exec(compile(program, room, 'exec'), {'np': np})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=package,
        env={**os.environ, **dict.fromkeys(names, below_a_file), "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_an_evaluation_that_compiles_says_so_at_once(package: Path) -> None:
    """On a terminal: the line stands there after a second of processor time, imports included."""
    terminal, other_end = os.openpty()
    program = """
import phaze_opt as po
po.evaluate("bert-large", "tpuv4-lanes", "flat-4GiB", po.Training(1, 1), devices=1)
"""
    running = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(package), "NUMBA_CACHE_DIR": str(package / "new")},
        stderr=other_end,
    )
    try:
        line = os.read(terminal, 1000).decode()
        ticks = Path(f"/proc/{running.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    finally:
        running.kill()
        running.wait()
        os.close(terminal)
        os.close(other_end)
    assert line.startswith("Compiling loops for this machine")
    assert sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK") < 2.0  # 0.7 alone


def test_only_one_file_imports_numba() -> None:
    """Every room compiles with the helper, so that none can do without the fallback."""
    importing = [
        path.relative_to(ROOT).as_posix()
        for folder in ("phaze_opt", "cli")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"^\s*(import|from) numba\b", path.read_text("utf-8"), re.MULTILINE)
    ]
    assert importing == ["phaze_opt/compiled.py"]


FILES = {
    "__init__.py": "",
    "kernel.py": """
import tomllib
from pathlib import Path
from phaze_opt.compiled import lazily_compiled
from room_of_a_test.helper import double
RATE = tomllib.loads((Path(__file__).parent / "data" / "rates.toml").read_text())["rate"]
@lazily_compiled("i8(i8)")
def scaled(number):
    return double(number) * RATE
""",
    "helper.py": """
from phaze_opt.compiled import inlined
@inlined
def double(number):
    return 2 * number
""",
    "plain.py": "UNUSED = 1\n",
    "data/rates.toml": "rate = 5\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a room with a compiled function, where it can be imported."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = tmp_path / "room_of_a_test"
    (made / "data").mkdir(parents=True)
    for name, content in FILES.items():
        (made / name).write_text(content)
    return made


def load_kernel() -> Any:
    """Import the kernel as a new process would."""
    for name in [name for name in sys.modules if name.startswith("room_of_a_test")]:
        del sys.modules[name]
    importlib.invalidate_caches()
    compiled._digest.cache_clear()
    return importlib.import_module("room_of_a_test.kernel").scaled


@pytest.mark.parametrize(
    ("file", "text", "result"),
    [
        ("helper.py", FILES["helper.py"].replace("2 *", "20 *"), 100),  # a function it calls
        ("data/rates.toml", "rate = 70\n", 140),  # a number that it reads
        ("plain.py", "UNUSED = 22\n", 10),  # a file without compiled functions
    ],
    ids=lambda value: value if str(value).endswith((".py", ".toml")) else "",
)
def test_changed_files_are_compiled_anew(folder: Path, file: str, text: str, result: int) -> None:
    """The name in the cache changes with every compiling or data file of the room, and no other."""
    before = load_kernel()
    assert before(1) == 10
    (folder / file).write_text(text)
    after = load_kernel()
    assert after(1) == result
    same_name = before.py_func.__qualname__ == after.py_func.__qualname__
    assert same_name == (file == "plain.py")
    assert sum(after.stats.cache_hits.values()) == same_name


def test_lazily_compiled_is_what_was_imported(folder: Path) -> None:
    """Files that change between the import and the first call belong to the next process."""
    imported = load_kernel()
    helper = (folder / "helper.py").read_text()
    (folder / "helper.py").write_text(helper.replace("2 *", "20 *"))
    assert imported(1) == 10
    assert load_kernel()(1) == 100


def test_stored_code_is_read_without_the_compiler(folder: Path) -> None:
    """A process that only reads declares nothing to numba, and can compile what calls the code.

    The bitcode, from which it is compiled, is read only then.
    """
    program = """
import sys
from room_of_a_test.kernel import scaled
assert scaled(2) == 20
declared = "numba.np.npyimpl" in sys.modules
if declared:
    assert sum(scaled.stats.cache_misses.values()) == 1
else:
    from phaze_opt.compiled import lazily_compiled
    (read,) = scaled.overloads.values()
    assert read.library._bitcode
    assert lazily_compiled("i8(i8)")(lambda number: scaled(number) + 1)(2) == 21
    assert scaled(3) == 30 and "numba.np.npyimpl" in sys.modules
    assert not read.library._bitcode
print(declared)
"""
    for first in (True, False):
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=folder.parent,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder.parent), str(ROOT)])},
            capture_output=True,
            text=True,
        )
        assert (done.stdout, done.stderr) == (f"{first}\n", "")


def test_an_evaluation_does_without_scipys_linear_algebra() -> None:
    """Compiled code that takes sums and extremes with NumPy's functions would import it."""
    program = """
import sys
from tests.benchmarks.test_bench_evaluate import phaze_point
from phaze_opt.evaluation import evaluate
assert evaluate(*phaze_point("bert-large", 64, 512)).feasible
print("scipy.linalg" in sys.modules)
"""
    # The first process may have to compile.
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True
        )
    assert (done.stdout, done.stderr) == ("False\n", "")
