"""Points whose routed experts are split over other devices than the tensor-parallel group."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.errors import InputError
from phaze_opt.evaluation import Evaluation, evaluate
from phaze_opt.evaluation_json import evaluation_from_json_dict, evaluation_to_json_dict
from phaze_opt.explanation.explain import explain
from phaze_opt.network.collective import collective_cost
from phaze_opt.network.presets import load_cluster
from phaze_opt.placement.placement_problem import Stage
from phaze_opt.report.words import placement_words
from phaze_opt.spec.freezing import freeze
from phaze_opt.spec.space import Space
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.training import Training

MODEL = (
    "moe:layers=4,hidden=512,heads=8,sequence=256,vocab=8000,experts=16,top_k=2,expert_ffn=512,"
    "ffn=1024,dense_layers=1"
)
ROUTED = 3 * 16 * 3 * 512 * 512  # blocks, experts, matrices
TRAINING = Training(64, 1, optimizer="adam", zero=1, sequence_parallel=True)


def point(placement: Any = "solve", **options: Any) -> Evaluation:
    """Evaluate the model on 16 devices, two nodes."""
    training = replace(TRAINING, **options)
    return evaluate(MODEL, "h100", "dgx-h100", training, placement, devices=16)


def stage_of(evaluation: Evaluation) -> Stage:
    """Return the only stage of a feasible point."""
    assert evaluation.placement is not None, evaluation.reason
    (stage,) = evaluation.placement.stages
    return stage


options = st.fixed_dictionaries(
    {
        "zero": st.sampled_from([0, 1, 2, 3]),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "overlap": st.sampled_from(["none", "data", "experts", "all"]),
        "dispatcher": st.sampled_from(["nccl", "deepep", "ideal"]),
    }
)


@settings(max_examples=10, deadline=None)
@given(options, st.sampled_from([(8, 2, 4), (8, 2, 1), (4, 4, 2), (16, 1, 4)]))
def test_as_many_as_the_group_is_the_default_to_the_bit(
    chosen: dict[str, Any], degrees: tuple[int, int, int]
) -> None:
    """All but what the answer says of it."""
    data, tensor, experts = degrees
    placement = (1, data, tensor)
    plain = point(placement, expert_parallel=experts, **chosen)
    stated = point(placement, expert_parallel=experts, expert_tensor_parallel=tensor, **chosen)
    assert stated.placement and stated.placement.expert_tensor == tensor
    same = replace(stated, placement=replace(stated.placement, expert_tensor=0))
    assert same == plain


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from([0, 1, 2, 3]),
    st.sampled_from([(16, 1), (8, 2), (4, 4)]),
    st.sampled_from(
        [(16, 1), (8, 1), (8, 2), (4, 4), (4, 2), (2, 8), (2, 2), (1, 4), (2, 1), (1, 1)]
    ),
)
def test_states_of_all_devices_add_up(
    zero: int, degrees: tuple[int, int], experts: tuple[int, int]
) -> None:
    """Weights, gradients and optimizer, of experts over their own groups and their replicas."""
    (data, tensor), (expert_parallel, width) = degrees, experts
    holding = expert_parallel * width
    chosen = {"expert_parallel": expert_parallel, "expert_tensor_parallel": width, "zero": zero}
    stage, whole = (
        stage_of(point((1, data, tensor), **chosen)),
        stage_of(point((1, data, tensor), zero=zero)),
    )
    for kind, each_bytes, stage_of_zero in (
        ("parameters", 2, 3), ("gradients", 4, 2), ("optimizer", 12, 1),
    ):  # fmt: skip
        held, all_of_them = (getattr(own.memory_bytes, kind) for own in (stage, whole))
        if zero >= stage_of_zero:  # then 16 devices have a sixteenth of everything, but for tied
            assert held == all_of_them
        else:
            assert all_of_them - held == each_bytes * (ROUTED // tensor - ROUTED // holding)


@settings(max_examples=10, deadline=None)
@given(
    options,
    st.sampled_from(
        [(8, 2, 8, 1), (8, 2, 16, 1), (4, 4, 8, 2), (16, 1, 4, 2), (4, 4, 2, 1), (2, 8, 4, 1)]
    ),
)
def test_every_option_works_with_it(
    chosen: dict[str, Any], degrees: tuple[int, int, int, int]
) -> None:
    """The parts add up, the answer reads back, and `solve` is no slower."""
    data, tensor, expert_parallel, width = degrees
    apart = {"expert_parallel": expert_parallel, "expert_tensor_parallel": width, **chosen}
    found = point((1, data, tensor), **apart)
    assert found.placement and found.time_per_batch_s
    assert sum(found.time_breakdown_s.values()) == pytest.approx(found.time_per_batch_s)
    read = evaluation_from_json_dict(json.loads(json.dumps(evaluation_to_json_dict(found))))
    assert read == found and found.placement.expert_tensor == width
    words = f"experts shared out over {expert_parallel}, each expert on {width} device"
    assert words in placement_words(found.placement)
    solved = point("solve", **apart)
    assert solved.time_per_batch_s
    assert solved.time_per_batch_s <= found.time_per_batch_s * (1.0 + 1e-9)


def test_whole_experts_send_less_beside_a_tensor_parallel_group() -> None:
    """Each device sends its own tokens, not those of its group; narrow products are wide again."""
    whole = replace(TRAINING, expert_tensor_parallel=1)
    split, apart = (
        explain(MODEL, "h100", "dgx-h100", training, placement, devices=16)
        for placement, training in (("1x8x2x4", TRAINING), ("1x8x2x8", whole))
    )
    assert stage_of(split.evaluation).memory_bytes.parameters == (
        stage_of(apart.evaluation).memory_bytes.parameters
    )
    sent = {}
    for name, reasons in (("split", split), ("apart", apart)):
        assert reasons.stage
        (each,) = (c for c in reasons.stage.communication if c.kind == "token_exchanges")
        sent[name] = each.sent_bytes
    # Half of the tokens, of which 7 of 8 devices have not what they need instead of 3 of 4.
    assert sent["apart"] == pytest.approx(sent["split"] / 2 * (7 / 8) / (3 / 4))
    times_s = [each.evaluation.time_per_batch_s or 0.0 for each in (apart, split)]
    assert 0.0 < times_s[0] < times_s[1]


@pytest.mark.parametrize(
    ("placement", "chosen", "words"),
    [
        ("1x8x2", {"sequence_parallel": False}, "without sequence_parallel the devices"),
        ("1x8x2", {"expert_tensor_parallel": 3}, "must divide the width 512"),
        ("1x8x2", {"expert_tensor_parallel": -1}, "expert_tensor_parallel is -1"),
    ],
)
def test_what_cannot_be_split_is_refused(
    placement: str, chosen: dict[str, Any], words: str
) -> None:
    """In one sentence."""
    apart = {"expert_parallel": 8, "expert_tensor_parallel": 1, **chosen}
    with pytest.raises(InputError, match=words):
        point(placement, **apart)


def test_dense_models_and_too_few_replicas_are_refused() -> None:
    """The former have nothing to split, the latter are infeasible."""
    with pytest.raises(InputError, match="has no routed experts"):
        evaluate("gpt2-xl", "h100", "dgx-h100", replace(TRAINING, expert_tensor_parallel=1),
                 devices=16)  # fmt: skip
    few = point("1x3x2", expert_parallel=4, expert_tensor_parallel=1)
    assert not few.feasible and "there must be a multiple of 2" in (few.reason or "")
    alone = point("1x1x4", expert_parallel=2, expert_tensor_parallel=1)
    assert not alone.feasible and "has 1 replica" in (alone.reason or "")
    none = point("solve", expert_parallel=16, expert_tensor_parallel=4)
    assert not none.feasible and "expert_tensor_parallel 4" in (none.reason or "")


@pytest.mark.parametrize(
    ("tensor", "experts", "width", "step", "same"),
    [(2, 8, 1, 4, (1, 8)), (4, 2, 1, 1, (8, 2)), (4, 6, 1, 3, (2, 6)), (4, 1, 4, 1, (4, 4))],
)
def test_devices_with_the_same_experts_are_as_far_apart_as_all_of_them_reach(
    tensor: int, experts: int, width: int, step: int, same: tuple[int, int]
) -> None:
    """Groups that hold all experts follow one another, whatever a tensor-parallel group is."""
    training = replace(TRAINING, expert_parallel=experts, expert_tensor_parallel=width)
    assert training.expert_step(tensor) == training.replica_step(tensor) == step
    data = math.prod(same) // tensor
    assert training.with_same_experts(data, tensor, tensor) == same


def test_experts_that_a_group_holds_twice_are_exchanged_in_it() -> None:
    """Gradients go over more devices, at less distance, than those of all else."""
    few, whole = (
        stage_of(point((1, 4, 4), expert_parallel=degree, expert_tensor_parallel=1, zero=0))
        for degree in (2, 4)
    )
    sent = {}
    for name, stage in (("few", few), ("whole", whole)):
        (each,) = (c for c in stage.communication if c.kind == "gradient_synchronisation")
        sent[name] = each.sent_bytes
    # Half of all experts among 8 of 16 devices instead of a quarter among 4.
    cluster, of_experts = load_cluster("dgx-h100", 16), 4 * ROUTED
    half, quarter = (
        sum(collective_cost("all_reduce", of_experts // part, same, cluster, part).bytes_by_level)
        for part, same in ((2, 8), (4, 4))
    )
    assert sent["few"] - sent["whole"] == pytest.approx(half - quarter, rel=1e-6)


def test_a_study_refuses_what_no_tensor_degree_allows() -> None:
    """When it is created."""
    spec = StudySpec(
        "experts", MODEL, "dgx-h100", 16, 64, tensor_parallel=(2,), expert_tensor_parallel=1,
        space=Space("h100", sequence_parallel=[True], expert_parallel=[1, 2]),
        baselines=("h100",),
    )  # fmt: skip
    assert freeze(spec)
    apart = replace(
        spec, expert_tensor_parallel=0, expert_parallel=2,
        space=Space("h100", sequence_parallel=[False, True], expert_tensor_parallel=[0, 1]),
    )  # fmt: skip
    with pytest.raises(InputError, match="without sequence_parallel no tensor degree"):
        freeze(apart)
