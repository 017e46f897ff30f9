"""Sizes and files that are too large, or no files, are refused at once and in one sentence."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from phaze_opt.codec import from_json, read_file, read_toml_file, to_json
from phaze_opt.errors import InputError
from phaze_opt.limits import (
    MOST_DEVICES,
    MOST_FILE_BYTES,
    MOST_SAMPLES,
    MOST_SIZE,
    check_size,
    is_finite,
)
from phaze_opt.network.presets import load_cluster
from phaze_opt.store.opening import open_storage
from phaze_opt.training import Training
from phaze_opt.workload.workload_file import parse_workload
from phaze_opt.workload.zoo import load_workload


@pytest.mark.parametrize("value", [0, -(10**40), 11, 10**5000], ids=range(4))
def test_sizes_outside_are_named(value: int) -> None:
    """However many digits they have."""
    with pytest.raises(InputError, match=r"^things is .*, but it (must|may) be at") as refused:
        check_size("things", value, 10)
    assert len(str(refused.value)) < 120
    check_size("things", 1, 10)
    check_size("things", 10, 10)


def test_the_largest_are_accepted_and_nothing_above() -> None:
    """Of a batch and of a cluster."""
    assert Training(global_batch=MOST_SAMPLES, microbatch=1).global_batch == MOST_SAMPLES
    assert load_cluster("tpuv4-ici-flat", MOST_DEVICES).devices == MOST_DEVICES
    with pytest.raises(InputError, match="global_batch is"):
        Training(global_batch=MOST_SAMPLES + 1, microbatch=1)
    with pytest.raises(InputError, match="devices is"):
        load_cluster("tpuv4-ici-flat", MOST_DEVICES + 1)


def test_products_of_a_workload_are_limited() -> None:
    """A product with an edge of 2^63 is no workload."""
    text = to_json(load_workload("bert-large", tensor_parallel=(1,))).decode()
    first = text.index('"m":') + 4
    end = text.index(",", first)
    for size in (2**62, 2**41):
        with pytest.raises(InputError, match=f"<= {MOST_SIZE}, got {size}"):
            parse_workload((text[:first] + str(size) + text[end:]).encode(), "workload")


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    """Not a pipe, which may never end, nor a device, a folder, or too large a file."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large.toml").write_bytes(b"#" * (MOST_FILE_BYTES + 1))
    (tmp_path / "digits.toml").write_text("number = " + "9" * 5000)
    for path, words in (
        (tmp_path / "pipe", "a pipe or a device"),
        (Path("/dev/zero"), "a pipe or a device"),
        (tmp_path, "a folder"),
    ):
        with pytest.raises(InputError, match=words):
            read_file(path, "file")
    with pytest.raises(InputError, match="bytes, but at most"):
        read_toml_file(tmp_path / "large.toml", "file")
    with pytest.raises(InputError, match="not valid TOML"):
        read_toml_file(tmp_path / "digits.toml", "file")
    with pytest.raises(InputError, match="a pipe or a device"):
        open_storage(f"sqlite:///{tmp_path / 'pipe'}")


@pytest.mark.parametrize("number", [10**400, -(10**4000)], ids=range(2))
def test_an_integer_that_no_double_holds_is_refused(number: int) -> None:
    """Where documents are read, so that no later comparison with a float fails."""
    with pytest.raises(InputError, match="digits"):
        from_json(f'{{"a": {number}}}', dict[str, int], "test")
    assert not is_finite(10**400) and not is_finite(math.nan) and not is_finite(math.inf)
    assert is_finite(-1e308) and is_finite(10**300)
