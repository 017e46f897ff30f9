"""Attention to the latest and to compressed tokens, and residual streams (DeepSeek-V4)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import phaze_opt as po
from phaze_opt.errors import InputError
from phaze_opt.workload.capture.transformer import count_parameters
from phaze_opt.workload.compressed_attention import CompressedAttention
from phaze_opt.workload.config import LLAMA, TransformerConfig
from phaze_opt.workload.experts import Experts
from phaze_opt.workload.graph import Layer, Operator
from phaze_opt.workload.recompute_parts import with_parts_run_again
from phaze_opt.workload.sparse_attention import Indexer
from phaze_opt.workload.summary import collective_bytes
from phaze_opt.workload.workload_file import read_workload, write_workload
from phaze_opt.workload.zoo import load_workload, model_config
from tests.workload.blocks import captured_blocks, captured_whole
from tests.workload.test_huggingface import _write

TOKENS, HIDDEN, HEADS, SIZE, RANK, STREAMS = 64, 32, 4, 16, 24, 3
SHAPE = CompressedAttention((0, 4, 16, 4), 4, Indexer(2, 8, 5), 12, RANK, 4, 2, 20, STREAMS)
CONFIG = TransformerConfig(
    layers=4, hidden=HIDDEN, heads=HEADS, kv_heads=1, head_elements=SIZE, sequence=TOKENS,
    vocabulary=96, experts=Experts(8, 2, 16, shared=16, scores="sigmoid"), compressed=SHAPE,
    **LLAMA,
)  # fmt: skip


def _layers(config: TransformerConfig = CONFIG) -> dict[str, Layer]:
    return {layer.name: layer for layer in captured_whole(config).layers}


RATIO = {"window_block": 0, "sparse_block": 4, "compressed_block_16": 16}


def _linear(ratio: int) -> tuple[int, int]:
    """Return multiply-accumulates per token of linear layers, and those of the indexer's."""
    indexer, experts = SHAPE.indexer, CONFIG.experts
    assert experts
    attention = HIDDEN * RANK + RANK * HEADS * SIZE + HIDDEN * SIZE
    attention += HEADS * SIZE * SHAPE.output_rank + SHAPE.groups * SHAPE.output_rank * HIDDEN
    if ratio:
        attention += 2 * HIDDEN * SIZE * (2 if ratio == 4 else 1)
    network = HIDDEN * experts.count + 3 * HIDDEN * 16 * (experts.top_k + 1)
    streams = 2 * STREAMS * HIDDEN * STREAMS * (STREAMS + 2)
    own = RANK * indexer.heads * indexer.width + HIDDEN * indexer.heads
    own += 2 * HIDDEN * 2 * indexer.width
    return attention + network + streams, own if ratio == 4 else 0


@pytest.mark.parametrize("name", RATIO)
def test_flops_are_the_closed_form(name: str) -> None:
    """The latest tokens and the entries that a query sees, an indexer's scores, linear layers."""
    ratio, block = RATIO[name], _layers()[name]
    entries = TOKENS // ratio if ratio else 0
    chosen = min(SHAPE.indexer.top_k, entries)
    seen = SHAPE.window + (chosen if ratio == 4 else entries)
    linear, own = _linear(ratio)
    index = SHAPE.indexer.heads * SHAPE.indexer.width if ratio == 4 else 0
    core = HEADS * SIZE
    forward = linear + own + entries * index + 2 * seen * core
    assert block.forward.flops == 2 * 2 * TOKENS * forward
    learns = chosen * (core + 3 * index) if index else 0
    backward = 2 * linear + own + 5 * seen * core + learns
    assert block.backward.flops == 2 * 2 * TOKENS * backward


def test_parameters_are_those_of_the_layers() -> None:
    """The total is that of the captured layers; a prediction layer has a block without entries."""
    for config in (CONFIG, replace(CONFIG, prediction_layers=1)):
        variant = captured_whole(config)
        layers = [variant.layers[index] for _, index in variant.nodes]
        tied = [layer.tied_parameters for layer in layers]
        total = sum(layer.parameters for layer in layers) - sum(tied) + max(tied)
        assert total == count_parameters(config)
    window = _layers()["window_block"].parameters
    more = count_parameters(config) - count_parameters(CONFIG)
    join = 2 * HIDDEN**2 + 3 * HIDDEN + STREAMS * (STREAMS * HIDDEN + 1) + 1
    assert more == window + join


@pytest.mark.parametrize("split", [False, True])
def test_shards_add_up(split: bool) -> None:
    """Shares of the FLOPs are the model's once; streams and entries are whole on every device."""
    whole, shard = captured_blocks(CONFIG), captured_blocks(CONFIG, 2, split=split)
    assert whole.keys() == shard.keys()
    for name in RATIO:
        ours, theirs = shard[name], whole[name]
        for graph in ("forward", "backward"):
            assert 2 * getattr(ours, graph).flops == getattr(theirs, graph).flops, (name, graph)
        sent = collective_bytes(ours.forward)
        assert sent.keys() == ({"all_gather", "reduce_scatter"} if split else {"all_reduce"})
        assert ours.output_bytes * (2 if split else 1) == theirs.output_bytes
        heads = HEADS + RANK * HEADS * SIZE + HEADS * SIZE * SHAPE.output_rank
        shared = SHAPE.groups * SHAPE.output_rank * HIDDEN + 3 * HIDDEN * 16 * 9
        assert theirs.parameters - ours.parameters == (heads + shared) // 2


def test_blocks_hand_over_all_streams() -> None:
    """Embedding and blocks give every stream; the head makes one of them."""
    layers = _layers()
    stream = 2 * 2 * TOKENS * HIDDEN
    for name in ("embedding", *RATIO):
        assert layers[name].output_bytes == STREAMS * stream
    assert _layers(replace(CONFIG, prediction_layers=1))["prediction_layer"].output_bytes == stream


def test_deepseek_v4_flash_has_those_of_its_release(tmp_path: Path) -> None:
    """Counted tensor by tensor of the released weights, without scales and tables."""
    ratios = [0, 0, *[4, 128] * 20, 4, 0]
    path = _write(tmp_path, model_type="deepseek_v4", compress_ratios=ratios)
    config = model_config(path, 4096)
    hidden, heads = 4096, 64 * 512
    each = 1024 * hidden + heads * 1024 + 512 * hidden + 8192 * hidden + hidden * 8192
    each += 64 + 512 + 1024 + 2 * hidden + 2 * (24 * 4 * hidden + 24 + 3)
    each += 256 * hidden + 257 * 3 * 2048 * hidden
    sparse = 4 * 1024 + 2 * 1024 * hidden + 512
    sparse += 4 * 256 + 128 + 2 * 256 * hidden + 64 * hidden + 8192 * 1024
    compressed = 128 * 512 + 2 * 512 * hidden + 512
    end = 4 * 4 * hidden + 4 + 1 + hidden
    total = 2 * 129280 * hidden + end + 43 * each + 21 * sparse + 20 * compressed
    assert count_parameters(config) == total == 284_332_230_231
    assert model_config("deepseek-v4-flash") == config
    ahead = model_config(f"{path}+mtp", 4096)
    assert count_parameters(ahead) - total == each + 2 * hidden**2 + 2 * hidden + end


def test_layer_types_and_ratios_say_the_same(tmp_path: Path) -> None:
    """Lists of either kind, or the default of the class: entries of 128, then both in turn."""
    small = {"model_type": "deepseek_v4", "num_hidden_layers": 4, "max_position_embeddings": 256}
    names = {0: "sliding_attention", 4: "compressed_sparse_attention"}
    names |= {128: "heavily_compressed_attention"}
    for ratios in ([0, 4, 128, 4], [128, 128, 128, 4]):
        by_ratio = model_config(_write(tmp_path, **small, compress_ratios=ratios))
        types = [names[ratio] for ratio in ratios]
        assert by_ratio == model_config(_write(tmp_path, **small, layer_types=types))
        assert by_ratio.compressed and by_ratio.compressed.ratios == tuple(ratios)
    assert model_config(_write(tmp_path, **small)) == by_ratio
    with pytest.raises(InputError, match="only 0, 4 and 128 for 4 layers"):
        model_config(_write(tmp_path, **small, compress_ratios=[0, 8, 4, 4]))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"experts": Experts(8, 2, 16, dense_layers=(0,)), "feed_forward": 64}, "in all blocks"),
        ({"kv_heads": 0}, "one key head"),
        ({"windows": (8,) * 4}, "no other kind of attention"),
        ({"layers": 3}, "has 4 ratios and 2 groups, but there are 3 layers"),
        ({"sequence": 60}, "must be a multiple of the 16 tokens"),
        ({"compressed": replace(SHAPE, groups=3)}, "groups must divide the 4 heads"),
        ({"attention": "eager"}, "fused attention"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], words: str) -> None:
    """One sentence says what does not go together."""
    with pytest.raises(InputError, match=words):
        replace(CONFIG, **fields)


def test_it_trains_and_is_a_file(tmp_path: Path) -> None:
    """Written, read and evaluated; its sequences are not shared out among devices."""
    options = {"compress_ratios": [0, 4, 128, 4], "num_hidden_layers": 4, "hidden_size": 256}
    options |= {"num_attention_heads": 8, "head_dim": 64, "vocab_size": 512, "q_lora_rank": 64}
    options |= {"o_lora_rank": 32, "n_routed_experts": 8, "num_experts_per_tok": 2}
    options |= {"moe_intermediate_size": 128, "max_position_embeddings": 512}
    model = _write(tmp_path, model_type="deepseek_v4", **options)
    workload = load_workload(model, tensor_parallel=(1, 2))
    write_workload(workload, tmp_path / "captured.json")
    assert read_workload(tmp_path / "captured.json") == workload
    for more in ({}, {"precision": "mxfp8", "expert_parallel": 2}, {"recompute": "full"}):
        training = po.Training(8, optimizer="adam", zero=1, **more)
        found = po.evaluate(workload, "b200", "dgx-b200", training, (1, 4, 1), devices=4)
        assert found.feasible and found.mfu and 0 < found.mfu < 1
    with pytest.raises(InputError, match="or to compressed ones"):
        load_workload(model, context_parallel=(2,))


def test_up_projections_are_those_of_queries_and_keys() -> None:
    """What gives entries, and what the indexer reads, does not run again with them."""
    names = {
        name: [each.id for each in _again(layer, "mla_up_proj") if each.gemms]
        for name, layer in _layers().items()
        if name in RATIO
    }
    assert names == {name: ["mm_1", "mm_2"] for name in RATIO}


def _again(layer: Layer, part: str) -> list[Operator]:
    """Return the operators of a part of a layer that run again."""
    variant = replace(captured_whole(CONFIG), layers=(layer,), nodes=((layer.name, 0),), edges=())
    training = po.Training(8, recompute="selective", recompute_parts=part)
    (changed,) = with_parts_run_again([variant], training)
    return list(changed.layers[0].selective_recompute.operators)
