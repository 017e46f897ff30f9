"""Points whose sequences are shared among devices."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phaze_opt.cli.main import run_with

from phaze_opt.choices import ContextKind
from phaze_opt.degrees import Degrees
from phaze_opt.errors import InputError
from phaze_opt.estimator.chips import Chips
from phaze_opt.estimator.least_energy import least_energies_j
from phaze_opt.evaluation import Evaluation, evaluate
from phaze_opt.evaluation_json import evaluation_from_json_dict, evaluation_to_json_dict
from phaze_opt.named_point import named_point
from phaze_opt.passes.estimates import Chip
from phaze_opt.passes.least_energy import fused_passes, least_batch_energy_j
from phaze_opt.passes.least_seconds import least_layers
from phaze_opt.placement.least import LeastPlacement
from phaze_opt.point import bare_problem, chip_rates, fusion_of, variants_within
from phaze_opt.spec.freezing import freeze
from phaze_opt.spec.space import Space
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.training import Training

MODEL = "llama:layers=4,hidden=512,heads=8,kv_heads=4,ffn=1408,sequence=4096,vocab=8000"
MIXTURE = (
    "moe:layers=2,hidden=512,heads=8,sequence=1024,vocab=8000,experts=8,top_k=2,expert_ffn=512"
)
TRAINING = Training(16, 1, optimizer="adam", zero=1)
KINDS: tuple[ContextKind, ...] = ("ring", "a2a", "gather")


def point(
    placement: Any = "solve", chip: str = "h100", model: str = MODEL, **options: Any
) -> Evaluation:
    """Evaluate a model on 16 devices, two nodes."""
    return evaluate(model, chip, "dgx-h100", replace(TRAINING, **options), placement, devices=16)


def seconds(evaluation: Evaluation) -> float:
    """Return the time of a feasible point."""
    assert evaluation.time_per_batch_s is not None, evaluation.reason
    return evaluation.time_per_batch_s


def test_a_placement_states_the_devices_of_a_sequence() -> None:
    """As the option does; degrees of 1 at the end may be left out."""
    assert Degrees.of_text("2x8x1x4x2") == Degrees(2, 8, 1, expert=4, context=2)
    assert Degrees.of_text("2x8x1x1x2") == Degrees(2, 8, 1, context=2)
    assert Degrees(2, 8, 1, context=2).text == "2x8x1x1x2"
    assert Degrees(2, 8, 1, context=2).devices == 32
    assert Degrees(2, 8, 1, context=2).as_replicas == Degrees(2, 16, 1)
    assert Degrees.of_text("2x8x1x4x0") is None
    stated = point("2x2x1x1x4")
    assert stated == point("2x2x1", context_parallel=4)
    assert stated.placement and stated.placement.degrees == Degrees(2, 2, 1, context=4)
    assert stated.placement.degrees_text == "2x2x1x1x4" and stated.unused_devices == 0
    with pytest.raises(InputError, match="context_parallel is 2, but the placement 2x2x1x1x4"):
        point("2x2x1x1x4", context_parallel=2)


@pytest.mark.parametrize("placement", ["solve", "2x2x1"])
def test_one_device_is_none(placement: str) -> None:
    """Whatever its kind would be, to the bit."""
    plain = point(placement)
    for kind in KINDS:
        assert point(placement, context_parallel=1, context_kind=kind) == plain


def test_devices_of_a_sequence_hold_and_reduce_the_same_parameters() -> None:
    """Gradients are reduced, and states shared out, as among as many replicas."""
    for zero in (0, 1, 2, 3):
        (plain,) = (point("1x8x2", zero=zero).placement or pytest.fail()).stages
        (shared,) = (point("1x2x2x1x4", zero=zero).placement or pytest.fail()).stages
        for kind in ("parameters", "gradients", "optimizer"):
            assert getattr(shared.memory_bytes, kind) == getattr(plain.memory_bytes, kind)
        assert shared.memory_bytes.stash < plain.memory_bytes.stash
        total = {each.kind: each.total_s for each in plain.communication}
        # ZeRO 2 and 3 exchange in every microbatch, of which there are more.
        if zero < 2:
            assert {each.kind: each.total_s for each in shared.communication} == total
        assert shared.optimizer_s == plain.optimizer_s


def test_a_batch_is_counted_once() -> None:
    """Utilisation, tokens and padding are those of samples, not of their shares."""
    plain, shared = point("1x8x1"), point("1x2x1x1x4")
    assert plain.placement and shared.placement
    assert (plain.placement.microbatches, shared.placement.microbatches) == (2, 8)
    for result, devices in ((plain, 8), (shared, 8)):
        flops = (result.tflops_per_device or 0.0) * seconds(result) * 16
        assert flops == pytest.approx(
            (plain.tflops_per_device or 0.0) * seconds(plain) * 16, rel=1e-12
        )
        assert result.placement and result.placement.devices == devices
        assert result.padding_samples == 0
    assert point("1x3x1x1x4", global_batch=16).padding_samples == 2
    assert shared.mfu_causal == pytest.approx(
        (plain.mfu_causal or 0.0) * shared.mfu / plain.mfu, rel=2e-3
    )


def test_what_does_not_divide_or_fit_is_infeasible_in_a_sentence() -> None:
    """More devices than there are, in a placement and in a search."""
    few = point("1x8x1x1x4")
    assert not few.feasible and "1x8x1x1x4 needs 32 devices" in (few.reason or "")
    small = point("1x1x4", context_parallel=2, global_batch=1)
    assert small.feasible
    assert not point(context_parallel=32).feasible
    for devices, context in ((64, 8), (64, 128)):
        # On a torus, groups have shapes, and a batch may take a slice that has no such group.
        training = replace(TRAINING, context_parallel=context)
        torus = evaluate(MODEL, "tpuv4-lanes", "tpuv4-torus", training, devices=devices)
        assert torus.feasible == (context == 8)
    many = point("1x4x1x1x4", global_batch=2)
    assert "needs a global batch of at least 4" in (many.reason or "")


options = st.fixed_dictionaries(
    {
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "overlap": st.sampled_from(["none", "partial", "data", "all"]),
        "zero": st.sampled_from([0, 1, 2, 3]),
        "residency": st.booleans(),
        "sequence_parallel": st.booleans(),
        "pipeline_schedule": st.sampled_from(["1f1b", "gpipe", "interleaved"]),
        "launch": st.sampled_from(["graphs", "compiled", "eager"]),
        "precision": st.sampled_from(["bf16", "fp8", "fp8-block"]),
    }
)


@settings(max_examples=10, deadline=None)
@given(options, st.sampled_from(["1x4x1x1x4", "2x2x2x1x2"]), st.sampled_from(KINDS))
def test_every_option_works_with_it(
    chosen: dict[str, Any], placement: str, kind: ContextKind
) -> None:
    """The search is no slower than a placement, parts add up, and the answer is plain data."""
    found = point(placement, context_kind=kind, **chosen)
    time_s = seconds(found)
    assert sum(found.time_breakdown_s.values()) == pytest.approx(time_s)
    solved = point("solve", context_parallel=int(placement[-1]), context_kind=kind, **chosen)
    assert seconds(solved) <= time_s * (1.0 + 1e-9)
    plain = json.loads(json.dumps(evaluation_to_json_dict(found)))
    assert evaluation_from_json_dict(plain) == found
    assert plain["placement"]["context"] == int(placement[-1])


@settings(max_examples=8, deadline=None)
@given(
    options,
    st.sampled_from([2, 4, 8]),
    st.sampled_from(KINDS),
    st.sampled_from(["h100", "tpuv4-lanes"]),
)
def test_bounds_are_never_above(
    chosen: dict[str, Any], devices: int, kind: ContextKind, chip: str
) -> None:
    """Of the passes and the placement, as a study composes them."""
    if chip != "h100":
        chosen |= {"precision": "bf16"}
    training = replace(TRAINING, context_parallel=devices, context_kind=kind, **chosen)
    named = named_point(MODEL, chip, "dgx-h100", training, devices=16).point
    result = evaluate(named.workload, named.accelerator, named.cluster, training)
    fusion = fusion_of(named)
    bounds_s = []
    for variant in variants_within(named.workload, named.cluster, training):
        arguments = variant, [named.accelerator], named.cluster, training
        problem = bare_problem(variant, named.cluster, training, fusion)
        kinds = [index for _, index in variant.nodes]
        placing = LeastPlacement(problem, variant.tensor_parallel, kinds)
        rates = chip_rates([Chip(named.accelerator, named.cluster, fusion)], training)
        bounds_s.append(float(placing.least_s(least_layers(*arguments), rates)[0]))
    assert min(bounds_s) <= seconds(result) * (1.0 + 1e-9)


def test_experts_are_shared_within_sequences_and_replicas() -> None:
    """A group of experts may be the devices of a sequence, or more than these."""
    inside = point("1x4x1x4x4", model=MIXTURE)
    across = point("1x4x1x8x4", model=MIXTURE)
    assert inside.feasible and across.feasible
    few = point("1x2x1x8x2", model=MIXTURE)
    assert not few.feasible and "a multiple of it" in (few.reason or "")


def test_slower_links_take_longer_and_are_hidden_as_far_as_attention_is_long() -> None:
    """On fast links a ring costs nothing beside attention; nothing is hidden in a gather."""

    def block_s(kind: ContextKind, sequence: int) -> float:
        training = replace(TRAINING, context_parallel=4, context_kind=kind)
        result = evaluate(
            MODEL, "h100", "dgx-h100", training, "1x4x1", devices=16, sequence=sequence
        )
        return next(each.forward_s for each in result.layers if each.name == "block")

    assert block_s("ring", 65536) < min(block_s("a2a", 65536), block_s("gather", 65536))
    assert block_s("gather", 512) < block_s("ring", 512)


def test_a_study_refuses_what_no_device_can_share() -> None:
    """When it is created, before anything is evaluated."""
    spec = StudySpec(
        "contexts", MODEL, "dgx-h100", 16, 64, baselines=("h100",),
        space=Space("h100", context_parallel=[1, 16], context_kind=["ring", "a2a"]),
    )  # fmt: skip
    with pytest.raises(InputError, match="it must divide the 8 heads"):
        freeze(spec)
    odd = replace(spec, space=Space("h100", context_parallel=[1, 3]))
    with pytest.raises(InputError, match="it must divide the 4096 tokens"):
        freeze(odd)
    assert freeze(replace(spec, space=Space("h100", context_parallel=[1, 8])))


def test_the_command_line_takes_it(capsys: pytest.CaptureFixture[str]) -> None:
    """`evaluate` and `explain`, by option and by placement."""
    words = ["--model", MODEL, "--accelerator", "h100", "--cluster", "dgx-h100", "--devices", "16"]
    words += ["--global-batch", "16", "--microbatch", "1", "--optimizer", "adam", "--json"]
    assert run_with(["evaluate", *words, "--zero", "1", "--placement", "2x2x1x1x4"]) == 0
    printed = json.loads(capsys.readouterr().out)
    result = point("2x2x1x1x4")
    assert printed == json.loads(json.dumps(evaluation_to_json_dict(result)))
    assert run_with(["explain", *words, "--context-parallel", "4", "--context-kind", "a2a"]) == 0
    explained = json.loads(capsys.readouterr().out)
    assert explained["placement"]["context"] == 4


@pytest.mark.parametrize("kind", KINDS)
def test_the_least_energy_is_below_that_of_a_batch_and_near_it(kind: ContextKind) -> None:
    """All devices of a sequence count."""
    training = replace(TRAINING, context_parallel=4, context_kind=kind, residency=False)
    named = named_point(MODEL, "h100", "dgx-h100", training, (1, 1, 1), devices=4).point
    result = evaluate(named.workload, named.accelerator, named.cluster, training, (1, 1, 1))
    fusion = fusion_of(named)
    (variant,) = variants_within(named.workload, named.cluster, training)
    graphs, _ = fused_passes(variant, training, fusion)
    chips = Chips([named.accelerator])
    passes_j, _ = least_energies_j(graphs, chips, named.cluster, 1, residency=False)
    (least_j,) = least_batch_energy_j(variant, training, fusion, passes_j, chips)
    assert 0.8 * result.energy_j_per_batch < least_j <= result.energy_j_per_batch * (1.0 + 1e-9)
