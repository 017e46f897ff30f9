"""One scale per tensor in fp8: whence it comes, and in how many copies what it scales is held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.errors import InputError
from phaze_opt.evaluation import Evaluation, evaluate
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.buildable import training_on
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.passes.bare_layers import narrow_weights
from phaze_opt.passes.graphs import graphs_of
from phaze_opt.precision import RECIPES, PrecisionName
from phaze_opt.training import Training
from phaze_opt.workload.fusion import fuse
from phaze_opt.workload.graph import Layer, OperatorGraph
from phaze_opt.workload.recipes import stash_change_bytes
from phaze_opt.workload.zoo import load_workload

LLAMA = (
    "llama:layers=2,hidden=512,heads=8,kv_heads=4,ffn=1024,sequence=256,vocab=2048,attention=flash"
)
BLACKWELL = ("b200", "b300", "gb200", "gb300")
recipes = st.sampled_from(sorted(set(RECIPES) - {"bf16"}))


def _block(tensor: int = 1) -> Layer:
    variants = load_workload(LLAMA, tensor_parallel=(tensor,), sequence_parallel=tensor > 1)
    (block,) = (each for each in variants.variants[0].layers if each.name == "block")
    return block


def _graphs(tensor: int = 1, **options: Any) -> Mapping[str, OperatorGraph]:
    return graphs_of(_block(tensor), Training(8, sequence_parallel=tensor > 1, **options))


def _names(graph: OperatorGraph, part: str) -> list[str]:
    return [each.id for each in graph.operators if part in each.id]


def _evaluated(chip: str | Accelerator, **options: Any) -> Evaluation:
    training = Training(4, optimizer="adam", precision="fp8", **options)
    return evaluate(LLAMA, chip, "dgx-h100", training, (1, 1, 1), devices=1)


@pytest.mark.parametrize("tensor", [1, 2])
def test_scales_of_steps_before_need_no_search(tensor: int) -> None:
    """No kernel looks for the largest element, no group agrees on it, and a cast merges again."""
    current, delayed = (
        _graphs(tensor, precision="fp8", fp8_scaling=scaling) for scaling in ("current", "delayed")
    )
    for name in ("forward", "backward"):
        searched, known = current[name], delayed[name]
        assert _names(searched, "largest") and not _names(known, "largest")
        assert len(_names(searched, "quantise")) == len(_names(known, "quantise"))
        assert [op for op in searched.operators if "largest" not in op.id] == list(known.operators)
        assert sum(known.read_bytes) < sum(searched.read_bytes)
        assert known.write_bytes and sum(known.write_bytes) < sum(searched.write_bytes)
        merged = [fuse(graph, "epilogue") for graph in (searched, known)]
        assert len(merged[1].operators) < len(merged[0].operators)


def test_scales_of_steps_before_are_of_fp8() -> None:
    """Of attention too; beside layers in bf16 and other recipes they are refused."""
    Training(8, attention_precision="fp8", fp8_scaling="delayed")
    for options in ({}, {"precision": "mxfp8"}, {"precision": "int8"}):
        with pytest.raises(InputError, match="one of them must be fp8"):
            Training(8, fp8_scaling="delayed", **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="current scaling only"):
        Training(8, precision="fp8", fp8_scaling="delayed", bf16_layers_at_start=1)


@settings(max_examples=12, deadline=None)
@given(recipes, st.sampled_from([1, 2]))
def test_one_copy_serves_rows_and_columns(precision: PrecisionName, tensor: int) -> None:
    """In fp8 casts write one copy of a byte; every other recipe keeps both to the bit."""
    both, one = (
        _graphs(tensor, precision=precision, fp8_transposes=copies) for copies in (True, False)
    )
    if precision != "fp8":
        assert both == one
        return
    block = _block(tensor)
    for name, graph in one.items():
        casts = {i for i, each in enumerate(graph.operators) if "quantise" in each.id}
        written = [sum(i in casts for i, _ in tensor.writers) for tensor in graph.tensors]
        assert sum(written) == len(casts)  # each writes one tensor
        assert not _names(graph, "reorder")
        assert sum(graph.write_bytes) < sum(both[name].write_bytes)
        assert graph.flops == both[name].flops
        kept = [each.elements for each in graph.tensors if each.outlives and each.dtype == "uint8"]
        stored = [t.elements for t in both[name].tensors if t.outlives and t.dtype == "uint8"]
        assert sorted(kept) == sorted(stored)
    assert stash_change_bytes(block, precision, "none") < 0


def test_weights_have_one_copy_where_the_chip_reads_every_layout() -> None:
    """Two bytes of a weight in bf16 with one or two of its copies; casts write as many."""
    two = Training(8, precision="fp8", optimizer="adam", zero=1)
    one = replace(two, fp8_transposes=False)
    assert (two.state.copy_bytes, one.state.copy_bytes) == (2, 1)
    assert (two.cast_bytes, one.cast_bytes) == (4, 3)
    both = replace(two, fp8_primary_weights=True, fp8_param_gather=True)
    single = replace(both, fp8_transposes=False)
    assert (both.state.weight_bytes, single.state.weight_bytes) == (2, 1)
    assert (both.cast_bytes, single.cast_bytes) == (2, 0)  # nothing is transposed
    assert replace(one, precision="mxfp8").state == replace(two, precision="mxfp8").state
    shared = replace(one, zero=3, fp8_param_gather=True)
    assert shared.copy_bytes == (0, 0)


@pytest.mark.parametrize("chip", [*BLACKWELL, "h100", "h200", "rtx-pro-6000"])
def test_chips_say_what_they_need(chip: str) -> None:
    """Blackwell's data-centre parts read every layout, others need transposed copies."""
    training = Training(8, precision="fp8")
    accelerator = load_accelerator(chip)
    assert accelerator.fp8_column_copies is (chip not in BLACKWELL)
    assert training_on(accelerator, training).narrow_copies == (1 if chip in BLACKWELL else 2)
    assert training_on(accelerator, Training(8)) == Training(8)
    assert training_on(accelerator, replace(training, fp8_transposes=True)).narrow_copies == 2
    if chip not in BLACKWELL:
        with pytest.raises(InputError, match="transposed copies only"):
            training_on(accelerator, replace(training, fp8_transposes=False))


def test_a_batch_takes_no_longer_with_one_copy_or_known_scales() -> None:
    """On a chip with the layouts of another the time and the memory are those of its copies."""
    own = load_accelerator("b200")
    with_copies = replace(own, fp8_column_copies=True)
    one, stated, two = (
        _evaluated(own),
        _evaluated(own, fp8_transposes=True),
        _evaluated(with_copies),
    )
    assert stated == two
    for fast, slow in ((one, two), (_evaluated(own, fp8_scaling="delayed"), one)):
        assert fast.time_per_batch_s is not None and slow.time_per_batch_s is not None
        assert fast.time_per_batch_s < slow.time_per_batch_s
    assert one.placement is not None and two.placement is not None
    held, more = (each.stages[0].memory_bytes.parameters for each in (one.placement, two.placement))
    # The other copy of all that is in the recipe: matrices of both blocks.
    block = _block()
    assert more - held == 2 * narrow_weights(block, Training(4, precision="fp8"))
    assert 0.99 * block.parameters < narrow_weights(block, Training(4, precision="fp8"))
