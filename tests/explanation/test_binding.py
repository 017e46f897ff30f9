"""What binds a pass: shares that predict what a faster resource brings."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.estimator.estimate import RESOURCES
from phaze_opt.estimator.single import attention_graph
from phaze_opt.explanation.binding import bind_pass, critical_path
from phaze_opt.explanation.changes import LESS, MORE, changes
from phaze_opt.explanation.gains import try_changes
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.measured_constants import Calibration
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.point import Point, cost_point
from phaze_opt.scheduling.schedule_problem import ScheduledOperator
from phaze_opt.training import Training
from phaze_opt.workload.attention import AttentionShape
from phaze_opt.workload.graph import Collective, Gemm, Operator, VectorWork
from tests.explanation.cases import CHIP, network, passes_of, point_of, tiny
from tests.workload.graphs import Moved

OF_GAIN = {
    "compute": "compute",
    "lanes": "lanes",
    "glb": "glb",
    "hbm": "hbm",
    "link_0": "link",
    "overhead": "overhead",
}
"""What binds, by the name of the change that relieves it."""

SLOW_GLB = replace(CHIP, glb_bytes_per_cycle=64.0)
CONSTANT = replace(CHIP, calibration=Calibration(operator_overhead_s=1e-3))
BOUND_CASES = [
    ("compute", CHIP, Operator("mm", gemms=(Gemm(2048, 2048, 2048),))),
    ("lanes", CHIP, Operator("gelu", vector=(VectorWork("gelu", 1024, 1024),))),
    ("glb", SLOW_GLB, Moved(Operator("copy", vector=(VectorWork("copy", 1, 1),)), 10**8)),
    ("hbm", CHIP, Moved(Operator("copy", vector=(VectorWork("copy", 1, 1),)), 10**9)),
    ("link", CHIP, Operator("sum", collective=Collective("all_reduce", 10**9))),
    ("overhead", CONSTANT, Operator("add", vector=(VectorWork("add", 1, 1),))),
]


def named(operator: Operator | Moved, count: int) -> list[Moved]:
    """Return an operator so often, under several names."""
    moved = operator if isinstance(operator, Moved) else Moved(operator)
    return [
        moved._replace(operator=replace(moved.operator, id=f"{moved.operator.id}{index}"))
        for index in range(count)
    ]


def predicted_saving(share: float, factor: float) -> float:
    """Return what a share says that more of its resource saves."""
    return share * (1.0 - 1.0 / factor if factor > 1.0 else 1.0 - factor)


@pytest.mark.parametrize(
    ("resource", "chip", "operator"), BOUND_CASES, ids=[case[0] for case in BOUND_CASES]
)
def test_more_of_what_binds_saves_its_share_and_of_another_nothing(
    resource: str, chip: Accelerator, operator: Operator | Moved
) -> None:
    """Where one resource binds a chain of operators, only that one shortens it, by its share."""
    point = point_of(named(operator, 3), chip, edges=[(0, 1, 0), (1, 2, 0)])
    forward = passes_of(point).forward
    binding = bind_pass(forward, chip)
    assert binding.bound_by == resource
    assert binding.share(resource) == pytest.approx(1.0, abs=1e-3)
    assert len(binding.critical_path) == 3
    assert {step.bound_by for step in binding.critical_path} == {resource}
    before_s = binding.makespan_s
    for trial in try_changes(changes(point), {}):
        after_s = trial.costed.costs[2].passes[0].forward.schedule.makespan_s
        saving = 1.0 - after_s / before_s
        if trial.change.resource in OF_GAIN:
            share = binding.share(OF_GAIN[trial.change.resource])
            assert saving == pytest.approx(predicted_saving(share, trial.change.factor), abs=1e-12)
        assert trial.change.factor in (MORE, LESS)


@pytest.mark.parametrize(("pe_vc", "bound_by"), [(1024, "compute"), (32, "lanes")])
def test_fused_attention_waits_for_arrays_and_for_lanes(pe_vc: int, bound_by: str) -> None:
    """Its exposed lanes bind as lanes, the rest as compute; both predict what more of them saves.

    With few lanes, tensor cores wait most of the time.
    """
    calibration = Calibration(operator_overhead_s=0.0, attention_overlap=0.25)
    chip = replace(CHIP, pe_vc=pe_vc, l2_vc_bytes=0, calibration=calibration)
    core = attention_graph(AttentionShape(1, 2048, 2048, 4, 4, 128, causal=True))
    point = point_of([Moved(core.operators[0], core.read_bytes[0], core.write_bytes[0])], chip)
    forward = passes_of(point).forward
    binding = bind_pass(forward, chip)
    exposed_s = float(forward.chosen.exposed_lanes_s[0])
    assert binding.bound_s["lanes"] == pytest.approx(exposed_s)
    assert binding.bound_s["compute"] == pytest.approx(binding.makespan_s - exposed_s)
    assert binding.critical_path[0].bound_by == binding.bound_by == bound_by
    operators, *_ = forward.totals
    assert [RESOURCES[place] for place in operators.nonzero()[0]] == [bound_by]
    assert binding.busy_s["compute"] == pytest.approx(binding.bound_s["compute"])
    for trial in try_changes(changes(point), {}):
        if trial.change.resource in ("compute", "lanes"):
            after_s = trial.costed.costs[2].passes[0].forward.schedule.makespan_s
            predicted = predicted_saving(binding.share(trial.change.resource), trial.change.factor)
            assert 1.0 - after_s / binding.makespan_s == pytest.approx(predicted, rel=1e-3)


def test_cores_that_wait_bind_as_schedule() -> None:
    """A chain of products too small to cut leaves three of four cores idle: the schedule binds."""
    operators = [Operator(f"mm{index}", gemms=(Gemm(1, 32, 32),)) for index in range(4)]
    edges = [(index, index + 1, 0) for index in range(3)]
    chain = bind_pass(passes_of(point_of(operators, edges=edges)).forward, CHIP)
    assert chain.bound_by == "schedule"
    assert chain.idle_s["compute"] == pytest.approx(0.75 * chain.bound_s["compute"])
    assert chain.share("compute") == pytest.approx(1.0)
    # Side by side they fill the cores, and the arrays bind.
    beside = bind_pass(passes_of(point_of(operators)).forward, CHIP)
    assert beside.bound_by == "compute"
    assert beside.schedule_s == pytest.approx(0.0, abs=1e-15)
    assert beside.makespan_s == pytest.approx(chain.makespan_s / 4)
    assert beside.busy_s["compute"] == pytest.approx(chain.busy_s["compute"])


def test_a_pass_without_work_is_bound_by_nothing() -> None:
    """An operator that takes no time has no path and no share."""
    binding = bind_pass(passes_of(point_of([Operator("view")])).forward, CHIP)
    assert binding.makespan_s == 0.0
    assert binding.critical_path == ()
    assert all(binding.share(resource) == 0.0 for resource in RESOURCES)


def test_the_path_prefers_what_an_operator_depends_on() -> None:
    """Of two operators that end when a third starts, the one it needs is on the path."""
    entries = [
        ScheduledOperator("long", 0.0, 2.0, False),
        ScheduledOperator("needed", 1.0, 2.0, False),
        ScheduledOperator("first", 0.0, 1.0, False),
        ScheduledOperator("view", 2.0, 2.0, False),
        ScheduledOperator("last", 2.0, 3.0, False),
    ]
    assert critical_path(entries, [(1, 4, 0)]) == [2, 1, 4]
    assert critical_path(entries, []) == [0, 4]
    assert critical_path([], []) == []


CHIPS = ("tpuv4-lanes", "tpuv4-phaze", "a100-80", "h100")


@pytest.mark.parametrize("name", CHIPS)
@pytest.mark.parametrize("tensor", [1, 2])
def test_the_path_has_no_gap_and_its_seconds_add_up(name: str, tensor: int) -> None:
    """The path leads from 0 to the makespan, and what binds adds up to it."""
    chip = load_accelerator(name)
    workload = tiny(microbatch=2, tensor=tensor)
    point = Point(workload, chip, network(4), Training(8, 2), (1, 1, tensor))
    for passes in cost_point(point, {}).costs[tensor].passes:
        for scheduled in passes.all():
            binding = bind_pass(scheduled, chip)
            assert sum(binding.bound_s.values()) == pytest.approx(binding.makespan_s, rel=1e-12)
            ends = [0.0, *(step.end_s for step in binding.critical_path)]
            starts = [*(step.start_s for step in binding.critical_path), binding.makespan_s]
            assert starts == pytest.approx(ends, rel=1e-12)
            for resource, idle_s in binding.idle_s.items():
                assert 0.0 <= idle_s <= binding.bound_s[resource]
            # No resource can do its work in less time than it needs for it alone.
            assert max(binding.busy_s.values()) <= binding.makespan_s * (1 + 1e-9)


E_SMALL = 1e-5


@pytest.mark.parametrize("name", CHIPS)
def test_shares_are_the_derivatives_of_the_makespan(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A little more of any resource saves its share of it, on real layers with all else in play."""
    monkeypatch.setattr("phaze_opt.explanation.changes.MORE", 1.0 + E_SMALL)
    monkeypatch.setattr("phaze_opt.explanation.changes.LESS", 1.0 - E_SMALL)
    chip = load_accelerator(name)
    workload = tiny(microbatch=2, tensor=2)
    point = Point(workload, chip, network(2), Training(8, 2), (1, 1, 2))
    before = cost_point(point, {}).costs[2].passes
    for trial in try_changes(changes(point), {}):
        if trial.change.resource not in OF_GAIN:
            continue
        for old, new in zip(before, trial.costed.costs[2].passes, strict=True):
            for scheduled, other in zip(old.all(), new.all(), strict=True):
                binding = bind_pass(scheduled, chip)
                saving = 1.0 - other.schedule.makespan_s / binding.makespan_s
                share = binding.share(OF_GAIN[trial.change.resource])
                expected = predicted_saving(share, trial.change.factor)
                assert saving == pytest.approx(expected, abs=1e-3 * E_SMALL)


@st.composite
def vector_operators(draw: st.DrawFn) -> list[Moved]:
    """Draw operators that lanes, memory or the network bind."""
    operators = []
    for index in range(draw(st.integers(1, 6))):
        if draw(st.booleans()):
            work = VectorWork(draw(st.sampled_from(["add", "gelu"])), draw(st.integers(1, 4096)), 9)
            moved = draw(st.integers(0, 10**7))
            operators.append(Moved(Operator(f"v{index}", vector=(work,)), moved))
        else:
            size = draw(st.integers(1, 10**7))
            sent = Operator(f"c{index}", collective=Collective("all_reduce", size))
            operators.append(Moved(sent))
    return operators


@settings(max_examples=40, deadline=None)
@given(
    operators=vector_operators(),
    overhead_s=st.sampled_from([0.0, 1e-6]),
    bandwidth=st.sampled_from([1e10, 1e12]),
    glb_rate=st.sampled_from([64.0, 4096.0]),
)
def test_on_a_stream_a_tenth_more_saves_at_most_its_share(
    operators: list[Operator], overhead_s: float, bandwidth: float, glb_rate: float
) -> None:
    """With one operator at a time the makespan is convex: shares bound what more can save."""
    chip = replace(
        CHIP,
        concurrent_operators=False,
        hbm_bytes_per_s=bandwidth,
        glb_bytes_per_cycle=glb_rate,
        calibration=Calibration(operator_overhead_s=overhead_s),
    )
    point = point_of(operators, chip)
    binding = bind_pass(passes_of(point).forward, chip)
    assert sum(map(binding.share, RESOURCES)) == pytest.approx(1.0)
    for trial in try_changes(changes(point), {}):
        after_s = trial.costed.costs[2].passes[0].forward.schedule.makespan_s
        if trial.change.resource in OF_GAIN:
            share = binding.share(OF_GAIN[trial.change.resource])
            most = predicted_saving(share, trial.change.factor)
            assert -1e-12 <= 1.0 - after_s / binding.makespan_s <= most + 1e-12
