"""Laws of models whose routed experts are shared out among devices."""

import functools
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.choices import Dispatcher
from phaze_opt.errors import InputError
from phaze_opt.training import Training
from phaze_opt.workload.capture.transformer import capture_transformer
from phaze_opt.workload.expert_parallel import with_experts_shared_out
from phaze_opt.workload.experts import rows_of_expert
from phaze_opt.workload.fusion import fuse
from phaze_opt.workload.graph import Layer, OperatorGraph, TokenExchange, WorkloadVariant
from phaze_opt.workload.zoo import load_workload, model_config

MODELS = (
    "moe:layers=2,hidden=64,heads=4,sequence=512,vocab=64,experts=8,top_k=2,expert_ffn=16,shared=1",
    "moe:layers=2,hidden=64,heads=4,sequence=96,vocab=64,experts=16,top_k=4,expert_ffn=32,ffn=96,"
    "dense_layers=1",
)


def _variant(model: str, tensor: int, split: bool) -> WorkloadVariant:
    return load_workload(model, tensor_parallel=(tensor,), sequence_parallel=split).variants[0]


def _shared(variant: WorkloadVariant, devices: int, **options: Any) -> WorkloadVariant:
    return with_experts_shared_out(variant, Training(64, expert_parallel=devices, **options))


def _passes(layer: Layer) -> tuple[OperatorGraph, ...]:
    return layer.forward, layer.backward, layer.selective_recompute


def _weight_bytes(graph: OperatorGraph, kind: str) -> int:
    return sum(
        tensor.elements * tensor.element_bytes for tensor in graph.tensors if tensor.kind == kind
    )


def _exchanges(graph: OperatorGraph) -> list[tuple[str, TokenExchange]]:
    return [
        (operator.collective.kind, operator.collective.exchange)
        for operator in graph.operators
        if operator.collective is not None and operator.collective.exchange
    ]


degrees = st.sampled_from([(1, False), (2, False), (2, True)])


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(MODELS), degrees, st.sampled_from([2, 4, 8]))
def test_shares_add_up(model: str, tensor: tuple[int, bool], devices: int) -> None:
    """Of all devices: parameters, FLOPs of the model, and bytes of weights and their gradients."""
    whole = _variant(model, *tensor)
    shared = _shared(whole, devices)
    assert shared.forward_flops == whole.forward_flops  # each has its own tokens
    for all_of_it, own in zip(whole.layers, shared.layers, strict=True):
        routed, local = all_of_it.routed_parameters or 0, own.routed_parameters or 0
        assert devices * local == routed
        assert own.parameters - local == all_of_it.parameters - routed
        assert own.stash_bytes == all_of_it.stash_bytes
        for part, graph in zip(_passes(own), _passes(all_of_it), strict=True):
            assert part.flops == graph.flops
            for kind in ("weight", "weight_gradient"):
                less = _weight_bytes(graph, kind) - _weight_bytes(part, kind)
                if part in (own.forward, own.backward) and _weight_bytes(graph, kind):
                    assert less == 2 * (routed - local)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(MODELS), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4, 8]))
def test_shares_of_split_experts_add_up(model: str, tensor: int, width: int) -> None:
    """Over `width` devices: parameters, FLOPs, and rows; all but the experts is as it was."""
    plain = _variant(model, tensor, True)
    (apart,) = load_workload(
        model,
        tensor_parallel=(tensor,),
        sequence_parallel=True,
        expert_tensor_parallel=(width,),
    ).variants
    assert (apart == plain) == (width == tensor)
    assert (apart.expert_tensor or tensor) == width
    assert apart.forward_flops == plain.forward_flops  # each has its own tokens
    for own, other in zip(apart.layers, plain.layers, strict=True):
        routed, of_group = own.routed_parameters or 0, other.routed_parameters or 0
        assert width * routed == tensor * of_group
        assert own.parameters - routed == other.parameters - of_group
        assert own.backward.flops == other.backward.flops
        for graph, as_before in zip(_passes(own), _passes(other), strict=True):
            for kind in ("weight", "weight_gradient"):
                less = _weight_bytes(as_before, kind) - _weight_bytes(graph, kind)
                if _weight_bytes(as_before, kind) and graph is not own.selective_recompute:
                    assert less == 2 * (of_group - routed)
        gathered = [
            operator.collective.neighbours
            for operator in own.forward.operators
            if operator.collective and operator.collective.neighbours
        ]
        expected = 4 if routed and width not in (1, tensor) else 0
        assert gathered == [width] * expected  # tokens, weights, which experts, and results
    shared = _shared(apart, 8, expert_tensor_parallel=width)
    for layer in shared.layers:
        for _, exchange in _exchanges(layer.forward):
            assert (exchange.stride or tensor) == width
            assert exchange.tokens * tensor == width * model_config(model).sequence


@pytest.mark.parametrize(
    ("dispatcher", "devices", "sorts"),
    [("nccl", 2, 1), ("nccl", 8, 0), ("deepep", 2, 0), ("hybridep", 2, 0), ("ideal", 2, 0)],
)
def test_rows_of_several_experts_are_sorted_where_nccl_brings_them(
    dispatcher: Dispatcher, devices: int, sorts: int
) -> None:
    """Once on either way, between the exchange and the experts: each row is read and written."""
    own = _shared(_variant(MODELS[0], 1, False), devices, dispatcher=dispatcher).layers[1]
    for graph, ways in zip(_passes(own), (2, 2, 1), strict=True):
        found = [
            place
            for place, operator in enumerate(graph.operators)
            if operator.id.startswith("sort_rows")
        ]
        assert len(found) == sorts * ways
        for place in found:
            (work,) = graph.operators[place].vector
            assert (work.rows, work.columns) == (512 * 2, 64)
            assert graph.moved_bytes[place] == 2 * 2 * work.elements
            neighbours = graph.operators[place - 1 : place + 2 : 2]
            assert [each.is_exchange for each in neighbours].count(True) == 1


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(MODELS), degrees, st.sampled_from([2, 8]))
def test_rows_are_sent_there_and_back(model: str, tensor: tuple[int, bool], devices: int) -> None:
    """The backward mirrors the forward, and everything else has the order that it had."""
    whole = _variant(model, *tensor)
    for layer, own in zip(whole.layers, _shared(whole, devices).layers, strict=True):
        kinds = [[kind for kind, _ in _exchanges(graph)] for graph in _passes(own)]
        if not layer.routed_parameters:
            assert own == layer
            continue
        assert kinds == [["dispatch", "combine"]] * 2 + [["dispatch"]]
        (_, there), (_, back) = _exchanges(own.forward)
        assert (there.tokens * there.top_k, there.devices) == (back.tokens * back.top_k, devices)
        assert [e.plans for _, e in (*_exchanges(own.forward), *_exchanges(own.backward))] == [
            *(True, False, False, False)
        ]
        for graph, before in zip(_passes(own), _passes(layer), strict=True):
            others = [
                op.id
                for op in graph.operators
                if not (op.is_exchange or op.id.startswith("sort_rows"))
            ]
            assert others == [operator.id for operator in before.operators]
            for tensor_ in graph.tensors:
                writers = [writer for writer, _ in tensor_.writers]
                assert all(w < r.operator for w in writers for r in tensor_.readers)
            fused = fuse(graph, "epilogue")
            assert fused.flops == graph.flops
            assert Counter(map(str, _exchanges(fused))) == Counter(map(str, _exchanges(graph)))


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(MODELS), st.sampled_from([2, 4, 8]), st.floats(1.0, 3.0))
def test_imbalance_is_rows_of_no_model(model: str, devices: int, factor: float) -> None:
    """The slowest device computes and sends more; the model's FLOPs are the same."""
    whole = _variant(model, 1, False)
    even, uneven = _shared(whole, devices), _shared(whole, devices, expert_imbalance=factor)
    assert uneven.forward_flops == even.forward_flops
    for one, other in zip(even.layers, uneven.layers, strict=True):
        assert one.parameters == other.parameters
        for a, b in zip(_passes(one), _passes(other), strict=True):
            for own, more in zip(a.operators, b.operators, strict=True):
                assert own.flops <= more.flops
                assert sum(v.elements for v in own.vector) <= sum(v.elements for v in more.vector)
            for (_, own_sent), (_, more_sent) in zip(_exchanges(a), _exchanges(b), strict=True):
                assert own_sent.tokens <= more_sent.tokens <= factor * own_sent.tokens + 1


def _of_capacity(capacity: float, tensor: int = 1) -> WorkloadVariant:
    options: dict[str, Any] = {"tensor_parallel": (tensor,), "expert_capacity": (capacity,)}
    (variant,) = load_workload(MODELS[0], **options).variants
    return variant


def _of_kind(graph: OperatorGraph, name: str) -> list[int]:
    return [each.flops for each in graph.operators if each.id.startswith(name)]


def test_capacity_of_even_routing_is_the_tokens_that_come() -> None:
    """To the bit, but for its name; another number of rows is not."""
    plain, even = _of_capacity(0.0), _of_capacity(1.0)
    assert even.expert_capacity == 1.0
    assert replace(even, expert_capacity=plain.expert_capacity) == plain
    assert _of_capacity(1.25).layers[1] != plain.layers[1]
    assert _of_capacity(1.25).layers[0] == plain.layers[0]


@settings(max_examples=10, deadline=None)
@given(st.sampled_from([0.3, 0.5, 0.9, 1.1, 1.5, 2.0]), st.sampled_from([1, 2]))
def test_every_expert_has_its_capacity(capacity: float, tensor: int) -> None:
    """Rows are computed, held and sent; a model asks for those that tokens fill."""
    shape = model_config(MODELS[0])
    assert shape.experts
    plain, padded = _of_capacity(0.0, tensor), _of_capacity(capacity, tensor)
    chosen = shape.sequence * shape.experts.top_k
    rows = shape.experts.count * math.ceil(chosen * capacity / shape.experts.count)
    one, other = padded.layers[1], plain.layers[1]
    inner = shape.experts.feed_forward // tensor
    kept = one.stash_bytes.none - other.stash_bytes.none
    assert kept == 2 * (rows - chosen) * (shape.hidden + 3 * inner)
    asked = other.forward.flops - one.forward.flops
    assert asked == 2 * max(chosen - rows, 0) * 3 * shape.hidden * inner
    for graph, before in zip(_passes(one)[:2], _passes(other)[:2], strict=True):
        each, were = _of_kind(graph, "grouped_product"), _of_kind(before, "grouped_product")
        full = rows_of_expert(rows, shape.experts.count)
        assert [now * rows_of_expert(chosen, shape.experts.count) for now in each if now] == [
            *(was * full for was in were if was)
        ] or tensor > 1  # where a group repeats the router
    shared = _shared(padded, 8, expert_capacity=capacity)
    for _, exchange in _exchanges(shared.layers[1].forward):
        assert exchange.size_bytes == rows * shape.hidden * 2
        assert exchange.top_k == shape.experts.top_k
    assert shared.forward_flops == padded.forward_flops


@functools.cache
def _of_experts(count: int, tensor: int) -> WorkloadVariant:
    config = model_config(MODELS[0])
    assert config.experts
    of_count = replace(config, experts=replace(config.experts, count=count))
    return capture_transformer(
        of_count, tensor_parallel=tensor, microbatch=1, sequence_parallel=False
    )


@settings(max_examples=10, deadline=None)
@given(st.sampled_from([1, 2]), st.sampled_from([2, 4, 8]))
def test_more_experts_per_device_never_change_the_active_flops(tensor: int, devices: int) -> None:
    """Only the router's grow with the experts."""
    config = model_config(MODELS[0])
    few, more = (_shared(_of_experts(count, tensor), devices) for count in (8, 64))
    router = 2 * config.sequence * config.hidden * (64 - 8) * config.layers
    assert tensor * (more.forward_flops - few.forward_flops) == router


def test_working_sets_have_the_gradients_of_fewer_experts() -> None:
    """What a layer holds while it runs falls with the experts of a device, never below 0."""
    whole = _variant("mixtral-8x7b", 1, False)
    sizes = [
        max(layer.fused_transient_bytes.none for layer in _shared(whole, devices).layers[1:2])
        for devices in (1, 2, 4, 8)
    ]
    assert sizes[0] > sizes[1] >= sizes[2] >= sizes[3] > 0


def test_exchanges_know_from_which_groups_experts_are() -> None:
    """Only layers with experts state them, and only where not all groups are open."""
    limited = _variant(MODELS[0] + ",groups=4,top_groups=1", 1, False)
    assert [layer.expert_groups or None for layer in limited.layers] == [None, (4, 1), None]
    for layer in _shared(limited, 8).layers[1:2]:
        for graph in _passes(layer):
            assert all((e.groups, e.top_groups) == (4, 1) for _, e in _exchanges(graph))
    assert not _variant(MODELS[0] + ",groups=4,top_groups=4", 1, False).layers[1].expert_groups


def test_one_device_changes_nothing() -> None:
    """The very variant comes back, whatever the dispatcher."""
    whole = _variant(MODELS[0], 1, False)
    assert _shared(whole, 1, dispatcher="deepep", expert_imbalance=2.0) is whole


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (MODELS[0], {"devices": 3}, "must divide the 8 experts"),
        (MODELS[0], {"devices": 16}, "must divide the 8 experts"),
        ("gpt2-small", {"devices": 2}, "no routed experts"),
        (MODELS[0], {"devices": 2, "expert_imbalance": 0.5}, "expert_imbalance is 0.5"),
        (MODELS[0], {"devices": 0}, "expert_parallel is 0"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(
    model: str, options: dict[str, Any], words: str
) -> None:
    """In one sentence with the value."""
    whole = _variant(model if "gpt2" not in model else "gpt2-xl", 1, False)
    with pytest.raises(InputError, match=words):
        _shared(whole, **options)
