"""What each recompute keeps, and what runs again."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from phaze_opt.workload.capture.transformer import capture_transformer
from phaze_opt.workload.config import TransformerConfig
from phaze_opt.workload.graph import Layer
from phaze_opt.workload.zoo import model_config
from tests.workload.blocks import captured_blocks

LLAMA = model_config("llama3-8b")
GPT = replace(model_config("gpt2-xl"), attention="flash", dropout=0.0, attention_dropout=0.0)


@functools.cache
def _block(
    config: TransformerConfig, tensor_degree: int = 1, *, split_sequence: bool = False
) -> Layer:
    """Capture a block at microbatch 1."""
    return captured_blocks(config, tensor_degree, split=split_sequence, samples=1)["block"]


@pytest.mark.parametrize("config", [LLAMA, GPT])
@pytest.mark.parametrize("tensor_degree", [1, 4])
def test_more_recompute_keeps_less_and_runs_more(
    config: TransformerConfig, tensor_degree: int
) -> None:
    """From none over selective to full the stash falls and the working set grows."""
    if config.heads % tensor_degree:
        tensor_degree = 5
    block = _block(config, tensor_degree)
    stash = block.stash_bytes
    assert stash.none > stash.selective > stash.full > 0
    assert 0 <= block.selective_recompute.flops < block.forward.flops
    for held in (block.transient_bytes, block.fused_transient_bytes):
        assert held.none <= held.selective <= held.full
        assert held.full <= held.none + stash.none
    assert block.fused_transient_bytes.full <= block.transient_bytes.full


def test_per_operator_policy_by_hand() -> None:
    """Llama keeps its input, query, value, attention, gate and feed-forward result; see torchtitan.

    The key, attention's projection and the second feed-forward product are computed again, and so
    is all that lies between.
    """
    block, tokens = _block(LLAMA), LLAMA.sequence
    hidden, key, inner = 4096, 1024, 14336
    elements = hidden + hidden + key + hidden + inner + hidden
    log_sums = 4 * LLAMA.heads
    assert block.stash_bytes.selective == tokens * (2 * elements + log_sums)
    again = [op for op in block.selective_recompute.operators if op.gemms]
    assert [op.gemms[0].n for op in again] == [key, hidden, inner]
    kinds = [work.kind for op in block.selective_recompute.operators for work in op.vector]
    assert kinds == ["rms_norm", "rotary", "rotary", "add", "rms_norm", "silu", "multiply"]


def test_reduced_results_are_not_communicated_again() -> None:
    """Under sequence parallelism the reduce-scatters' results are kept, the gathers run again."""
    block = _block(LLAMA, 4, split_sequence=True)
    kinds = [op.collective.kind for op in block.selective_recompute.operators if op.collective]
    assert set(kinds) == {"all_gather"}


def test_without_attention_selective_is_none() -> None:
    """The head has no attention: selective recompute changes nothing."""
    variant = capture_transformer(LLAMA, tensor_parallel=1, microbatch=1, sequence_parallel=False)
    head = variant.layers[2]
    assert head.stash_bytes.selective == head.stash_bytes.none
    assert head.transient_bytes.selective == head.transient_bytes.none
    assert head.selective_recompute.operators == ()
