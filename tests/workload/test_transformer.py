"""The transformer family against closed forms: parameters, FLOPs, stash and communication."""

import csv
import functools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.workload.capture.blocks import Block
from phaze_opt.workload.capture.layer import capture_layer
from phaze_opt.workload.capture.tensor_parallel import DTYPE, TensorGroup
from phaze_opt.workload.capture.transformer import capture_transformer, count_parameters
from phaze_opt.workload.config import LLAMA, TransformerConfig
from phaze_opt.workload.fusion import fuse
from phaze_opt.workload.graph import Gemm, Layer, OperatorGraph, WorkloadVariant
from phaze_opt.workload.summary import collective_bytes
from phaze_opt.workload.zoo import load_workload, model_config
from tests.workload.strategies import transformers

COUNTS = Path(__file__).parent.parent / "data" / "parameter_counts.csv"
"""Parameters of one block in closed form, from the published descriptions of the models."""

KNOWN_PARAMETERS = {
    # As released; Devlin et al. 2019, Radford et al. 2019, Zhang et al. 2022, Touvron et al. 2023,
    # Grattafiori et al. 2024, Gemma team 2024.
    "bert-large": 335_174_458,
    "gpt2-xl": 1_557_611_200,
    "opt-350m": 331_196_416,
    "llama2-7b": 6_738_415_616,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "gemma2-9b": 9_241_705_984,
}

KORTHIKANTI = TransformerConfig(
    layers=1, hidden=2304, heads=24, sequence=2048, vocabulary=51200, dropout=0.1
)


@functools.cache
def _capture(
    config: TransformerConfig,
    tensor_degree: int = 1,
    *,
    microbatch: int = 2,
    split_sequence: bool = False,
) -> WorkloadVariant:
    return capture_transformer(
        config,
        tensor_parallel=tensor_degree,
        microbatch=microbatch,
        sequence_parallel=split_sequence,
    )


def _products(config: TransformerConfig, tokens: int) -> dict[str, int]:
    """Return forward FLOPs by closed form: per block without and of the attention core, head."""
    h, kv = config.hidden, config.key_value_heads * config.head_size
    matrices = 3 if config.activation == "swiglu" else 2
    dense = 2 * tokens * (2 * h * h + 2 * h * kv + matrices * h * config.inner)
    core = 4 * tokens * config.sequence * h
    e = config.embedding_width
    head = 2 * tokens * e * config.vocabulary
    if e != h:
        head += 2 * tokens * h * e
    if config.head == "masked_language_model":
        head += 2 * tokens * e * e
    embedding = 2 * tokens * h * e if e != h else 0
    return {"dense": dense, "core": core, "head": head, "embedding": embedding}


@pytest.mark.parametrize(
    "row",
    list(csv.DictReader(COUNTS.open())),
    ids=lambda row: "-".join((row["model"], row["tensor_parallel"])),
)
def test_block_parameters_are_the_published_ones(row: dict[str, str]) -> None:
    """A block has exactly the parameters of the closed form at every tensor degree."""
    config = model_config(row["model"])
    block = Block(config, TensorGroup(int(row["tensor_parallel"])))
    assert config.sequence == int(row["sequence"])
    assert sum(p.numel() for p in block.parameters()) == int(row["block_parameters"])


def test_captured_block_has_the_parameters_of_its_module() -> None:
    """Capture counts what the module holds on one device."""
    block = load_workload("megatron-gpt2-8.3b", tensor_parallel=(8,)).variants[0].layers[1]
    assert block.parameters == 14_176_896


@pytest.mark.parametrize(("model", "parameters"), KNOWN_PARAMETERS.items())
def test_whole_models_have_their_known_size(model: str, parameters: int) -> None:
    """Tied weights counted once, a model has the parameters of its release."""
    workload = load_workload(model)
    variant = workload.variants[0]
    held = sum(variant.layers[index].parameters for _, index in variant.nodes)
    first, last = (variant.layers[variant.nodes[place][1]] for place in (0, -1))
    assert first.tied_parameters == last.tied_parameters
    assert workload.parameters == held - last.tied_parameters == parameters


def test_gpt3_has_175_billion_parameters() -> None:
    """GPT-3 is 175 B within half a percent, whatever the tensor degree it was captured at."""
    workload = load_workload("gpt3-175b", tensor_parallel=(8,))
    assert workload.parameters == pytest.approx(175e9, rel=0.005)


@settings(max_examples=3, deadline=None)
@given(transformers(), st.integers(1, 3), st.sampled_from([2, 4]))
def test_laws_of_every_shape(config: TransformerConfig, microbatch: int, t: int) -> None:
    """Counts, FLOPs, shards and communication are closed forms: three captures answer for all."""
    whole = _capture(config, microbatch=microbatch)
    shard = _capture(config, t, microbatch=microbatch)
    split = _capture(config, t, microbatch=microbatch, split_sequence=True)
    assert_parameters_are_counted_without_capture(config, whole)
    assert_forward_flops_are_the_closed_form(config, whole, microbatch)
    for sharded in (shard, split):
        assert_shards_sum_to_the_whole(config, whole, sharded, t)
    assert_blocks_communicate_the_closed_form(config, shard, split, microbatch)
    assert_ends_communicate_activations_and_row_statistics(config, shard, split, microbatch)


def assert_parameters_are_counted_without_capture(
    config: TransformerConfig, variant: WorkloadVariant
) -> None:
    """Check that the parameter count of a model is that of its captured layers."""
    held = sum(variant.layers[index].parameters for _, index in variant.nodes)
    assert count_parameters(config) == held - variant.layers[2].tied_parameters


def assert_forward_flops_are_the_closed_form(
    config: TransformerConfig, variant: WorkloadVariant, microbatch: int
) -> None:
    """Check forward FLOPs; backward is twice that, of fused attention 2.5 times."""
    expected = _products(config, microbatch * config.sequence)
    embedding, block, head = variant.layers
    assert block.forward.flops == expected["dense"] + expected["core"]
    assert head.forward.flops == expected["head"]
    assert embedding.forward.flops == expected["embedding"]
    assert head.backward.flops == 2 * head.forward.flops
    assert embedding.backward.flops == 2 * embedding.forward.flops
    core = 5 if config.attention == "flash" else 4
    assert 2 * block.backward.flops == 4 * expected["dense"] + core * expected["core"]


def assert_shards_sum_to_the_whole(
    config: TransformerConfig, whole: WorkloadVariant, shard: WorkloadVariant, t: int
) -> None:
    """Check that shards hold the model once, what is replicated once each, and split products."""
    h = config.hidden
    affine = 2 if config.norm == "layer_norm" else 1
    replicated = 2 * affine * h + (2 * h if config.bias else 0)
    blocks = whole.layers[1], shard.layers[1]
    assert t * (blocks[1].parameters - replicated) == blocks[0].parameters - replicated
    assert t * blocks[1].forward.flops == blocks[0].forward.flops
    assert t * blocks[1].backward.flops == blocks[0].backward.flops
    rows = config.padded_vocabulary(t)
    words = rows * config.embedding_width // t
    embeddings = whole.layers[0].parameters - config.vocabulary * config.embedding_width
    assert shard.layers[0].parameters == words + embeddings
    for layer in (shard.layers[0], shard.layers[2]):
        assert layer.tied_parameters == (words if config.tied else 0)
    shares = t if shard.sequence_parallel else 1
    assert shares * shard.layers[1].output_bytes == whole.layers[1].output_bytes


def assert_blocks_communicate_the_closed_form(
    config: TransformerConfig, shard: WorkloadVariant, split: WorkloadVariant, microbatch: int
) -> None:
    """Check that a block all-reduces 2·s·b·h bytes twice each way.

    Shoeybi et al. 2019, section 3. With sequence parallelism each is a reduce-scatter and an
    all-gather of as many bytes, and the backward gathers the two stored inputs again (Korthikanti
    et al. 2022, section 4.2.2).
    """
    whole = 2 * config.sequence * microbatch * config.hidden
    block, split_block = shard.layers[1], split.layers[1]
    for graph in (block.forward, block.backward):
        assert collective_bytes(graph) == {"all_reduce": 2 * whole}
    assert collective_bytes(split_block.forward) == {
        "all_gather": 2 * whole,
        "reduce_scatter": 2 * whole,
    }
    assert collective_bytes(split_block.backward) == {
        "all_gather": 4 * whole,
        "reduce_scatter": 2 * whole,
    }
    assert _counts(split_block.backward) == {"all_gather": 4, "reduce_scatter": 2}


def assert_ends_communicate_activations_and_row_statistics(
    config: TransformerConfig, shard: WorkloadVariant, split: WorkloadVariant, microbatch: int
) -> None:
    """Check that the embedding sums words, and the head the gradient and three numbers a token."""
    tokens = config.sequence * microbatch
    words = 2 * tokens * config.embedding_width
    embedding, _, head = shard.layers
    assert collective_bytes(embedding.forward) == {"all_reduce": words}
    assert collective_bytes(embedding.backward) == {}
    assert collective_bytes(head.forward) == {"all_reduce": 3 * 4 * tokens}
    assert collective_bytes(head.backward) == {"all_reduce": words}
    embedding, _, head = split.layers
    assert collective_bytes(embedding.forward) == {"reduce_scatter": words}
    assert collective_bytes(embedding.backward) == {"all_gather": words}
    assert collective_bytes(head.forward) == {"all_gather": words, "all_reduce": 3 * 4 * tokens}
    assert collective_bytes(head.backward) == {"all_gather": words, "reduce_scatter": words}


def test_gpt_block_flops() -> None:
    """A GPT block's forward is 24·b·s·h² + 4·b·s²·h, its backward twice that."""
    b, s, h = 2, KORTHIKANTI.sequence, KORTHIKANTI.hidden
    block = _block(1, config=KORTHIKANTI)
    assert block.forward.flops == 24 * b * s * h * h + 4 * b * s * s * h
    assert block.backward.flops == 2 * block.forward.flops


@functools.cache
def _block(tensor_degree: int, *, split_sequence: bool = False, config: TransformerConfig) -> Layer:
    """Capture a block alone."""
    group = TensorGroup(tensor_degree, split_sequence)
    rows = config.sequence // (tensor_degree if group.splits_sequence else 1)
    stream = torch.empty((rows, 2, config.hidden), dtype=DTYPE, device="meta", requires_grad=True)
    return capture_layer("block", Block(config, group), (stream,))


@pytest.mark.parametrize("tensor_degree", [1, 2, 8])
def test_stash_agrees_with_the_published_formulas(tensor_degree: int) -> None:
    """The stash of a GPT block is Korthikanti et al. 2022, equations 1, 2 and 4 and table 2.

    The exact count is above the formula by what the formula neglects: each layer norm's mean and
    reciprocal deviation in fp32, 8 bytes per token and norm. It is not split over the group
    without sequence parallelism, so its share grows with the tensor degree.
    """
    s, b, h, a, t = 2048, 2, 2304, 24, tensor_degree
    core, statistics = 5 * a * s, 2 * 8
    plain = _block(t, config=KORTHIKANTI).stash_bytes
    assert plain.none == s * b * (10 * h + (24 * h + core) // t + statistics)
    assert plain.selective == s * b * (10 * h + 24 * h // t + statistics)
    assert plain.full == 2 * s * b * h
    split = _block(t, split_sequence=True, config=KORTHIKANTI).stash_bytes
    assert split.none == s * b * (34 * h + core + statistics) // t
    assert split.selective == s * b * (34 * h + statistics) // t
    assert split.full == 2 * s * b * h // t
    assert statistics < 0.001 * 10 * h


@pytest.mark.parametrize("tensor_degree", [1, 4])
def test_head_stash_holds_fp32_logits(tensor_degree: int) -> None:
    """The head keeps 4·s·b·V/t bytes of logits, its two inputs, and small statistics.

    On one device they are PyTorch's log-probabilities, which need no log-sum beside them.
    """
    tokens = 2048 * 2
    head = _capture(KORTHIKANTI, tensor_degree).layers[2]
    logits = 4 * tokens * KORTHIKANTI.vocabulary // tensor_degree
    # Final norm's input and output; then mean, deviation and log-sum (fp32), and target (int64).
    statistics = 4 + 4 + (4 if tensor_degree > 1 else 0) + 8
    assert head.stash_bytes.none == logits + 2 * 2 * tokens * 2304 + tokens * statistics


def test_plain_loss_has_two_gradients_of_the_logits_at_once() -> None:
    """PyTorch holds the gradients of log-probabilities and logits; a compiler fuses the first away.

    Over a tensor-parallel group (Megatron-LM's kernel) there is only that of the logits.
    """
    logits = 4 * 2048 * 2 * KORTHIKANTI.vocabulary
    alone, split = (_capture(KORTHIKANTI, tensor_degree).layers[2] for tensor_degree in (1, 4))
    assert 2.0 * logits <= alone.transient_bytes.none <= 2.1 * logits
    assert 1.5 * logits <= alone.fused_transient_bytes.none <= 1.6 * logits
    assert 1.5 * logits / 4 <= split.transient_bytes.none <= 1.6 * logits / 4


def test_embedding_stash_is_its_dropout_mask() -> None:
    """The embedding keeps a mask of s·b·h bytes and the tokens."""
    embedding = _capture(KORTHIKANTI).layers[0]
    assert embedding.stash_bytes.none == 2048 * 2 * 2304 + 8 * 2048 * 2


def test_post_norm_block_keeps_as_much() -> None:
    """Moving the norms after the residual changes what is kept, not how much."""
    pre = _block(1, config=KORTHIKANTI).stash_bytes
    post = _block(1, config=replace(KORTHIKANTI, norm_position="post")).stash_bytes
    assert pre == post


def _counts(graph: OperatorGraph) -> Counter[str]:
    return Counter(op.collective.kind for op in graph.operators if op.collective is not None)


def test_one_device_does_not_communicate() -> None:
    """At tensor degree 1 there are no collectives, with and without sequence parallelism."""
    for split in (False, True):
        variant = _capture(KORTHIKANTI, split_sequence=split)
        assert not variant.sequence_parallel
        for layer in variant.layers:
            assert not _counts(layer.forward) + _counts(layer.backward)


@pytest.mark.parametrize("kv_heads", [24, 8])
def test_flash_scores_never_reach_memory(kv_heads: int) -> None:
    """Fused attention is one operator each way, and no tensor is as large as the scores."""
    config = replace(KORTHIKANTI, attention="flash", kv_heads=kv_heads)
    block = _block(1, config=config)
    scores = 2 * 2 * 24 * 2048**2
    for graph, products in ((block.forward, 2), (block.backward, 5)):
        assert [len(op.gemms) for op in graph.operators if len(op.gemms) > 1] == [products]
        assert max(graph.write_bytes) < scores
    assert block.transient_bytes.none < scores


def test_selective_recompute_is_the_attention_core() -> None:
    """Selective recompute runs the two products, the softmax and the dropout again."""
    core = _block(1, config=KORTHIKANTI).selective_recompute
    assert core.flops == 4 * 2 * 2048**2 * 2304
    kinds = [work.kind for op in core.operators for work in op.vector]
    assert kinds == ["softmax", "dropout"]
    assert len(core.operators) == 4


def test_no_dropout_no_operator() -> None:
    """With probability zero there is neither a dropout operator nor a mask."""
    config = replace(KORTHIKANTI, dropout=0.0, attention_dropout=0.0)
    block = _block(1, config=config)
    kinds = {work.kind for op in block.forward.operators for work in op.vector}
    assert "dropout" not in kinds
    assert "copy" in kinds  # the context's heads side by side
    assert block.stash_bytes.none < _block(1, config=KORTHIKANTI).stash_bytes.none


def test_instances_are_named_and_chained() -> None:
    """The layers are embedding, numbered blocks and head, each handing its output to the next."""
    variant = _capture(replace(KORTHIKANTI, layers=3))
    assert [name for name, _ in variant.nodes] == [
        "embedding",
        "block.0",
        "block.1",
        "block.2",
        "head",
    ]
    assert variant.counts == (1, 3, 1)
    stream = 2 * 2048 * 2 * 2304
    assert variant.edges == tuple((i, i + 1, stream) for i in range(4))


def vector_bytes(graph: OperatorGraph) -> int:
    """Return what operators without products move."""
    pairs = zip(graph.operators, graph.moved_bytes, strict=True)
    return sum(moved for one, moved in pairs if not one.gemms)


def test_a_framework_runs_norms_and_rotary_positions_kernel_by_kernel() -> None:
    """Bytes per element are those of PyTorch's own operators, counted by hand.

    A norm: cast (2 + 4), square (4 + 4), mean (4), scale (4 + 4), cast (4 + 2), weight (2 + 2); its
    statistics are per row. Rotary positions: cast (2 + 4), complex product (4 + 4), cast (4 + 2).
    Keys and values are copied for every query head; SwiGLU and residual sums are not fused.
    """
    config = TransformerConfig(
        layers=1,
        hidden=256,
        heads=8,
        kv_heads=2,
        feed_forward=1024,
        sequence=4096,
        vocabulary=512,
        **{**LLAMA, "kernels": "framework"},
    )
    block = _block(1, config=config)
    stream, keys, inner = (2 * 4096 * width for width in (256, 64, 1024))
    norm, rotary = 36 * stream, 20 * (stream + keys)
    shared = 2 * (2 * keys + 2 * stream)
    expected = 2 * norm + rotary + shared + 10 * inner + 2 * 6 * stream
    moved = vector_bytes(block.forward)
    assert moved == pytest.approx(expected, rel=0.02)  # statistics, weights and angles are extra
    fused = _block(1, config=replace(config, kernels="fused"))
    assert vector_bytes(fused.forward) < 0.5 * moved
    assert fused.parameters == block.parameters
    assert count_parameters(config) == count_parameters(replace(config, kernels="fused"))


def test_a_compiler_fuses_all_but_complex_numbers() -> None:
    """Bytes per element of Llama's code behind a compiler of single blocks, counted by hand.

    A norm reads and writes (2 + 2), a gate reads two and writes one (6); a cast (2 + 4), a complex
    product (4 + 4) and a cast back (4 + 2) turn queries and keys, and the last of a key is one
    kernel with its copies. Residual sums read two. Forward and backward run the same products
    whatever the kernels are.
    """
    shape = "llama:layers=1,hidden=256,heads=8,kv_heads=2,ffn=1024,sequence=4096,vocab=512"
    fused, block, eager = (
        _block(1, config=model_config(f"{shape},kernels={kernels}"))
        for kernels in ("fused", "compiled", "framework")
    )
    stream, keys, inner = (2 * 4096 * width for width in (256, 64, 1024))
    rotary = 20 * stream + 14 * keys + 4 * keys + 2 * stream
    expected = 2 * 4 * stream + rotary + 2 * keys + 2 * stream + 6 * inner + 2 * 6 * stream
    compiled = fuse(block.forward, "elementwise")
    assert vector_bytes(compiled) == pytest.approx(expected, rel=0.02)
    passes = [
        (each.forward, each.backward, each.selective_recompute) for each in (fused, block, eager)
    ]
    for graphs in zip(*passes, strict=True):
        products = [sorted(map(repr, _single_products(graph))) for graph in graphs]
        assert products[0] == products[1] == products[2]
        moved = [vector_bytes(fuse(graph, "elementwise")) for graph in graphs]
        assert moved[1] < moved[2]
    assert fused.parameters == block.parameters == eager.parameters
    assert fused.stash_bytes.selective == block.stash_bytes.selective
    backward = [operator.id for operator in fuse(block.backward, "elementwise").operators]
    assert "gated_activation_backward" in backward
    assert sum(name.startswith("rms_norm_weight_gradient") for name in backward) == 2


def _single_products(graph: OperatorGraph) -> list[Gemm]:
    """Return the products of a graph that are no attention."""
    return [op.gemms[0] for op in graph.operators if op.gemms and op.attention is None]


def test_heads_may_be_wider_together_than_the_residual_stream() -> None:
    """Projections have the heads' width on their inner side; the default is unchanged."""
    shape = "llama:layers=1,hidden=128,heads=4,ffn=256,sequence=64,vocab=256"
    plain, same, wider = map(model_config, (shape, f"{shape},head_dim=32", f"{shape},head_dim=64"))
    assert _block(1, config=same) == _block(1, config=plain)
    wide = _block(2, config=wider)
    assert 2 * wide.parameters == 4 * 128 * 4 * 64 + 3 * 128 * 256 + 2 * 2 * 128


def test_selective_recompute_runs_the_same_products_whatever_the_kernels() -> None:
    """What is kept depends on products and attention only."""
    shape = "llama:layers=1,hidden=128,heads=4,ffn=256,sequence=64,vocab=256"
    for tensor_degree in (1, 2):
        fused, plain = (
            _block(tensor_degree, config=model_config(model))
            for model in (shape, f"{shape},kernels=framework")
        )
        assert fused.stash_bytes.selective == plain.stash_bytes.selective
        assert fused.stash_bytes.none < plain.stash_bytes.none
        products = [
            [gemm for one in layer.selective_recompute.operators for gemm in one.gemms]
            for layer in (fused, plain)
        ]
        assert products[0] == products[1]
