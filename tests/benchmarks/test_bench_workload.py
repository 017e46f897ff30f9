"""How long capturing, loading and fusing take; run with ``make bench``."""

from pathlib import Path
from typing import Any

import pytest

from phaze_opt.workload.fusion import fuse
from phaze_opt.workload.zoo import load_workload

LARGEST = "gpt:layers=96,hidden=12288,heads=96,sequence=2048,vocab=51200"
"""GPT-3 with a padded vocabulary, which does not come with the package as a capture."""


def _load_largest() -> None:
    """Load it at four tensor degrees and four microbatches."""
    load_workload(LARGEST, tensor_parallel=(1, 2, 4, 8), microbatch=(1, 2, 4, 8))


def test_capture_of_the_largest_model(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPT-3 at sixteen variants, nothing cached."""
    folders = (tmp_path / str(run) for run in range(100))

    def empty_cache() -> None:
        monkeypatch.setenv("PHAZE_CACHE", str(next(folders)))

    benchmark.pedantic(_load_largest, setup=empty_cache, rounds=2)


def test_load_of_the_largest_model(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPT-3 at sixteen variants, all cached."""
    monkeypatch.setenv("PHAZE_CACHE", str(tmp_path))
    _load_largest()
    benchmark(_load_largest)


@pytest.mark.parametrize("mode", ["elementwise", "epilogue"])
def test_fusion_of_a_block(benchmark: Any, mode: str) -> None:
    """The backward of one block."""
    block = load_workload("bert-large").variants[0].layers[1]
    benchmark(fuse, block.backward, mode)
