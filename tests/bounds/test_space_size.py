"""What is said of a space before it is enumerated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from phaze_opt.bounds.bounding import bounds_of_boxes
from phaze_opt.bounds.space_size import SpaceSize, space_size
from phaze_opt.errors import InputError
from phaze_opt.spec.space import Space
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.study.study import create_study
from tests.study.fakes import TOY, toy_spec
from tests.whole_space.enumerations import engine_of


def size_of(folder: Path, name: str, **axes: Any) -> SpaceSize:
    """Return the size of a small space, and check that it is that of its points."""
    space = Space("tpuv4-lanes", num_tc=[2, 4], hbm_gib=[16, 32], microbatch=(1, 2), **axes)
    spec = toy_spec(space=space, baselines=())
    study = create_study(spec, f"sqlite:///{folder / name}.db", workload=TOY)
    size = space_size(study.resolved, study.workloads())
    grid = engine_of(study).grid
    assert (size.points, size.options, size.chips) == (grid.points, *grid.shape[::2])
    assert f"{size.points:,} points" in str(size)
    return size


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_what_takes_the_time_is_counted(tmp_path: Path, zero: int) -> None:
    """As many placements are tabulated for the boxes as are announced, within a factor of two."""
    run: dict[str, Any] = {"cluster": "tpuv4-ici-flat", "devices": 64, "global_batch": 64}
    spec = StudySpec(
        "small",
        "gpt:layers=4,hidden=64,heads=4,sequence=32,vocab=128",
        tensor_parallel=(1, 2, 4),
        space=Space("tpuv4-lanes", num_tc=[2, 4], microbatch=(1, 4), zero={"solve": [zero, 2]}),
        **run,
    )
    study = create_study(spec, f"sqlite:///{tmp_path / 'a.db'}")
    size, bounds = space_size(study.resolved, study.workloads()), engine_of(study).rule
    bounds_of_boxes(engine_of(study).grid, bounds, None)
    tabulated = sum(len(least._candidates.whole) for least in bounds.ways._placements.values())
    assert size.candidates / 2 <= tabulated <= size.candidates


def test_shared_out_state_takes_a_table_for_every_number_of_replicas(tmp_path: Path) -> None:
    """So a space with ZeRO takes more memory; what takes too much is refused with both numbers."""
    plain, shared = size_of(tmp_path, "plain"), size_of(tmp_path, "shared", zero=1)
    assert shared.memory_bytes > plain.memory_bytes
    plain.check_memory(64.0)
    with pytest.raises(InputError, match=r"takes about .* GiB, more than 0\.1"):
        plain.check_memory(0.1)
    with pytest.raises(InputError, match="memory-gib is 0"):
        plain.check_memory(0.0)
