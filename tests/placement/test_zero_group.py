"""ZeRO among some neighbouring replicas, whose groups hold copies of one another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.errors import InputError
from phaze_opt.evaluation import Evaluation, evaluate
from phaze_opt.network.collective import collective_s, collective_terms
from phaze_opt.network.presets import load_cluster
from phaze_opt.network.term import cheapest, one_after_the_other
from phaze_opt.passes.handled import check_handled
from phaze_opt.placement.placement_problem import Communication
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.training import Training

LLAMA = "llama:layers=4,hidden=512,heads=8,kv_heads=4,ffn=1408,sequence=1024,vocab=8000"
EXPERTS = (
    "moe:layers=4,hidden=512,heads=8,kv_heads=4,ffn=1408,sequence=1024,vocab=8000,experts=8,"
    "top_k=2,expert_ffn=256"
)
TRAINING = Training(32, optimizer="adam", zero=3, overlap="none")
CACHE: dict[str, Schedule] = {}


def run(data: int = 16, tensor: int = 1, **options: object) -> Evaluation:
    """Evaluate a Llama, or one with experts, on replicas over several nodes of eight."""
    training = replace(TRAINING, **options)  # type: ignore[arg-type]
    place, devices = (1, data, tensor), data * tensor
    model = EXPERTS if "expert_parallel" in options else LLAMA
    return evaluate(model, "h100", "dgx-h100", training, place, devices=devices, cache=CACHE)


def sent(evaluation: Evaluation, kind: str) -> Communication:
    """Return a kind of communication of the only stage."""
    assert evaluation.placement is not None
    (stage,) = evaluation.placement.stages
    return next(each for each in stage.communication if each.kind == kind)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_a_group_of_all_is_none_to_the_bit(zero: int) -> None:
    """Also where the group is larger than there are replicas."""
    plain = run(zero=zero)
    assert plain == run(zero=zero, zero_group=16) == run(zero=zero, zero_group=64)
    assert plain != run(zero=zero, zero_group=8)


def test_a_group_in_a_node_by_hand() -> None:
    """Weights stay in the node; shards of gradients go between nodes; states are of the group."""
    cluster = load_cluster("dgx-h100", 16)
    whole, groups = run(), run(zero_group=8)
    assert whole.placement and groups.placement
    (all_,), (eight,) = whole.placement.stages, groups.placement.stages
    for kind in ("parameters", "gradients", "optimizer"):
        held, more = getattr(all_.memory_bytes, kind), getattr(eight.memory_bytes, kind)
        assert more == pytest.approx(2 * held, abs=2)
    microbatches = groups.placement.microbatches
    alone = run(8, global_batch=16, zero_group=8)
    # What a node gathers does not depend on how many nodes there are.
    gathered, gathered_alone = (sent(each, "parameter_gather") for each in (groups, alone))
    assert gathered.total_s == gathered_alone.total_s
    assert gathered.sent_bytes == gathered_alone.sent_bytes
    reduced, reduced_alone = (sent(each, "gradient_synchronisation") for each in (groups, alone))
    layers = [layer.parameters for layer in groups.layers for _ in range(layer.count)]
    # Gradients in fp32, an eighth of them between two nodes, layer by layer.
    between_s = sum(collective_s("all_reduce", 4 * n / 8, 2, cluster, 8) for n in layers)
    assert reduced.total_s - reduced_alone.total_s == pytest.approx(microbatches * between_s)
    more_bytes = microbatches * sum(layers) * 4 / 8
    assert reduced.sent_bytes - reduced_alone.sent_bytes == pytest.approx(more_bytes)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_a_group_of_all_is_none_to_the_bit_with_experts(zero: int) -> None:
    """As without; and half of all is no group of all."""
    plain = run(zero=zero, expert_parallel=4)
    assert plain == run(zero=zero, expert_parallel=4, zero_group=16)
    assert plain != run(zero=zero, expert_parallel=4, zero_group=8)


@pytest.mark.parametrize(
    ("experts", "tensor", "apart"), [(2, 1, 0), (8, 1, 0), (4, 2, 0), (4, 2, 1)]
)
def test_experts_in_a_group_by_hand(experts: int, tensor: int, apart: int) -> None:
    """Devices of a group with the same experts share these out; the same of other groups follow.

    Weights stay in the node, what a device holds doubles, and every gradient goes between nodes
    once: of the routed experts a share by the devices of a node that have the same ones.
    """
    cluster, group = load_cluster("dgx-h100", 16), 8 // tensor
    options: dict[str, Any] = {"expert_parallel": experts, "expert_tensor_parallel": apart}
    options["sequence_parallel"] = tensor > 1
    whole = run(16 // tensor, tensor, **options)
    groups = run(16 // tensor, tensor, zero_group=group, **options)
    alone = run(group, tensor, global_batch=16, **options)
    assert whole.placement and groups.placement
    (all_,), (eight,) = whole.placement.stages, groups.placement.stages
    for kind in ("parameters", "gradients", "optimizer"):
        held, more = getattr(all_.memory_bytes, kind), getattr(eight.memory_bytes, kind)
        assert more == pytest.approx(2 * held, abs=2)
    gathered, gathered_alone = (sent(each, "parameter_gather") for each in (groups, alone))
    assert gathered.total_s == gathered_alone.total_s
    holding = experts * (apart or tensor)
    same = 8 // holding  # devices of a node with the same experts
    between_s = 0.0
    for layer in groups.layers:
        routed = 8 * 3 * 512 * 256 // holding if layer.name == "block" else 0
        parts = ((layer.parameters - routed) / group, routed / same)
        each_s = sum(collective_s("all_reduce", 4 * n, 2, cluster, 8) for n in parts if n)
        between_s += groups.placement.microbatches * layer.count * each_s
    reduced, reduced_alone = (sent(each, "gradient_synchronisation") for each in (groups, alone))
    assert reduced.total_s - reduced_alone.total_s == pytest.approx(between_s)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([2, 4, 8, 16]), st.sampled_from([2, 4, 8]), st.floats(1.0, 1e10))
def test_one_way_after_another_takes_as_long_as_both(
    group: int, others: int, size_bytes: float
) -> None:
    """The cheapest pair is the pair of the cheapest."""
    cluster = load_cluster("dgx-h100", group * others)
    inside = collective_terms("reduce_scatter", group, cluster)
    between = collective_terms("all_reduce", others, cluster, group)
    pairs = [one_after_the_other(a, b, 1.0 / group) for a in inside for b in between]
    best = cheapest(pairs, size_bytes)
    parts_s = collective_s("reduce_scatter", size_bytes, group, cluster) + collective_s(
        "all_reduce", size_bytes / group, others, cluster, group
    )
    assert best.seconds(size_bytes) == pytest.approx(parts_s)


def test_slices_of_a_torus_over_a_switch() -> None:
    """Groups of a slice never gather over the data centre; all replicas do, which takes longer."""
    chip, cluster = "tpuv5e", load_cluster("tpuv5e-slices-256", 512)
    training = Training(512, optimizer="adam", zero=3, zero_group=256)
    slices = evaluate(LLAMA, chip, cluster, training, (1, 512, 1), cache=CACHE)
    one = evaluate(
        LLAMA,
        chip,
        load_cluster("tpuv5e-torus", 256),
        replace(training, global_batch=256),
        (1, 256, 1),
        cache=CACHE,
    )
    assert sent(slices, "parameter_gather").total_s == sent(one, "parameter_gather").total_s
    whole = replace(training, zero_group=0)
    longer = evaluate(LLAMA, chip, cluster, whole, (1, 512, 1), cache=CACHE)
    assert sent(slices, "parameter_gather").total_s < sent(longer, "parameter_gather").total_s


def test_where_there_are_no_groups() -> None:
    """Nothing shared out, placements to be found, bounds; replicas left over, too few experts."""
    for zero, group, words in (
        (0, 8, "zero_group is 8 and zero is 0"),
        (3, 1, "zero_group is 1 and zero is 3"),
    ):
        with pytest.raises(InputError, match=words):
            replace(TRAINING, zero=zero, zero_group=group)
    grouped = replace(TRAINING, zero_group=8)
    with pytest.raises(InputError, match="give its degrees"):
        evaluate(LLAMA, "h100", "dgx-h100", grouped, devices=16)
    with pytest.raises(InputError, match="bounds do not know zero_group = 8 of Training, only 0"):
        check_handled(grouped)
    left_over = run(12, zero_group=8)
    assert not left_over.feasible and "zero_group of 8" in str(left_over.reason)
    part = run(expert_parallel=4, zero_group=2)
    assert not part.feasible and "must be 0 or a multiple of it" in str(part.reason)
