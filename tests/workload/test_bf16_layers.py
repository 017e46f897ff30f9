"""Layers at both ends of a model that stay in 16 bits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.errors import InputError
from phaze_opt.evaluation import evaluate
from phaze_opt.passes.graphs import graphs_of, precisions_of
from phaze_opt.passes.layers import LayerEvaluation
from phaze_opt.training import Training
from phaze_opt.workload.bf16_layers import with_bf16_layers
from phaze_opt.workload.graph import WorkloadVariant
from phaze_opt.workload.zoo import load_workload

LAYERS = 4
LLAMA = f"llama:layers={LAYERS},hidden=512,heads=8,kv_heads=4,ffn=1024,sequence=256,vocab=2048"
MOE = (
    "moe:layers=3,hidden=512,heads=8,sequence=256,vocab=2048,experts=8,top_k=2,expert_ffn=384,"
    "ffn=1024,dense_layers=1"
)
ends = st.integers(0, 2)


def _variant(model: str = LLAMA) -> WorkloadVariant:
    return load_workload(model).variants[0]


def _precisions(variant: WorkloadVariant, training: Training) -> list[str]:
    """Return in what linear layers multiply, layer by layer."""
    return [precisions_of(variant.layers[kind], training)[0] for kind in variant.kinds]


def _evaluated(**options: Any) -> tuple[float, tuple[LayerEvaluation, ...]]:
    """Train on one device."""
    training = Training(4, optimizer="adam", **options)
    found = evaluate(LLAMA, "b200", "dgx-b200", training, (1, 1, 1), devices=1)
    assert found.time_per_batch_s is not None
    return found.time_per_batch_s, found.layers


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([LLAMA, MOE]), ends, ends)
def test_layers_at_both_ends_stay_in_sixteen_bits(model: str, start: int, end: int) -> None:
    """As many as are stated, and no others; embeddings and the layer with the loss do not count."""
    variant = _variant(model)
    training = Training(
        8, precision="nvfp4", bf16_layers_at_start=start, bf16_layers_at_end=min(end, 1)
    )
    end = training.bf16_layers_at_end
    changed = with_bf16_layers(variant, training)
    blocks = len(variant.nodes) - 2
    wide = ["bf16"] * start, ["nvfp4"] * (blocks - start - end), ["bf16"] * end
    by_layer = _precisions(changed, training)
    # Embeddings have no linear layers, whatever is said of them.
    assert by_layer[1:] == [*wide[0], *wide[1], *wide[2], "bf16"]
    assert changed.names == variant.names and changed.edges == variant.edges
    assert all(changed.counts)
    for old, new in zip(variant.kinds, changed.kinds, strict=True):
        own, marked = variant.layers[old], changed.layers[new]
        assert marked.forward == own.forward and marked.stash_bytes == own.stash_bytes
        if marked.in_bf16:
            plain = graphs_of(own, Training(8))
            assert graphs_of(marked, training) == plain


def test_nothing_changes_where_none_is_stated_or_all_layers_are_wide() -> None:
    """The same object, so that results are the same to the bit."""
    variant = _variant()
    assert with_bf16_layers(variant, Training(8, precision="fp8")) is variant
    assert with_bf16_layers(variant, Training(8, bf16_layers_at_end=2)) is variant


def test_all_layers_in_bf16_run_as_in_bf16() -> None:
    """Passes and stash of every layer are those of a run in bf16; copies of weights are not."""
    every_s, every = _evaluated(precision="fp8", bf16_layers_at_end=LAYERS)
    wide_s, wide = _evaluated()
    for own, other in zip(every, wide, strict=True):
        for name in ("forward_s", "backward_s", "stash_bytes", "parameters", "count"):
            assert getattr(own, name) == getattr(other, name)
    assert every_s > wide_s  # weights are cast as if layers multiplied in fp8
    assert [each.name for each in every] == ["embedding", "block in bf16", "head"]


@settings(max_examples=4, deadline=None)
@given(st.integers(1, LAYERS))
def test_each_layer_in_bf16_costs_the_same(count: int) -> None:
    """On one device a batch takes longer by the difference of the layers' passes."""
    narrow_s, narrow = _evaluated(precision="nvfp4")
    mixed_s, _ = _evaluated(precision="nvfp4", bf16_layers_at_start=count)
    _, wide = _evaluated()
    own, other = ({each.name: each for each in layers}["block"] for layers in (narrow, wide))
    more_s = other.forward_s + other.backward_s - own.forward_s - own.backward_s
    assert mixed_s - narrow_s == pytest.approx(4 * count * more_s, rel=1e-6)


def test_attention_of_such_layers_is_in_sixteen_bits_too() -> None:
    """A layer outside the recipe is so as a whole."""
    training = Training(8, attention_precision="fp8", bf16_layers_at_start=1)
    changed = with_bf16_layers(_variant(), training)
    kinds = [precisions_of(changed.layers[kind], training)[1] for kind in changed.kinds[1:-1]]
    assert kinds == ["bf16"] + ["fp8"] * (LAYERS - 1)


def test_more_layers_than_there_are_are_refused() -> None:
    """The sentence says how many there are; a negative number is refused at once."""
    training = Training(8, precision="fp8", bf16_layers_at_start=3, bf16_layers_at_end=2)
    with pytest.raises(InputError, match="has 4 layers"):
        with_bf16_layers(_variant(), training)
    with pytest.raises(InputError, match="at least 0"):
        Training(8, bf16_layers_at_end=-1)
