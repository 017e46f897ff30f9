"""Sentences about results."""

from __future__ import annotations

from phaze_opt.report.words import (
    accelerator_words,
    binding_words,
    placement_words,
    share_words,
    time_words,
    training_words,
)
from phaze_opt.search.space import DesignPoint

POINT = DesignPoint(8, 2, 128, 64, 1024, 128, 32, 4, "none")


def test_a_chip_in_words() -> None:
    """A chip is described by its cores and memories."""
    expected = "8 TC of 128×64, 2 VC of 1024 lanes, GLB 128 MiB, HBM 32 GiB"
    assert accelerator_words(POINT) == expected
    assert training_words(POINT) == "microbatch 4, recompute none"


def test_a_placement_in_words() -> None:
    """A placement is described by its three degrees; without one that is said."""
    placement = {"pipeline": 2, "data": 4, "tensor": 1, "microbatches": 8}
    assert "2 stages × 4 replicas" in placement_words(placement)
    assert "(2x4x1)" in placement_words(placement)
    assert placement_words(None) == "none fits"


def test_largest_parts_come_first() -> None:
    """What binds and where the time goes are ordered by size; nothing negligible is shown."""
    record = {
        "bound_by_share": {"hbm": 0.3, "lanes": 0.699, "link": 0.001},
        "time_per_batch_s": 2.0,
        "time_breakdown_s": {"forward": 0.5, "backward": 1.5, "recompute": 0.0},
    }
    assert binding_words(record) == "vector lanes 70%, HBM bandwidth 30%"
    assert time_words(record) == "backward 75.0%, forward 25.0%"
    assert binding_words({}) == "unknown"


def test_no_share_is_a_dash() -> None:
    """Where there is nothing to share, no number is invented."""
    assert (share_words(None), share_words(0.5)) == ("–", "50.0%")
