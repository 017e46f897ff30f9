"""The captures that come with the package are those that would be made now."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from phaze_opt.workload.cache import file_name, read_variant
from phaze_opt.workload.zoo import capture_key
from tests.workload.shipped import PATH, shipped_configs, shipped_keys

HINT = "python -m tests.workload.shipped"
CONFIGS = shipped_configs()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the test an empty cache folder of its own."""
    monkeypatch.setenv("PHAZE_CACHE", str(tmp_path))


def test_the_archive_holds_what_it_should() -> None:
    """There is one file for every key, and no other."""
    keys = [key for config in CONFIGS.values() for key in shipped_keys(config)]
    assert len(keys) == len(set(keys))
    assert set(zipfile.ZipFile(PATH).namelist()) == set(map(file_name, keys)), HINT


@pytest.mark.parametrize(
    "name",
    [
        "bert-large, flash",
        "llama3-8b, eager",
        "deepseek-v3, flash",
        "gemma-2-9b",
        "falcon-40b",
        "vit-base-patch16-224",
        "t5-small",
    ],
)
def test_a_shipped_capture_is_a_fresh_one(name: str) -> None:
    """One key of a shape, another for each, is captured again and compared whole."""
    keys = list(shipped_keys(CONFIGS[name]))
    key = keys[5 * list(CONFIGS).index(name) % len(keys)]
    assert read_variant(key) == capture_key(key), HINT


def test_a_first_run_of_a_named_model_needs_no_torch() -> None:
    """All tensor degrees of a named model are read from the package, and nothing is captured."""
    program = (
        "import sys\n"
        "from phaze_opt.workload.zoo import load_workload\n"
        "load_workload('gpt3-175b', tensor_parallel=(1, 2, 4, 8), microbatch=(1, 2, 4, 8))\n"
        "print('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.split() == ["False"], run.stderr
