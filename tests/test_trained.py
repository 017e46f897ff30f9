"""Runs of models of which not all is trained: frozen parts, and low-rank adapters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.errors import InputError
from phaze_opt.evaluation import Evaluation, evaluate
from phaze_opt.explanation.explain import explain
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.named_point import named_point
from phaze_opt.network.presets import load_cluster
from phaze_opt.placement.chain_bytes import chain_bytes, held_by_runs
from phaze_opt.placement.deep_stages import ChainSums
from phaze_opt.placement.memory import Shards, stage_memory
from phaze_opt.placement.placement_problem import Stage
from phaze_opt.point import bare_problem
from phaze_opt.spec.freezing import freeze
from phaze_opt.spec.space import Space
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.training import Training
from phaze_opt.workload.workload_file import write_workload
from phaze_opt.workload.zoo import load_workload

MODEL = "llama:layers=6,hidden=512,heads=8,kv_heads=4,ffn=1408,sequence=2048,vocab=8000"
BLOCK = 512 * (512 + 2 * 256) + 512 * 512 + 3 * 512 * 1408 + 2 * 512
PARTS = "embedding", "block.0", "block.*.feed_forward", "block.*.attention", "block.[123]", "head"
FROZEN = (("embedding",), PARTS[:2], PARTS[2:4], ("embedding", "block"), ("block.[0-3]", "head"))
RUN: dict[str, Any] = {"devices": 8}


TIED = "gpt:layers=6,hidden=64,heads=4,sequence=64,vocab=512"


def _tied(frozen: tuple[str, ...]) -> tuple[str, ...]:
    """Return patterns of the tied model, which freeze the words in both layers or in none."""
    if {"embedding", "head"} & {*frozen}:
        return (*frozen, "embedding.words", "head.vocabulary")
    return frozen


def _evaluated(placement: Any, options: dict[str, Any], **changes: Any) -> Evaluation:
    training = Training(16, **{"optimizer": "adam", **changes})
    return evaluate(MODEL, "h100", "dgx-h100", training, placement, **RUN, **options)


def _time_s(evaluation: Evaluation) -> float:
    assert evaluation.time_per_batch_s is not None
    return evaluation.time_per_batch_s


def _stages(evaluation: Evaluation) -> tuple[Stage, ...]:
    assert evaluation.placement is not None
    return evaluation.placement.stages


PLACEMENTS = ((1, 8, 1), (2, 4, 1), (4, 2, 1), (2, 2, 2), "solve")


@settings(max_examples=5, deadline=None)
@given(
    st.sampled_from(FROZEN),
    st.sampled_from(PLACEMENTS),
    st.sampled_from(["none", "selective", "full"]),
    st.sampled_from([0, 1, 2]),
    st.booleans(),
)
def test_freezing_is_never_slower_and_never_takes_more_memory(
    frozen: tuple[str, ...], placement: Any, recompute: Any, zero: int, fused: bool
) -> None:
    """On any stage; the optimizer steps less, and replicas send less."""
    options = {"recompute": recompute, "zero": zero, "fused_accumulation": fused}
    own = _evaluated(placement, {"frozen": frozen}, **options)
    whole = _evaluated(placement, {}, **options)
    assert _time_s(own) <= _time_s(whole) * (1.0 + 1e-9)
    if placement == "solve":
        return
    for stage, before in zip(_stages(own), _stages(whole), strict=True):
        assert stage.memory_bytes.total <= before.memory_bytes.total
        assert stage.optimizer_s <= before.optimizer_s
        for each, each_before in zip(stage.communication, before.communication, strict=True):
            assert each.sent_bytes <= each_before.sent_bytes
    if recompute == "none":
        assert sum(own.energy_by_level_j.values()) <= sum(whole.energy_by_level_j.values())


@pytest.mark.parametrize(("tensor", "zero"), [(1, 0), (2, 1)])
def test_what_a_device_holds_and_sends_by_hand(tensor: int, zero: int) -> None:
    """Weights of all, gradients and states of the adapters alone, which replicas synchronise."""
    data = 8 // tensor
    (stage,) = _stages(_evaluated((1, data, tensor), {"lora_rank": 8}, zero=zero))
    words = 2 * 8000 * 512 // tensor + 512
    norms = 6 * 2 * 512
    base = (6 * BLOCK - norms) // tensor + norms + words
    edges = (512 + 1024) + (512 + 512) + (512 + 2 * 1408) + (1408 + 512)
    adapters = 6 * 8 * edges // tensor
    held = stage.memory_bytes
    assert held.parameters == 2 * (base + adapters)
    assert held.gradients == 4 * adapters
    assert held.optimizer == -(-12 * adapters // (data if zero else 1))
    sent = {each.kind: each.sent_bytes for each in stage.communication}
    share = (data - 1) / data * 4 * adapters
    expected = share if zero else 2 * share
    assert sent["gradient_synchronisation"] == pytest.approx(expected, rel=1e-6)


def test_weights_that_are_frozen_are_held_as_the_recipe_says() -> None:
    """In fp8 alone, or in bf16 with copies of blocks by rows and by columns; ends in bf16."""
    model = {"lora_rank": 8, "lora_targets": ["linear_qkv"]}
    plain, primary, copies = (
        _stages(_evaluated((1, 8, 1), model, **options))[0].memory_bytes.parameters
        for options in (
            {},
            {"precision": "fp8", "fp8_primary_weights": True},
            {"precision": "fp8"},
        )
    )
    assert primary == plain
    assert copies == plain + 2 * 6 * (BLOCK - 2 * 512)  # norms have none


def test_no_gradient_goes_back_to_layers_before_what_is_trained() -> None:
    """Stages of frozen layers send activations on, and receive nothing back."""
    frozen = _evaluated((2, 4, 1), {"frozen": ["embedding", "block.[0-4]"]})
    whole = _evaluated((2, 4, 1), {})
    first, before = _stages(frozen)[0], _stages(whole)[0]
    assert set(first.layers) <= {"embedding", *(f"block.{i}" for i in range(5))}
    sent, sent_before = (each.communication[0].sent_bytes for each in (first, before))
    assert (sent, sent_before > 0.0) == (0.0, True)
    # The second stage receives as many activations as before.
    sent, sent_before = (_stages(each)[1].communication[0].sent_bytes for each in (frozen, whole))
    assert sent == sent_before > 0.0
    layers = {layer.name: layer for layer in frozen.layers}
    assert layers["frozen_block" if "frozen_block" in layers else "block"].backward_s == 0.0


@pytest.mark.parametrize("frozen", [FROZEN[1], ("embedding", "block.[0-3]")])
def test_what_stages_of_a_v_receive_is_counted_alike(frozen: tuple[str, ...]) -> None:
    """Where the V turns nothing is sent; bytes of all else go with its seconds, frozen or not."""
    found = _evaluated((2, 1, 1), {"frozen": frozen}, pipeline_schedule="zb-v")
    assert found.placement is not None and found.placement.pipeline_schedule == "zb-v"
    transfers = [stage.communication[0] for stage in found.placement.stages]
    rates = [each.sent_bytes / each.total_s for each in transfers]
    assert rates[0] == pytest.approx(rates[1]) and min(rates) > 0.0


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_nothing_runs_again_where_nothing_runs_backward(recompute: Any) -> None:
    """Whatever is recomputed elsewhere."""
    found = _evaluated((1, 8, 1), {"frozen": ["embedding", "block.[0-4]"]}, recompute=recompute)
    for layer in found.layers:
        if layer.backward_s == 0.0:
            assert layer.recompute_s == 0.0 and layer.stash_bytes == 0
        else:
            assert (layer.recompute_s > 0.0) == (
                recompute == "full" or (recompute == "selective" and "block" in layer.name)
            )


def test_nothing_frozen_changes_nothing() -> None:
    """To the bit, however that is said."""
    said = {"frozen": [], "lora_rank": 0, "lora_targets": []}
    assert _evaluated("solve", said) == _evaluated("solve", {})


def test_an_explanation_is_of_the_same_model() -> None:
    """By name; and what would make it fit is looked for with its adapters."""
    training = Training(16, optimizer="adam")
    found = explain(MODEL, "h100", "dgx-h100", training, (1, 8, 1), lora_rank=8, **RUN)
    assert found.evaluation == _evaluated((1, 8, 1), {"lora_rank": 8})
    small = load_accelerator("h100", hbm_gib=0.25)
    tight = explain(MODEL, small, "dgx-h100", training, (1, 8, 1), lora_rank=8, **RUN)
    assert not tight.evaluation.feasible and tight.fixes
    load = named_point(MODEL, small, "dgx-h100", training, lora_rank=8, **RUN).load
    assert load is not None
    other = load(replace(training, microbatch=2), 1)
    assert all(variant.is_partly_frozen for variant in other.variants)


def test_what_cannot_be_frozen_is_refused(tmp_path: Path) -> None:
    """A capture is trained as it is, an object too, and frozen weights are not shared out."""
    path = tmp_path / "model.json"
    write_workload(load_workload(MODEL), path)
    training = Training(16, optimizer="adam")
    with pytest.raises(InputError, match="captured as it is trained"):
        evaluate(str(path), "h100", "dgx-h100", training, devices=8, frozen=["embedding"])
    with pytest.raises(InputError, match="lora_rank is 8, but the workload is an object"):
        evaluate(load_workload(MODEL), "h100", "dgx-h100", training, devices=8, lora_rank=8)
    with pytest.raises(InputError, match="zero is 3"):
        _evaluated((1, 8, 1), {"lora_rank": 8}, zero=3)


def test_a_study_freezes_its_models() -> None:
    """Its captures are those of the adapters; weights are not shared out in any point."""
    spec: dict[str, Any] = {
        "name": "adapters",
        "model": MODEL,
        "cluster": "dgx-h100",
        "devices": 8,
        "global_batch": 16,
        "optimizer": "adam",
        "tensor_parallel": "all",
        "baselines": (),
    }
    space = Space("tpuv4-lanes", num_tc=[2, 8])
    resolved, (workload,) = freeze(StudySpec(**spec, space=space, lora_rank=2))
    assert workload.model.endswith("LoRA of rank 2")
    assert [each.tensor_parallel for each in workload.variants] == [1, 2]
    assert all(each.is_partly_frozen for each in workload.variants)
    assert resolved.spec.lora_rank == 2
    with pytest.raises(InputError, match="zero is 3"):
        solved = Space("tpuv4-lanes", num_tc=[2, 8], zero={"solve": [0, 3]})
        StudySpec(**spec, space=solved, frozen=("embedding",))


@settings(max_examples=6, deadline=None)
@given(st.sampled_from(FROZEN), st.booleans(), st.sampled_from([1, 4]), st.sampled_from([0, 1]))
def test_the_tables_of_stages_hold_what_stages_do(
    frozen: tuple[str, ...], narrow: bool, data: int, zero: int
) -> None:
    """Of every run of layers, and where the chain is too deep for tables; tied weights once."""
    variant = load_workload(TIED, frozen=_tied(frozen), microbatch=(1,)).variants[0]
    recipe: dict[str, Any] = {"precision": "mxfp8"} if narrow else {}
    training = Training(16, optimizer="adam", zero=zero, **recipe)
    cluster = load_cluster("dgx-h100", 8)
    problem = bare_problem(variant, cluster, training, "elementwise")
    layers, optimizer = problem.layers[1], training.state
    shards = Shards.of(zero, data)
    held = held_by_runs(chain_bytes(problem, 1), optimizer, shards, 1e12)
    sums = ChainSums.of(layers, np.zeros(len(layers)), optimizer)
    for i in range(len(layers)):
        for j in range(i + 1, len(layers) + 1):
            own = stage_memory(layers[i:j], 1, optimizer, shards)
            assert held.resident_bytes[i, j] == own.total - own.stash
            if zero:
                continue
            deep = sums.state_bytes[j] - sums.state_bytes[i] + sums.tied_bytes[i:j].max()
            assert deep == pytest.approx(own.total - own.stash - own.transient, abs=4)


def test_shared_sequences_change_no_model_flops() -> None:
    """Neither those of frozen products nor of adapters and attention."""
    flops = {}
    for context, kind in ((1, "ring"), (2, "ring"), (4, "a2a"), (2, "gather")):
        options: dict[str, Any] = {"context_parallel": context, "context_kind": kind}
        found = _evaluated((1, 8 // context, 1), {"lora_rank": 8}, **options)
        assert found.tflops_per_device is not None
        flops[context, kind] = found.tflops_per_device * _time_s(found)
    assert len({round(each, 9) for each in flops.values()}) == 1
