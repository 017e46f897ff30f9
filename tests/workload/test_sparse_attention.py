"""Latent attention to keys that an indexer chooses (DeepSeek-V3.2)."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import phaze_opt as po
from phaze_opt.errors import InputError
from phaze_opt.estimator.chips import Chips
from phaze_opt.estimator.estimate import estimate_table
from phaze_opt.estimator.rooflines import roofline_seconds
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.workload.capture.transformer import count_parameters
from phaze_opt.workload.config import LLAMA, TransformerConfig
from phaze_opt.workload.experts import LatentAttention
from phaze_opt.workload.graph import Layer, Operator, OperatorGraph
from phaze_opt.workload.sparse_attention import Indexer
from phaze_opt.workload.summary import collective_bytes
from phaze_opt.workload.workload_file import read_workload, write_workload
from phaze_opt.workload.zoo import load_workload, model_config
from tests.estimator.test_least_seconds import CLUSTER
from tests.strategies import any_accelerators
from tests.workload.blocks import blocks_of, captured_blocks, captured_variant
from tests.workload.test_huggingface import _write

BASE = (
    "moe:layers=2,hidden=64,heads=4,sequence=32,vocab=96,experts=8,top_k=2,expert_ffn=16,kv_rank=24,"
    "q_rank=40,nope_dim=16,rope_dim=8,v_dim=12"
)
SPARSE = f"{BASE},index_heads=8,index_dim=16,index_keys=10"


def _block(config: TransformerConfig, tensor_degree: int = 1, *, split: bool = False) -> Layer:
    return captured_blocks(config, tensor_degree, split=split)["block"]


def _kernel(graph: OperatorGraph, name: str) -> Operator:
    (found,) = (each for each in graph.operators if each.id == name)
    return found


sizes = st.builds(
    lambda tokens, heads, index_heads, width, keys, rank, value: TransformerConfig(
        layers=1,
        hidden=64,
        heads=heads,
        sequence=tokens,
        vocabulary=96,
        feed_forward=128,
        latent=LatentAttention(rank, 16, 8, value, query_rank=40),
        indexer=Indexer(index_heads, 2 * width, keys),
        **LLAMA,
    ),
    st.integers(1, 40),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 4),
    st.integers(4, 9),
    st.integers(1, 50),
    st.integers(1, 30),
    st.integers(1, 20),
)


@settings(max_examples=10, deadline=None)
@given(sizes)
def test_flops_are_the_closed_form(config: TransformerConfig) -> None:
    """All pairs for the indexer, the chosen ones for the attention, and the linear layers."""
    latent, indexer, hidden = config.latent, config.indexer, config.hidden
    assert latent and indexer
    tokens, heads = config.sequence, config.heads
    keys, rank = min(indexer.top_k, tokens), latent.kv_rank
    key = rank + latent.rotary
    queries = latent.query_rank * (hidden + heads * latent.width)
    joint = hidden * key + heads * rank * (latent.plain + latent.value)
    own = latent.query_rank * indexer.heads * indexer.width
    own += hidden * (indexer.width + indexer.heads)
    rest = heads * latent.value * hidden + 3 * hidden * config.inner
    index, core = indexer.heads * indexer.width, heads * (key + rank)
    block = blocks_of(config)["block"]
    forward = 2 * tokens * (queries + joint + own + rest + tokens * index + keys * core)
    assert block.forward.flops == 2 * forward
    chosen = heads * (3 * key + 2 * rank) + heads * key + 3 * index
    backward = 2 * tokens * (2 * (queries + joint + rest) + own + keys * chosen)
    assert block.backward.flops == 2 * backward
    # A causal mask leaves half of all pairs, and the keys up to the query's own position.
    assert _kernel(block.forward, "index_keys").masked_flops == pytest.approx(
        2 * 2 * (tokens * tokens - tokens * (tokens + 1) // 2) * index
    )
    seen = sum(min(keys, position + 1) for position in range(tokens))
    assert _kernel(block.forward, "sparse_attention").masked_flops == pytest.approx(
        2 * 2 * (tokens * keys - seen) * core
    )


def test_parameters_are_those_of_the_indexer_more() -> None:
    """What makes keys and values is the same weight, applied elsewhere."""
    more = count_parameters(model_config(SPARSE)) - count_parameters(model_config(BASE))
    assert more == 2 * (40 * 8 * 16 + 64 * 16 + 2 * 16 + 64 * 8)


def test_deepseek_v32_has_those_of_its_release(tmp_path: Path) -> None:
    """61 indexers beside the 671 billion of DeepSeek-V3, whose other keys it has."""
    config = model_config(_write(tmp_path, model_type="deepseek_v32", index_topk=2048))
    assert config.indexer == Indexer(64, 128, 2048)
    each = 1536 * 64 * 128 + 7168 * 128 + 2 * 128 + 7168 * 64
    assert count_parameters(config) == 671_026_404_352 + 61 * each == 671_877_929_216
    plain = model_config(_write(tmp_path, model_type="deepseek_v3"))
    assert replace(plain, indexer=config.indexer) == config
    ahead = model_config(f"{_write(tmp_path, model_type='deepseek_v32')}+mtp")
    assert count_parameters(ahead) - count_parameters(config) == 11_610_067_968 + each


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("degree", [2, 4])
def test_shards_add_up(degree: int, split: bool) -> None:
    """Shares of the FLOPs are the model's once; the indexer is whole on every device."""
    config = model_config(SPARSE)
    whole, shard = _block(config), _block(config, degree, split=split)
    for ours, theirs in ((shard.forward, whole.forward), (shard.backward, whole.backward)):
        assert degree * ours.flops == theirs.flops
    for name, graph in (("index_keys", "forward"), ("index_backward", "backward")):
        one = _kernel(getattr(shard, graph), name)
        assert one.flops == _kernel(getattr(whole, graph), name).flops
        assert degree * (one.flops - (one.surplus_flops or 0)) == one.flops
    # What the indexer learns from is summed over the group: fp32, of the chosen keys.
    sums = [
        op.collective.size_bytes
        for op in shard.backward.operators
        if op.collective and op.collective.kind == "all_reduce"
    ]
    assert (4 * 2 * 32 * 10) in sums
    if split:
        assert degree * shard.output_bytes == whole.output_bytes
        gathered = collective_bytes(shard.forward)["all_gather"]
        assert (
            gathered
            > collective_bytes(_block(model_config(BASE), degree, split=True).forward)["all_gather"]
        )


def test_nothing_reaches_the_inputs_of_an_indexer() -> None:
    """It has gradients of its weights only: its five linear and norm inputs get none."""
    block = _block(model_config(SPARSE))
    dense = _block(model_config(BASE))
    products = [len([op for op in b.backward.operators if op.gemms]) for b in (block, dense)]
    # Three weights more, two kernels of the indexer more; what makes keys and values is two
    # products per head instead of one, each with its two gradients.
    assert products[0] - products[1] == 3 + 2 + 2


def test_choices_are_kept_and_not_made_again() -> None:
    """Recompute runs neither the attention nor the indexer's scores again."""
    block = _block(model_config(SPARSE))
    stash = block.stash_bytes
    assert stash.none >= stash.selective >= stash.full > 0
    again = {op.id for op in block.selective_recompute.operators}
    assert not again & {"sparse_attention", "index_keys"}
    assert 0 < block.selective_recompute.flops < block.forward.flops


def _passes() -> Iterator[OperatorGraph]:
    for layer in captured_variant(model_config(SPARSE), 2, split=True).layers:
        yield from (layer.forward, layer.backward)


@given(chips=st.lists(any_accelerators, min_size=1, max_size=3))
@settings(max_examples=5, deadline=None)
def test_bounds_are_below_the_estimates(chips: list[Any]) -> None:
    """Rooflines hold for a core with one product, and for one with scores of its own."""
    some = [*chips, load_accelerator("h100")]
    for graph in _passes():
        least = roofline_seconds(graph, Chips(some), CLUSTER, 2)
        table = estimate_table(graph, some, CLUSTER, 2)
        for mode in (table.one_core, table.all_cores):
            for name, values in vars(least).items():
                assert (values <= getattr(mode, name) * (1.0 + 1e-12)).all(), name


def test_long_sequences_cost_less_than_all_keys(tmp_path: Path) -> None:
    """That is what it is for; short ones cost more, because of the indexer; a file holds it."""
    sizes = "layers=2,hidden=1024,heads=16,vocab=4096,experts=8,top_k=2,expert_ffn=512"
    latent = "kv_rank=512,q_rank=768,nope_dim=128,rope_dim=64,v_dim=128"
    index = "index_heads=16,index_dim=128,index_keys=1024"
    ratios = []
    for tokens in (2048, 32768):
        times = []
        for more in ("", f",{index}"):
            workload = load_workload(f"moe:{sizes},sequence={tokens},{latent}{more}")
            evaluation = po.evaluate(
                workload,
                po.load_accelerator("h200"),
                po.load_cluster("dgx-h100", devices=8),
                po.Training(global_batch=8, microbatch=1),
                placement=(1, 8, 1),
            )
            assert evaluation.feasible
            times.append(evaluation.time_per_batch_s or 0.0)
        ratios.append(times[1] / times[0])
    assert ratios[1] < 1.0 < ratios[0]
    path = tmp_path / "sparse.json"
    write_workload(workload, path)
    assert read_workload(path) == workload


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"latent": LatentAttention(8, 8, 8, 8), "attention": "eager"}, "needs latent attention"),
        ({}, "needs latent attention"),
        ({"latent": LatentAttention(8, 8, 8, 8), "attention_dropout": 0.1}, "without dropout"),
    ],
)
def test_contradictions_are_refused(change: dict[str, Any], words: str) -> None:
    """Fields that contradict each other are one sentence."""
    shape = {**LLAMA, "layers": 1, "hidden": 64, "heads": 4, "sequence": 8, "vocabulary": 9}
    with pytest.raises(InputError, match=words):
        TransformerConfig(**{**shape, "indexer": Indexer(2, 8, 4), **change})


def test_what_cannot_be_is_one_sentence() -> None:
    """Sizes of an indexer, keys that lack, and sequences that are shared among devices."""
    with pytest.raises(InputError, match="top_k of an indexer is 0, but it must be between 1"):
        Indexer(2, 8, 0)
    with pytest.raises(InputError, match="lacks index_dim, index_keys"):
        model_config(f"{BASE},index_heads=4")
    with pytest.raises(InputError, match="keys that an indexer chooses"):
        load_workload(SPARSE, context_parallel=(2,))
