"""Sequences shared among devices: every device's share of the work, and what it sends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.choices import ContextKind
from phaze_opt.errors import InputError
from phaze_opt.training import Training
from phaze_opt.workload.context_parallel import with_context_shared_out
from phaze_opt.workload.graph import Collective, Layer, Operator, OperatorGraph, WorkloadVariant
from phaze_opt.workload.workload_file import read_workload, write_workload
from phaze_opt.workload.zoo import load_workload

HIDDEN, HEADS, KV_HEADS, SEQUENCE = 256, 8, 2, 512
MODEL = (
    f"llama:layers=2,hidden={HIDDEN},heads={HEADS},kv_heads={KV_HEADS},ffn=512,"
    f"sequence={SEQUENCE},vocab=1024"
)
KINDS: tuple[ContextKind, ...] = ("ring", "a2a", "gather")
ALL_KINDS = st.sampled_from(KINDS)
DEVICES = st.sampled_from([2, 4, 8])


def shared(devices: int, kind: ContextKind, model: str = MODEL, **options: Any) -> WorkloadVariant:
    """Load a model with its sequences shared among devices."""
    workload = load_workload(model, context_parallel=(devices,), **options)
    (variant,) = with_context_shared_out(workload.variants, Training(8, context_kind=kind))
    return variant


def block(variant: WorkloadVariant) -> Layer:
    """Return the layer that attends."""
    return next(layer for layer in variant.layers if layer.forward.masked_flops > 0.0)


def attending(graph: OperatorGraph) -> list[Operator]:
    """Return the operators of a pass that compute attention."""
    return [operator for operator in graph.operators if operator.attention]


def sent(graph: OperatorGraph) -> list[Collective]:
    """Return what the devices of a sequence send."""
    found = (operator.collective for operator in graph.operators)
    return [each for each in found if each is not None and each.context]


@pytest.mark.parametrize("kind", KINDS)
def test_one_device_is_no_sharing(kind: ContextKind) -> None:
    """To the object: nothing is captured or changed."""
    variants = load_workload(MODEL).variants
    assert with_context_shared_out(variants, Training(8, context_kind=kind))[0] is variants[0]
    assert load_workload(MODEL, context_parallel=(1,)).variants == variants


@settings(max_examples=20, deadline=None)
@given(DEVICES, ALL_KINDS, st.sampled_from([1, 3]))
def test_shares_add_up(devices: int, kind: ContextKind, samples: int) -> None:
    """FLOPs that the model asks for, and those that the mask hides, are those of whole sequences.

    So are scores that are computed: up to the triangles' own diagonals, which are as many however
    sequences are cut.
    """
    whole = load_workload(MODEL, microbatch=(samples,)).variants[0]
    part = shared(devices, kind, microbatch=(samples,))
    assert devices * part.forward_flops == whole.forward_flops
    for mine, all_of_it in zip(part.layers, whole.layers, strict=True):
        assert mine.parameters == all_of_it.parameters
        for name in ("forward", "backward", "selective_recompute"):
            own, every = getattr(mine, name), getattr(all_of_it, name)
            assert devices * own.flops == every.flops
            assert devices * own.masked_flops == pytest.approx(every.masked_flops, rel=2e-2)
            # Every device of a causal sequence computes as many scores: it has one graph, and all
            # graphs together have the scores that the mask leaves.
            computed = sum(each.attention.visible for each in attending(own) if each.attention)
            visible = sum(each.attention.visible for each in attending(every) if each.attention)
            assert devices * computed == visible


@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize("kind", ["ring", "gather"])
def test_causal_work_is_balanced(devices: int, kind: ContextKind) -> None:
    """Chunk by chunk under the mask: every device has as many scores as the graph has."""
    graph = block(shared(devices, kind, sequence=64)).forward
    chunk = 64 // (2 * devices)
    positions = np.arange(64)
    mask = positions[:, np.newaxis] >= positions
    counted = sum(each.attention.visible for each in attending(graph) if each.attention)
    for device in range(devices):
        own = np.isin(positions // chunk, (device, 2 * devices - 1 - device))
        assert HEADS * int(mask[own].sum()) == counted
        # Of the keys of each other device it computes half of a block, in whole chunks.
        for other in set(range(devices)) - {device}:
            theirs = np.isin(positions // chunk, (other, 2 * devices - 1 - other))
            assert int(mask[np.ix_(own, theirs)].sum()) == 2 * chunk * chunk


@settings(max_examples=20, deadline=None)
@given(DEVICES, ALL_KINDS)
def test_all_but_attention_is_that_of_the_share(devices: int, kind: ContextKind) -> None:
    """Operators, and what they read and write, are those of a sequence as long as a share."""
    share = load_workload(MODEL, sequence=SEQUENCE // devices).variants[0]
    part = shared(devices, kind)
    for mine, short in zip(part.layers, share.layers, strict=True):
        for name in ("forward", "backward"):
            own, other = getattr(mine, name), getattr(short, name)
            kept = [
                (each, own.read_bytes[i], own.write_bytes[i])
                for i, each in enumerate(own.operators)
                if not each.attention and not each.collective
            ]
            expected = [
                (each, other.read_bytes[i], other.write_bytes[i])
                for i, each in enumerate(other.operators)
                if not each.attention
            ]
            assert kept == expected


@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize("samples", [1, 2])
def test_bytes_by_hand(devices: int, samples: int) -> None:
    """Volumes of all kinds, as their papers state them; of grouped heads too."""
    tokens, head = samples * SEQUENCE // devices, HIDDEN // HEADS
    kv_bytes = 2 * KV_HEADS * head * tokens * 2
    ring = block(shared(devices, "ring", microbatch=(samples,)))
    forward, backward = sent(ring.forward), sent(ring.backward)
    assert sum(each.size_bytes for each in forward) == (devices - 1) * kv_bytes
    assert sum(each.size_bytes for each in backward) == 2 * (devices - 1) * kv_bytes
    assert sum(each.context.messages for each in forward if each.context) == devices - 1
    assert all(each.size_bytes <= kv_bytes * each.context.messages for each in forward
               if each.context)  # fmt: skip

    gather = block(shared(devices, "gather", microbatch=(samples,)))
    assert [(each.kind, each.size_bytes) for each in sent(gather.forward)] == [
        ("all_gather", devices * kv_bytes)
    ]
    assert [(each.kind, each.size_bytes) for each in sent(gather.backward)] == [
        ("all_gather", devices * kv_bytes),
        ("reduce_scatter", devices * kv_bytes),
    ]

    # Every device gets one key and one value head at least.
    heads = 2 * HEADS + 2 * max(KV_HEADS, devices)
    there_and_back = block(shared(devices, "a2a", microbatch=(samples,)))
    for graph in (there_and_back.forward, there_and_back.backward):
        assert {each.kind for each in sent(graph)} == {"all_to_all"}
        assert sum(each.size_bytes for each in sent(graph)) == heads * head * tokens * 2


def test_messages_go_beside_attention() -> None:
    """Of a ring; what is gathered, or goes to other heads, comes before and after."""
    for graph in (block(shared(4, "ring")).forward, block(shared(4, "ring")).backward):
        assert all(each.gemms for each in graph.operators if each.collective)
        assert sum(each.collective is not None for each in attending(graph)) == len(sent(graph))
    for kind in KINDS[1:]:
        for graph in (block(shared(4, kind)).forward, block(shared(4, kind)).backward):
            assert not any(each.collective for each in attending(graph))


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([2, 4, 8]), ALL_KINDS)
def test_steps_stand_in_order(devices: int, kind: ContextKind) -> None:
    """Every tensor is written before it is read, and no element of a result is lost."""
    part, whole = block(shared(devices, kind)), block(shared(1, kind))
    for name in ("forward", "backward"):
        graph: OperatorGraph = getattr(part, name)
        for tensor in graph.tensors:
            writers = [writer for writer, _ in tensor.writers]
            assert all(max(writers) < read.operator for read in tensor.readers if writers)
            if tensor.writers:
                assert sum(elements for _, elements in tensor.writers) >= tensor.elements
        ids = [each.id for each in graph.operators]
        assert len(set(ids)) == len(ids)
        outliving = sum(each.elements for each in graph.tensors if each.outlives)
        parameters = sum(each.elements for each in graph.tensors if each.kind == "weight_gradient")
        every: OperatorGraph = getattr(whole, name)
        of_whole = sum(each.elements for each in every.tensors if each.outlives)
        assert devices * (outliving - parameters) <= of_whole


def test_how_many_devices_there_are_changes_no_number_of_operators() -> None:
    """A ring of 64 is as large a problem as one of 3, which is why long sequences are as quick."""
    few, many = (block(shared(n, "ring", sequence=2**20)).backward for n in (4, 64))
    assert len(few.operators) == len(many.operators)


def test_long_sequences_hold_what_their_shares_hold() -> None:
    """A stash is divided; an all-to-all keeps the result of attention twice, and copied heads."""
    for devices in (2, 4):
        tokens, head = SEQUENCE // devices, HIDDEN // HEADS
        short = block(shared(1, "ring", sequence=tokens))
        for kind in KINDS:
            part = block(shared(devices, kind))
            more = part.stash_bytes.none - short.stash_bytes.none
            copied = 2 * (max(devices, KV_HEADS) - KV_HEADS) * head * tokens * 2
            assert more == (HIDDEN * tokens * 2 + copied if kind == "a2a" else 0)
            assert part.stash_bytes.full == short.stash_bytes.full
            assert part.transient_bytes.none > short.transient_bytes.none


@pytest.mark.parametrize(
    ("devices", "kind", "options", "sentence"),
    [
        (3, "ring", {}, "context_parallel is 3, but it must divide the 512 tokens per sample"),
        (2, "ring", {"attention": "eager"}, "only by fused self-attention"),
        (16, "a2a", {}, "with an all-to-all it must divide the 8 heads"),
        (512, "gather", {}, "leaves 1 tokens of a sample on a device"),
    ],
)
def test_what_cannot_be_shared_is_refused(
    devices: int, kind: ContextKind, options: dict[str, Any], sentence: str
) -> None:
    """In one sentence, when it is captured or when it is shared out."""
    with pytest.raises(InputError, match=sentence):
        shared(devices, kind, **options)


def test_a_file_holds_how_sequences_are_shared(tmp_path: Any) -> None:
    """Written and read back; a degree that it does not have is refused in a sentence."""
    path = tmp_path / "model.json"
    workload = load_workload(MODEL, context_parallel=(1, 4))
    write_workload(workload, path)
    assert read_workload(path) == workload
    again = load_workload(str(path), context_parallel=(4,))
    assert again.variants == load_workload(MODEL, context_parallel=(4,)).variants
    with pytest.raises(InputError, match="with context_parallel 2; it was at 1 and 1"):
        load_workload(str(path), context_parallel=(2,))
