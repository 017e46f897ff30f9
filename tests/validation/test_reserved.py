"""Memory that an allocator keeps: what is counted is what it does with a real step."""

from __future__ import annotations

import pytest

from phaze_opt.validation.reserved import kept_bytes
from phaze_opt.workload.zoo import load_workload
from tests.validation.caching_allocator import BATCH, TOKENS, WORDS, train

MODEL = (
    "llama:layers=4,hidden=4096,heads=32,kv_heads=8,ffn=14336,sequence=8192,vocab=128256,"
    "kernels=framework"
)


def test_the_allocator_keeps_what_is_counted() -> None:
    """Beyond the peak of what lives.

    One segment that grows keeps at least the logits, a segment per request no less than what is
    counted for eager runs.
    """
    (variant,) = load_workload(MODEL, microbatch=(BATCH,)).variants
    logits_bytes = 2 * BATCH * TOKENS * WORDS
    assert kept_bytes(variant, "compiled") == logits_bytes
    counted = kept_bytes(variant, "eager")
    grown, apart = (pool.reserved - pool.peak for pool in train(4))
    assert logits_bytes <= grown < counted < apart
    assert counted == pytest.approx((grown + apart) / 2, rel=0.15)


def test_what_lives_is_what_is_captured() -> None:
    """At the peak: what blocks keep, and what the loss keeps and works with."""
    (variant,) = load_workload(MODEL, microbatch=(BATCH,)).variants
    _, block, head = variant.layers
    captured = 4 * block.stash_bytes.selective
    captured += head.stash_bytes.selective + head.transient_bytes.selective
    pools = train(4)
    assert pools[0].peak == pools[1].peak == pytest.approx(captured, rel=0.02)
