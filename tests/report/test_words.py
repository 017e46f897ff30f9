"""Sentences about results."""

from __future__ import annotations

from dataclasses import replace

from phaze_opt.evaluation import Evaluation
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.passes.layers import LayerEvaluation
from phaze_opt.report.words import (
    binding_words,
    device_words,
    mfu_words,
    microbatch_words,
    padding_words,
    placement_words,
    proof_words,
    share_words,
    time_words,
)
from phaze_opt.training import Training
from tests.study.fakes import TOY, toy_evaluator


def toy_evaluation() -> Evaluation:
    """Evaluate a point of the toy cost model."""
    chip, cluster = load_accelerator("tpuv4-phaze"), load_cluster("tpuv4-ici-flat", 8)
    return toy_evaluator(TOY, chip, cluster, Training(64, 1), {})


def test_a_placement_in_words() -> None:
    """A placement is described by its three degrees, its microbatches and its devices."""
    placement = toy_evaluation().placement
    assert placement is not None
    several = replace(placement, pipeline=2, data=4, microbatches=8)
    assert placement_words(several) == "2 stages × 4 replicas × tensor-parallel 1 (2x4x1)"
    put_off = replace(several, pipeline_schedule="zb-1p")
    assert placement_words(put_off).endswith("tensor-parallel 1, zb-1p (2x4x1)")
    assert placement_words(placement).startswith("1 stage × 8 replicas")
    assert microbatch_words(several) == "8 per replica and batch"
    assert device_words(several, 0) == "8 used"
    assert device_words(several, 1024) == "8 used, 1,024 idle"


def test_what_is_proven_of_a_placement_in_words() -> None:
    """Optimal, or what another could save at most; nothing where it was given."""
    placement = toy_evaluation().placement
    assert placement is not None
    time_s = placement.time_per_batch_s
    assert proof_words(placement) is None
    assert proof_words(placement.searched(time_s)) == "optimal: no other placement is faster"
    words = proof_words(placement.searched(0.98 * time_s))
    assert words == "feasible: another placement saves 2.00% of the time at most"


def test_causal_attention_is_counted_both_ways_where_that_differs() -> None:
    """The MFU of the field comes first; what a mask hides and what runs again follow."""
    plain = replace(toy_evaluation(), mfu=0.54, mfu_causal=0.54, hfu=0.54)
    assert mfu_words(plain) == "54.0%"
    causal = replace(plain, mfu_causal=0.488)
    assert mfu_words(causal) == "54.0% (48.8% with causal attention counted by half)"
    assert mfu_words(replace(causal, hfu=0.7)) == (
        "54.0% (48.8% with causal attention counted by half; HFU, with recompute: 70.0%)"
    )


def test_padding_in_words() -> None:
    """One sample and several are counted as such."""
    assert padding_words(1).startswith("1 sample per batch")
    assert padding_words(3).endswith("throughput does not count them")


def test_largest_parts_come_first() -> None:
    """What binds and where the time goes are ordered by size; nothing negligible is shown."""
    evaluation = toy_evaluation()
    layer: LayerEvaluation = replace(
        evaluation.layers[0], bound_by_s={"hbm": 0.3, "lanes": 0.699, "link": 0.001}
    )
    evaluation = replace(
        evaluation,
        layers=(layer,),
        time_per_batch_s=2.0,
        time_breakdown_s={"forward": 0.5, "backward": 1.5, "recompute": 0.0},
    )
    assert binding_words(evaluation) == "vector lanes 70%, HBM bandwidth 30%"
    assert time_words(evaluation) == "backward 75.0%, forward 25.0%"


def test_no_share_is_a_dash() -> None:
    """Where there is nothing to share, no number is invented."""
    assert (share_words(None), share_words(0.5)) == ("–", "50.0%")
