import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.choices import PipelineScheduleName
from phaze_opt.degrees import Degrees
from phaze_opt.errors import InfeasibleError
from phaze_opt.evaluation import evaluate
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.placement.describe import placement_replay
from phaze_opt.placement.placement_problem import PlacementProblem
from phaze_opt.placement.solve_placement import solve_placement
from phaze_opt.training import Training
from phaze_opt.workload.zoo import load_workload
from tests.placement.strategies import problems
from tests.placement.test_interleaved import equal_layers
from tests.placement.test_training_options import with_options

LAYERS, HIDDEN, SEQUENCE, MICROBATCH, TENSOR = 4, 64, 32, 2, 2
MODEL = f"gpt:layers={LAYERS},hidden={HIDDEN},heads=2,sequence={SEQUENCE},vocab=128"


@settings(max_examples=60, deadline=None)
@given(problems(), st.sampled_from(["1f1b", "gpipe"]))
def test_stash_is_the_replays_peak(
    problem: PlacementProblem, schedule: PipelineScheduleName
) -> None:
    """Every stage of the answer counts as many stashes as the replay has in flight at most."""
    try:
        placement = solve_placement(with_options(problem, pipeline_schedule=schedule))
    except InfeasibleError:
        return
    by_name = {layer.name: layer.stash_bytes for layer in problem.layers[placement.tensor]}
    peaks = placement_replay(placement).peak_microbatches
    for stage, peak in zip(placement.stages, peaks, strict=True):
        assert stage.memory_bytes.stash == peak * sum(by_name[name] for name in stage.layers)


@pytest.mark.parametrize("chunks", [1, 2, 3, 6])
def test_interleaved_stash_is_the_replays_peak(chunks: int) -> None:
    """Interleaved stages count chunks in flight, each with its part of the layers."""
    placement = solve_placement(equal_layers(chunks), Degrees(4, 1, 1))
    peaks = placement_replay(placement).peak_microbatches
    for stage, peak in zip(placement.stages, peaks, strict=True):
        assert stage.memory_bytes.stash == math.ceil(peak / chunks * 10 * len(stage.layers))


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_full_recompute_keeps_the_inputs(sequence_parallel: bool) -> None:
    """Full recompute keeps 2·s·b·h per block and microbatch in flight, and one full stash.

    Sequence parallelism divides it by the tensor degree.
    """
    workload = load_workload(
        MODEL,
        tensor_parallel=(TENSOR,),
        microbatch=(MICROBATCH,),
        sequence_parallel=sequence_parallel,
    )
    training = Training(64, MICROBATCH, "full", "adam", sequence_parallel=sequence_parallel)
    cluster = load_cluster("tpuv4-ici-flat", 12)
    chip = load_accelerator("tpuv4-lanes")
    placement = evaluate(workload, chip, cluster, training, (6, 1, TENSOR)).placement
    assert placement is not None
    kept = 2 * SEQUENCE * MICROBATCH * HIDDEN // (TENSOR if sequence_parallel else 1)
    (variant,) = workload.variants_for(MICROBATCH, sequence_parallel)
    (block,) = [layer for layer in variant.layers if layer.name == "block"]
    blocks = [stage for stage in placement.stages if stage.layers[0].startswith("block")]
    assert [len(stage.layers) for stage in blocks] == [1] * LAYERS
    for place, stage in zip((5, 4, 3, 2), blocks, strict=True):
        assert stage.memory_bytes.stash == place * kept
        assert stage.memory_bytes.transient == block.fused_transient_bytes.full
        # One full stash (its own input is among what is kept) and the gradient that arrives.
        assert stage.memory_bytes.transient >= block.stash_bytes.none - kept + block.output_bytes
