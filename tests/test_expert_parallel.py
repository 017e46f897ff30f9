"""Points whose routed experts are shared out over replicas."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.choices import Dispatcher
from phaze_opt.degrees import Degrees
from phaze_opt.errors import InputError
from phaze_opt.evaluation import Evaluation, evaluate
from phaze_opt.evaluation_json import evaluation_from_json_dict, evaluation_to_json_dict
from phaze_opt.explanation.explain import explain, explanation_to_json_dict
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.candidates import Candidate
from phaze_opt.point import Point, cost_point
from phaze_opt.report.explanation_words import explanation_sentences
from phaze_opt.report.words import placement_words
from phaze_opt.spec.freezing import freeze
from phaze_opt.spec.space import Space
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.training import Training
from phaze_opt.workload.expert_parallel import with_experts_shared_out
from phaze_opt.workload.zoo import load_workload

MODEL = (
    "moe:layers=4,hidden=512,heads=8,sequence=256,vocab=8000,experts=16,top_k=2,expert_ffn=512,"
    "ffn=1024,dense_layers=1"
)
TRAINING = Training(64, 1, optimizer="adam", zero=1)


def point(placement: Any = "solve", chip: str = "h100", **options: Any) -> Evaluation:
    """Evaluate the model on 16 devices, two nodes."""
    return evaluate(MODEL, chip, "dgx-h100", replace(TRAINING, **options), placement, devices=16)


def seconds(evaluation: Evaluation) -> float:
    """Return the time of a feasible point."""
    assert evaluation.time_per_batch_s is not None
    return evaluation.time_per_batch_s


def test_a_placement_states_the_devices_of_experts() -> None:
    """As the option does; with fewer degrees there is one such device."""
    assert Degrees.of_text("2x8x1x4") == Degrees(2, 8, 1, expert=4)
    assert Degrees.of_text("2x8x1") == Degrees(2, 8, 1)
    assert Degrees(2, 8, 1, expert=4).text == "2x8x1x4"
    assert Degrees.of_text("2x8x1x0") is None
    stated = point("2x8x1x4", dispatcher="deepep")
    assert stated == point("2x8x1", dispatcher="deepep", expert_parallel=4)
    with pytest.raises(InputError, match="expert_parallel is 2, but the placement 2x8x1x4"):
        point("2x8x1x4", expert_parallel=2)


def test_an_answer_states_the_devices_of_experts() -> None:
    """In JSON, in words, and when it is read back; and the exchanges have a name of their own."""
    stated = point("2x8x1x4", dispatcher="deepep")
    assert stated.placement and stated.placement.expert == 4
    plain = evaluation_to_json_dict(stated)
    assert plain["placement"]["expert"] == 4
    assert evaluation_from_json_dict(json.loads(json.dumps(plain))) == stated
    assert "experts shared out over 4 (2x8x1x4)" in placement_words(stated.placement)
    dense = point("2x8x1").placement
    assert dense and dense.degrees_text == "2x8x1" and "experts" not in placement_words(dense)


@pytest.mark.parametrize("placement", ["1x8x2x4", "1x8x1x4", "1x8x2"])
def test_an_explanation_names_exchanges_apart_from_collectives(placement: str) -> None:
    """What the stage does still adds up, and each kind is there where its group is."""
    reasons = explain(MODEL, "h100", "dgx-h100", TRAINING, placement, devices=16)
    stage = reasons.stage
    assert stage is not None
    assert sum(stage.parts_s.values()) == pytest.approx(seconds(reasons.evaluation))
    degrees = Degrees.of_text(placement)
    assert degrees
    assert (stage.parts_s.get("token_exchanges", 0.0) > 0.0) == (degrees.expert > 1)
    assert (stage.parts_s["tensor_collectives"] > 0.0) == (degrees.tensor > 1)
    for each in stage.communication:
        if each.kind in ("token_exchanges", "tensor_collectives"):
            present = degrees.expert if each.kind == "token_exchanges" else degrees.tensor
            assert (each.sent_bytes > 0.0) == (each.total_s > 0.0) == (present > 1)


def test_one_device_has_all_experts_whatever_would_send_tokens() -> None:
    """Nothing is sent, and nothing is uneven."""
    plain = point("2x8x1")
    assert plain == point("2x8x1", dispatcher="deepep", expert_imbalance=2.0)


def test_replicas_must_share_evenly() -> None:
    """What does not divide, or needs more replicas than there are, is infeasible in a sentence."""
    uneven = point("1x3x1x2")
    assert not uneven.feasible and "a multiple of it" in (uneven.reason or "")
    few = point("solve", global_batch=4, expert_parallel=8)
    assert not few.feasible and "at most 4 replicas" in (few.reason or "")


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("tensor", [1, 2])
def test_states_of_all_devices_add_up(zero: int, tensor: int) -> None:
    """What ZeRO does not share out anyway is divided; whole layers that it gathers are smaller."""
    variant = load_workload(MODEL, tensor_parallel=(tensor,)).variants[0]
    routed = sum(
        count * (layer.routed_parameters or 0)
        for count, layer in zip(variant.counts, variant.layers, strict=True)
    )
    placement = f"1x8x{tensor}"
    (whole,) = (point(placement, zero=zero).placement or pytest.fail()).stages
    for devices in (2, 4, 8):
        shared = point(f"{placement}x{devices}", zero=zero)
        assert shared.placement
        (stage,) = shared.placement.stages
        less = routed - routed // devices
        assert whole.memory_bytes.parameters - stage.memory_bytes.parameters == (
            2 * less if zero < 3 else 0
        )
        assert whole.memory_bytes.gradients - stage.memory_bytes.gradients == (
            4 * less if zero < 2 else 0
        )
        of_optimizer = whole.memory_bytes.optimizer - stage.memory_bytes.optimizer
        assert of_optimizer == (12 * less if zero == 0 else 0)
        assert stage.memory_bytes.transient <= whole.memory_bytes.transient
        assert stage.memory_bytes.stash == whole.memory_bytes.stash
        assert stage.optimizer_s <= whole.optimizer_s


options = st.fixed_dictionaries(
    {
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "overlap": st.sampled_from(["none", "partial", "data", "experts", "all"]),
        "zero": st.sampled_from([0, 1, 2, 3]),
        "residency": st.booleans(),
        "sequence_parallel": st.booleans(),
        "pipeline_schedule": st.sampled_from(["1f1b", "gpipe", "interleaved"]),
        "launch": st.sampled_from(["graphs", "compiled", "eager"]),
    }
)


@settings(max_examples=12, deadline=None)
@given(
    options,
    st.sampled_from(["1x16x1x8", "2x8x1x8", "2x4x2x4", "1x8x2x2"]),
    st.sampled_from(["h100", "tpuv4-lanes"]),
)
def test_every_option_works_with_them(chosen: dict[str, Any], placement: str, chip: str) -> None:
    """Faster dispatchers are never slower, rows of the slowest device never faster."""
    by_name = {
        name: point(placement, chip, dispatcher=name, **chosen)
        for name in ("nccl", "deepep", "hybridep", "ideal")
    }
    times_s = {name: seconds(each) for name, each in by_name.items()}
    slack = 1.0 + 1e-9
    assert times_s["ideal"] <= min(times_s.values()) * slack
    assert times_s["hybridep"] <= times_s["deepep"] * slack
    uneven = point(placement, chip, dispatcher="deepep", expert_imbalance=1.5, **chosen)
    assert times_s["deepep"] <= seconds(uneven) * slack
    found = by_name["deepep"]
    assert sum(found.time_breakdown_s.values()) == pytest.approx(times_s["deepep"])
    assert found.energy_by_level_j["network"] > 0.0
    solved = point("solve", chip, dispatcher="deepep", expert_parallel=int(placement[-1]), **chosen)
    assert seconds(solved) <= times_s["deepep"] * slack


@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from(["1x16x1x8", "1x8x2x8", "1x4x1x4"]),
    st.sampled_from(["nccl", "deepep", "hybridep", "ideal"]),
    st.sampled_from(["none", "selective", "full"]),
    st.sampled_from([4, 16, 64]),
)
def test_exchanges_beside_another_microbatch(
    placement: str, dispatcher: str, recompute: str, batch: int
) -> None:
    """They save no more than there is to hide; a single microbatch has no other beside it."""
    chosen: dict[str, Any] = {
        "dispatcher": dispatcher,
        "recompute": recompute,
        "global_batch": batch,
    }
    degrees = Degrees.of_text(placement)
    assert degrees
    if degrees.data > batch:
        return
    apart_s = seconds(point(placement, **chosen))
    reasons = explain(
        *(MODEL, "h100", "dgx-h100"),
        replace(TRAINING, overlap="experts", **chosen),
        placement,
        devices=16,
    )
    beside_s, stage = seconds(reasons.evaluation), reasons.stage
    assert stage is not None
    (sent,) = [each for each in stage.communication if each.kind == "token_exchanges"]
    slack = 1.0 + 1e-9
    assert (apart_s - sent.total_s) / slack <= beside_s <= apart_s * slack
    if degrees.data == batch:
        assert beside_s == pytest.approx(apart_s)
    assert sum(stage.parts_s.values()) == pytest.approx(beside_s)
    assert min(stage.parts_s.values()) >= -1e-15


@pytest.mark.parametrize(("chunks", "batch", "paired"), [(1, 64, 7 / 8), (2, 32, 5 / 8)])
def test_what_runs_before_the_first_pair_has_nothing_beside_it(
    chunks: int, batch: int, paired: float
) -> None:
    """One forward of eight; with two chunks of two stages F F F, then (F B) five times, B B B."""
    stages, replicas = 2, 8
    stated: dict[str, Any] = {
        "overlap": "experts",
        "global_batch": batch,
        "pipeline_schedule": "interleaved" if chunks > 1 else "1f1b",
        "interleave": chunks,
        "expert_parallel": replicas,
    }
    training = replace(TRAINING, **stated)
    workload = load_workload(MODEL, tensor_parallel=(1,), microbatch=(1,))
    degrees = Degrees(stages, replicas, 1)
    costed = cost_point(
        Point(workload, load_accelerator("h100"), load_cluster("dgx-h100", 16), training, degrees)
    )
    costs = CandidateCosts(costed.problem).stages(Candidate.of(degrees))
    assert costs.runs.paired == pytest.approx(paired)
    once, whole = (
        seconds(point("2x8x1x8", **{**stated, "overlap": overlap}))
        for overlap in ("experts", "data")
    )
    assert once < whole


def test_nothing_is_beside_anything_where_no_experts_are_shared_out() -> None:
    """Then it is the same as data, to the bit."""
    assert point("1x8x2", overlap="experts") == point("1x8x2", overlap="data")


@pytest.mark.parametrize("dispatcher", ["nccl", "deepep", "ideal"])
def test_tokens_in_fp8_are_half_as_many_bytes(dispatcher: Dispatcher) -> None:
    """What goes to the experts takes a byte and its scale per element; what comes back, two."""
    (variant,) = load_workload(MODEL).variants
    training = replace(TRAINING, expert_parallel=8, dispatcher=dispatcher, precision="fp8-block")
    narrow = replace(training, dispatch_precision="fp8")
    sizes = {
        (exchange.row_bytes, kind)
        for layer in with_experts_shared_out(variant, narrow).layers
        for graph in (layer.forward, layer.backward)
        for operator in graph.operators
        if operator.collective
        for kind, exchange in [(operator.collective.kind, operator.collective.exchange)]
        if exchange
    }
    assert sizes == {(512 + 512 // 128 * 4, "dispatch"), (2 * 512, "combine")}
    # Of few tokens the cast before they are sent is a kernel more than bytes on the network save.
    model = MODEL.replace("sequence=256", "sequence=4096")
    plain, half = (
        evaluate(model, "h100", "dgx-h100", each, "1x16x1", devices=16)
        for each in (training, narrow)
    )
    assert seconds(half) < seconds(plain)
    assert half.placement and plain.placement
    assert half.placement.stages[0].memory_bytes == plain.placement.stages[0].memory_bytes
    with pytest.raises(InputError, match="dispatch_precision is fp8, but precision is bf16"):
        replace(TRAINING, dispatch_precision="fp8")


def test_more_capacity_takes_longer_and_holds_more() -> None:
    """Where rows fill no tile more they are sent and held all the same."""
    times_s, held = [], []
    for capacity in (0.5, 1.0, 2.0, 8.0):
        found = point("1x16x1x8", expert_capacity=capacity)
        assert found.placement
        times_s.append(seconds(found))
        held.append(found.placement.stages[0].memory_bytes.stash)
    assert times_s == sorted(times_s) and held == sorted(set(held))
    assert seconds(point("1x16x1x8")) == times_s[1]
    solved = point("solve", expert_parallel=8, expert_capacity=2.0)
    assert seconds(solved) <= times_s[2]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"expert_imbalance": 1.5}, "--expert-imbalance 1"),
        ({"expert_capacity": 4.0}, "--expert-capacity 0"),
    ],
)
def test_an_explanation_says_what_rows_cost_that_even_routing_has_not(
    options: dict[str, Any], words: str
) -> None:
    """By evaluating without them; with even routing it says nothing."""
    chosen = replace(TRAINING, expert_parallel=8, **options)
    reasons = explain(MODEL, "h100", "dgx-h100", chosen, "1x16x1", devices=16)
    (gain,) = reasons.routing_gains
    assert gain.options == (words,)
    uneven_s, even_s = seconds(reasons.evaluation), seconds(point("1x16x1", expert_parallel=8))
    assert gain.throughput_gain == pytest.approx(uneven_s / even_s - 1.0) and even_s < uneven_s
    assert any(words in sentence for sentence in explanation_sentences(reasons))
    assert explanation_to_json_dict(reasons)["routing_gains"]
    plain = explain(
        MODEL, "h100", "dgx-h100", replace(TRAINING, expert_parallel=8), "1x16x1", devices=16
    )
    assert plain.routing_gains == () and "routing_gains" not in explanation_to_json_dict(plain)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"expert_imbalance": 1.5}, "every expert has the same rows; it must be 1"),
        ({"dispatcher": "deepep", "expert_parallel": 8}, "it must be nccl"),
        ({"expert_capacity": -1.0}, "must be 0, or above it and at most 64"),
    ],
)
def test_what_contradicts_a_capacity_is_refused(options: dict[str, Any], words: str) -> None:
    """In one sentence; and so is a model without experts."""
    with pytest.raises(InputError, match=words):
        point("1x16x1", **({"expert_capacity": 1.25} | options))
    with pytest.raises(InputError, match="has no routed experts"):
        load_workload("gpt2-xl", expert_capacity=(1.25,))


def test_a_study_refuses_devices_that_do_not_divide_the_experts() -> None:
    """When it is created, before anything is evaluated."""
    spec = StudySpec(
        "experts", MODEL, "dgx-h100", 16, 64, space=Space("h100", expert_parallel=[1, 3]),
        baselines=("h100",),
    )  # fmt: skip
    with pytest.raises(InputError, match="must divide the 16 experts"):
        freeze(spec)
    dense = replace(spec, model="gpt2-xl", space=Space("h100", expert_parallel=[1, 2]))
    with pytest.raises(InputError, match="no routed experts"):
        freeze(dense)
