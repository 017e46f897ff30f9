"""Laws of the part of a backward that only weight gradients need."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phaze_opt.evaluation import evaluate
from phaze_opt.training import ZERO_BUBBLE, Training
from phaze_opt.workload.fused_accumulation import with_fused_accumulation
from phaze_opt.workload.graph import OperatorGraph, WorkloadVariant
from phaze_opt.workload.weight_gradients import weight_gradient_operators, weight_operand_bytes
from phaze_opt.workload.zoo import load_workload

GPT = "gpt:layers=2,hidden=256,heads=8,sequence=128,vocab=1024"
LLAMA = "llama:layers=2,hidden=256,heads=8,kv_heads=4,ffn=512,sequence=128,vocab=1024"
MOE = (
    "moe:layers=2,hidden=64,heads=4,sequence=512,vocab=64,experts=8,top_k=2,expert_ffn=16,shared=1"
)


def _variant(model: str, tensor: int = 1) -> WorkloadVariant:
    return load_workload(model, tensor_parallel=(tensor,)).variants[0]


def _backward(model: str, name: str = "block") -> OperatorGraph:
    (layer,) = [layer for layer in _variant(model).layers if layer.name == name]
    return layer.backward


@pytest.mark.parametrize("model", [GPT, LLAMA, MOE])
@pytest.mark.parametrize("tensor", [1, 2])
def test_half_of_the_linear_products_make_weight_gradients(model: str, tensor: int) -> None:
    """Every linear layer has a product for each gradient, of as many FLOPs; attention has none."""
    for layer in _variant(model, tensor).layers:
        only = weight_gradient_operators(layer.backward)
        assert len(only) == len(layer.backward.operators)
        linear = [
            (operator.flops, is_weight)
            for operator, is_weight in zip(layer.backward.operators, only, strict=True)
            if len(operator.gemms) == 1
        ]
        weight = sum(flops for flops, is_weight in linear if is_weight)
        fused = [own for own in layer.forward.operators if len(own.gemms) > 1]
        if fused or layer.name == "head":
            assert 2 * weight == sum(flops for flops, _ in linear)
        written = {
            writer
            for tensor_of in layer.backward.tensors
            if tensor_of.kind == "weight_gradient"
            for writer, _ in tensor_of.writers
        }
        for index, is_weight in enumerate(only):
            if layer.backward.operators[index].gemms:
                assert is_weight == (index in written)


def test_what_stays_is_what_the_paper_counts() -> None:
    """32 s·b·h bytes of a GPT block: inputs of products 14, gradients of their outputs 18."""
    for attention in ("flash", "eager"):
        backward = _backward(f"{GPT},attention={attention}")
        assert weight_operand_bytes(backward) == 32 * 128 * 256


def test_nothing_that_others_wait_for_is_put_off() -> None:
    """No other operator reads what these write, and nothing but gradients of weights comes out."""
    for model in (GPT, LLAMA, MOE):
        for layer in _variant(model).layers:
            only = weight_gradient_operators(layer.backward)
            for tensor in layer.backward.tensors:
                if any(only[writer] for writer, _ in tensor.writers):
                    assert all(only[read.operator] for read in tensor.readers)
                    assert tensor.kind == "weight_gradient" or not tensor.outlives


def test_products_that_add_gradients_up_are_the_same() -> None:
    """Accumulators are no part of a microbatch."""
    plain = _variant(GPT)
    training = Training(8, optimizer="adam", fused_accumulation=True)
    for before, after in zip(
        plain.layers, with_fused_accumulation(plain, training).layers, strict=True
    ):
        for function in (weight_gradient_operators, weight_operand_bytes):
            assert function(before.backward) == function(after.backward)


def test_a_file_that_does_not_say_puts_nothing_off() -> None:
    """Of an older program, whose tensors have no kinds."""
    backward = _backward(GPT)
    tensors = tuple([replace(tensor, kind="unknown") for tensor in backward.tensors])
    unknown = OperatorGraph(backward.operators, tensors)
    assert not any(weight_gradient_operators(unknown))
    assert weight_operand_bytes(unknown) == 0


@pytest.mark.parametrize("schedule", ZERO_BUBBLE)
@pytest.mark.parametrize("options", [{}, {"recompute": "full"}, {"zero": 1}])
def test_evaluations_are_split_and_never_slower(schedule: str, options: dict[str, object]) -> None:
    """Both parts are the backward; on one stage nothing changes, to the bit."""
    common = {"global_batch": 32, "microbatch": 2, "optimizer": "adam"} | options
    plain, split = (
        [
            evaluate(
                LLAMA,
                "h100",
                "dgx-h100",
                Training(pipeline_schedule=name, **common),  # type: ignore[arg-type]
                degrees,
                devices=4,
            )
            for degrees in ((1, 2, 1), (2, 2, 1))
        ]
        for name in ("1f1b", schedule)
    )
    assert split[0].time_per_batch_s == plain[0].time_per_batch_s
    assert split[1].time_per_batch_s is not None and plain[1].time_per_batch_s is not None
    assert split[1].time_per_batch_s < plain[1].time_per_batch_s
    assert split[1].layers == plain[1].layers
    assert split[1].placement is not None and plain[1].placement is not None
    assert plain[1].placement.order is None
    for stage, whole in zip(split[1].placement.stages, plain[1].placement.stages, strict=True):
        assert stage.work[0].backward_s == whole.work[0].backward_s
        assert 0.0 < stage.work[0].weight_gradient_s < stage.work[0].backward_s
        assert whole.work[0].weight_gradient_s == 0.0
