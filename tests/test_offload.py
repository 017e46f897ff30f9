"""What waits on the host: time, memory, energy and refusals of whole runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.errors import InputError
from phaze_opt.evaluation import Evaluation, evaluate
from phaze_opt.explanation.explain import explain
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.placement.placement_problem import Communication
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.spec.freezing import freeze
from phaze_opt.spec.space import Space
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.training import Training

LLAMA = "llama:layers=8,hidden=1024,heads=16,kv_heads=4,ffn=2816,sequence=2048,vocab=512"
"""Whose head holds less than a block does."""
TRAINING = Training(16, 4, optimizer="adam", zero=1)
CACHE: dict[str, Schedule] = {}


def run(link_gb_per_s: float = 55.0, placement: Any = (2, 2, 1), **options: Any) -> Evaluation:
    """Evaluate a small Llama on four H100 with a link of some bandwidth."""
    chip = replace(load_accelerator("h100"), host_link_bytes_per_s=link_gb_per_s * 1e9)
    training = replace(TRAINING, **options)
    return evaluate(LLAMA, chip, "dgx-h100", training, placement, devices=4, cache=CACHE)


def time_s(evaluation: Evaluation) -> float:
    """Return the time of a batch."""
    assert evaluation.time_per_batch_s is not None
    return evaluation.time_per_batch_s


def memory(evaluation: Evaluation, kind: str) -> list[int]:
    """Return a kind of memory of all stages."""
    assert evaluation.placement is not None
    return [getattr(stage.memory_bytes, kind) for stage in evaluation.placement.stages]


def to_host(evaluation: Evaluation) -> list[Communication]:
    """Return what the stages send to the host."""
    assert evaluation.placement is not None
    found = [each for stage in evaluation.placement.stages for each in stage.communication]
    return [each for each in found if each.kind == "offload"]


OPTIONS = st.fixed_dictionaries(
    {
        "offload_parts": st.sampled_from(["", "layer", "core_attn,attn_proj", "attn_norm"]),
        "offload_share": st.sampled_from([0.25, 1.0]),
        "offload_optimizer": st.sampled_from([0.0, 0.5, 1.0]),
        "zero": st.sampled_from([0, 1, 3]),
    }
)


@settings(max_examples=25, deadline=None)
@given(OPTIONS, st.sampled_from([0.01, 1.0, 55.0, 1e6]), st.sampled_from([(1, 4, 1), (4, 1, 1)]))
def test_never_faster_and_never_more_kept(
    options: dict[str, Any], link_gb_per_s: float, placement: tuple[int, int, int]
) -> None:
    """Without offload a run that fits is as fast or faster; over a fast link it is as fast."""
    plain = run(placement=placement, zero=options["zero"])
    moved = run(link_gb_per_s, placement, **options)
    assert time_s(moved) >= time_s(plain)
    for kind in ("stash", "optimizer"):
        assert all(a <= b for a, b in zip(memory(moved, kind), memory(plain, kind), strict=True))
    if link_gb_per_s == 1e6:
        assert time_s(moved) == pytest.approx(time_s(plain), rel=1e-3)
    slower = run(link_gb_per_s / 2.0, placement, **options)
    assert time_s(slower) >= time_s(moved)
    for each in to_host(moved):
        assert 0.0 <= each.exposed_s <= each.total_s * (1.0 + 1e-9)
        assert each.total_s == pytest.approx(each.sent_bytes / (link_gb_per_s * 1e9))


def test_none_is_as_before_to_the_bit() -> None:
    """Options that offload nothing change nothing, whatever the link is."""
    plain = run()
    assert plain == run(1.0) == run(offload_share=0.5)
    assert to_host(plain) == []


def test_the_optimizer_takes_as_long_as_the_link() -> None:
    """Its state of 12 bytes goes in and out at the same time, a half of it in half of the time."""
    slow = 1.0
    plain, whole, half = (run(slow, offload_optimizer=share) for share in (0.0, 1.0, 0.5))
    assert plain.placement and whole.placement and half.placement
    stages = zip(plain.placement.stages, whole.placement.stages, half.placement.stages, strict=True)
    for before, all_, some in stages:
        shared = before.memory_bytes.optimizer  # 12 bytes a parameter, over both replicas
        assert all_.memory_bytes.optimizer == 0
        assert some.memory_bytes.optimizer == pytest.approx(shared / 2, abs=1)
        assert all_.optimizer_s == pytest.approx(shared / (slow * 1e9), rel=1e-6)
        assert some.optimizer_s == pytest.approx(all_.optimizer_s / 2, rel=1e-6)


def test_a_link_that_binds_sets_the_pace_of_a_stage() -> None:
    """On one stage, every microbatch takes as long as its activations out, and back."""
    slow = run(0.05, (1, 4, 1), offload_parts="layer")
    (sent,) = to_host(slow)
    assert slow.time_breakdown_s["forward"] == pytest.approx(sent.total_s / 2, rel=0.01)
    assert slow.time_breakdown_s["backward"] == pytest.approx(sent.total_s / 2, rel=0.01)
    quarter = run(0.05, (1, 4, 1), offload_parts="layer", offload_share=0.25)
    assert to_host(quarter)[0].sent_bytes == pytest.approx(sent.sent_bytes / 4, rel=1e-6)


def test_a_run_fits_that_would_not() -> None:
    """Where the memory binds, and two layers' worth of it is on the device."""
    plain = run(placement=(1, 4, 1))
    moved = run(placement=(1, 4, 1), offload_parts="layer", offload_optimizer=1.0)
    (full,), (less,) = memory(plain, "total"), memory(moved, "total")
    assert less < full
    (kept,), (kept_less,) = memory(plain, "stash"), memory(moved, "stash")
    (working,), (working_more,) = memory(plain, "transient"), memory(moved, "transient")
    assert working_more - working == pytest.approx((kept - kept_less) / 8 * 2, rel=0.01)
    chip = load_accelerator("h100", hbm_bytes=int(less / 0.9))
    tight = evaluate(LLAMA, chip, "dgx-h100", TRAINING, (1, 4, 1), devices=4, cache=CACHE)
    assert not tight.feasible


def test_it_costs_energy_and_is_explained() -> None:
    """Bytes on the link cost what those on the network do; explain names them."""
    plain, moved = run(), run(offload_parts="layer", offload_optimizer=1.0)
    extra_j = moved.energy_by_level_j["network"] - plain.energy_by_level_j["network"]
    assert extra_j == pytest.approx(2 * sum(e.sent_bytes for e in to_host(moved)) * 32e-12)
    chip = load_accelerator("h100", host_link_gb_per_s=0.05)
    training = replace(TRAINING, offload_parts="layer")
    explained = explain(LLAMA, chip, "dgx-h100", training, (1, 4, 1), devices=4)
    assert "to the host and back" in str(explained)


def test_a_chip_without_a_link_is_refused() -> None:
    """One sentence says what to state."""
    for training in (
        replace(TRAINING, offload_parts="layer"),
        replace(TRAINING, offload_optimizer=0.5),
    ):
        with pytest.raises(InputError, match="--set host_link_gb_per_s=55"):
            evaluate("bert-large", "tpuv4-lanes", "tpuv4-ici-flat", training, devices=4)


def test_a_study_needs_a_link_and_does_not_search_it() -> None:
    """It is stated in the space, or by the base; no area model charges for it."""
    common: dict[str, Any] = {
        "cluster": "tpuv4-ici-flat",
        "devices": 4,
        "global_batch": 16,
        "optimizer": "adam",
    }
    model = "gpt:layers=2,hidden=256,heads=4,sequence=128,vocab=512,attention=flash,dropout=0"
    for options in ({"offload_optimizer": 1.0}, {"recompute_parts": "qkv_proj_offloaded"}):
        spec = StudySpec("host", model, space=Space("tpuv4-lanes", num_tc=[2]), **common, **options)
        with pytest.raises(InputError, match="write host_link_gb_per_s = 16 there"):
            freeze(spec)
        stated = Space("tpuv4-lanes", num_tc=[2], host_link_gb_per_s=16)
        assert freeze(replace(spec, space=stated))
    searched = Space("tpuv4-lanes", num_tc=[2], host_link_gb_per_s=[16, 32])
    with pytest.raises(InputError, match="no area model charges for the link to the host"):
        freeze(StudySpec("host", model, space=searched, **common))
