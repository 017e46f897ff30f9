"""Schedules that split the backward, against simulations straight from their definitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.choices import PipelineScheduleName
from phaze_opt.degrees import Degrees
from phaze_opt.errors import InfeasibleError, InputError
from phaze_opt.network.cluster import Cluster, NetworkLevel
from phaze_opt.passes.layer_cost import LayerCost, LayerPasses
from phaze_opt.placement.describe import placement_replay
from phaze_opt.placement.placement_problem import Placement, PlacementProblem
from phaze_opt.placement.solve_placement import place_again, solve_placement
from phaze_opt.placement.zero_bubble import (
    ORDERS,
    OrderRule,
    ZeroBubbleWork,
    best_order,
    busy_s,
    order_of,
    planned_order,
    replay_order,
)
from phaze_opt.training import ZERO_BUBBLE, Training
from tests.placement.strategies import all_degrees, all_splits
from tests.placement.test_interleaved import equal_layers
from tests.placement.test_least import least_s, training_problems

ONE_CHUNK: tuple[PipelineScheduleName, ...] = ("zb-h1", "zb-h2", "zb-1p", "zb-2p")
SLACK = 1.0 + 1e-9


def uniform(
    stages: int,
    parts_s: tuple[float, float, float] = (1.0, 1.0, 1.0),
    room: float | None = None,
    chunks: int = 1,
) -> ZeroBubbleWork:
    """Return equal stages whose microbatches hold 1, and 0.9 from B to W."""
    seconds = np.tile(np.array(parts_s)[:, None, None] / chunks, (1, chunks, stages))
    none, stash = np.zeros((chunks, stages)), np.full((chunks, stages), 1.0 / chunks)
    rooms = np.full(stages, float(stages) if room is None else room)
    return ZeroBubbleWork(seconds, none, none, stash, 0.9 * stash, rooms)


@st.composite
def works(draw: st.DrawFn, chunks: int = 1) -> ZeroBubbleWork:
    """Draw stages that all differ, with room for what 1F1B holds or more."""
    stages = draw(st.integers(1 if chunks == 1 else 2, 5))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = chunks, stages
    seconds = random.uniform(0.1, 1.0, (3, *shape))
    saving = random.uniform(0.0, 0.1, shape) * draw(st.sampled_from([0.0, 1.0]))
    head = random.uniform(0.0, 2.0, shape) * draw(st.sampled_from([0.0, 1.0]))
    stash = random.uniform(0.5, 1.0, shape)
    operands = random.uniform(0.0, 1.5, shape)
    least = np.arange(stages, 0, -1) * stash[0] if chunks == 1 else stash.sum(axis=0)
    return ZeroBubbleWork(
        seconds, saving, head, stash, operands, least * draw(st.sampled_from([1.0, 1.3, 2.0, 4.0]))
    )


Item = tuple[int, int, int]
"""Part (0 F, 1 B, 2 W), chunk and microbatch."""


def simulate(
    work: ZeroBubbleWork, orders: Sequence[Sequence[Item]]
) -> dict[tuple[int, Item], tuple[float, float]]:
    """Return start and end of everything: each begins when the stage and what it needs are done.

    Found by repetition until nothing changes, from the definition of what waits for what.
    """
    chunks, stages = work.chunks, work.stages
    path = [(0, stage) for stage in range(stages)]
    if chunks > 1:
        path += [(1, stage) for stage in reversed(range(stages))]
    times: dict[tuple[int, Item], tuple[float, float]] = {}
    for _ in range(sum(map(len, orders)) + 1):
        before = dict(times)
        for stage, order in enumerate(orders):
            free_s = 0.0
            for part, chunk, microbatch in order:
                at, ready = path.index((chunk, stage)), 0.0
                needed: list[tuple[int, Item]] = []
                if part == 0 and at > 0:
                    needed = [(path[at - 1][1], (0, path[at - 1][0], microbatch))]
                if part == 1:
                    needed = [(stage, (0, chunk, microbatch))]
                    if at + 1 < len(path):
                        needed += [(path[at + 1][1], (1, path[at + 1][0], microbatch))]
                if part == 2:
                    needed = [(stage, (1, chunk, microbatch))]
                if not all(each in times for each in needed):
                    break
                ready = max([times[each][1] for each in needed], default=0.0)
                if part == 0 and microbatch == 0:
                    ready = max(ready, work.head_s[chunk, stage])
                begin_s = max(free_s, ready)
                seconds = work.seconds[part, chunk, stage]
                if part == 2 and microbatch == 0:
                    seconds -= work.first_saving_s[chunk, stage]
                free_s = begin_s + seconds
                times[stage, (part, chunk, microbatch)] = begin_s, free_s
        if times == before and len(times) == sum(map(len, orders)):
            return times
    raise AssertionError("the stages wait forever")


def items(work: ZeroBubbleWork, codes: np.ndarray) -> list[list[Item]]:
    """Write the orders out, and hold each to be of every part of every microbatch, in its order."""
    orders = []
    for row in codes.tolist():
        seen: dict[int, int] = {}
        order = []
        for code in row:
            microbatch = seen.get(code, 0)
            seen[code] = microbatch + 1
            order.append((code // work.chunks, code % work.chunks, microbatch))
        microbatches = codes.shape[1] // (3 * work.chunks)
        assert seen == dict.fromkeys(range(3 * work.chunks), microbatches)
        orders.append(order)
    return orders


def peak_bytes(work: ZeroBubbleWork, stage: int, order: Sequence[Item]) -> float:
    """Return the most that a stage holds; a W right after its B is part of it."""
    held = most = 0.0
    for place, (part, chunk, microbatch) in enumerate(order):
        if part == 0:
            held += work.stash_bytes[chunk, stage]
        elif part == 1:
            held -= work.stash_bytes[chunk, stage]
            if order[place + 1] != (2, chunk, microbatch):
                held += work.operand_bytes[chunk, stage]
        elif order[place - 1] != (1, chunk, microbatch):
            held -= work.operand_bytes[chunk, stage]
        most = max(most, held)
    return most


def check_order(rule: OrderRule, work: ZeroBubbleWork, microbatches: int) -> None:
    """Hold an order to its replay by brute force, and to its room."""
    codes = order_of(rule, work, microbatches)
    assert codes is not None
    orders = items(work, codes)
    done, times = replay_order(work, codes, microbatches), simulate(work, orders)
    for (stage, (part, chunk, microbatch)), (begin_s, _) in times.items():
        assert done.starts_s[part, chunk, stage, microbatch] == begin_s
    for stage, order in enumerate(orders):
        assert done.finish_s[stage] == times[stage, order[-1]][1]
        peak = peak_bytes(work, stage, order)
        assert done.peak_bytes[stage] == pytest.approx(peak)
        assert peak <= work.room_bytes[stage] * SLACK


@settings(max_examples=30, deadline=None)
@given(works(), st.integers(1, 9), st.sampled_from(ONE_CHUNK))
def test_every_order_is_replayed_as_by_brute_force(
    work: ZeroBubbleWork, microbatches: int, schedule: PipelineScheduleName
) -> None:
    """Starts, ends and memory of every order that a schedule tries, on any stages."""
    for rule in ORDERS[schedule]:
        check_order(rule, work, microbatches)


@settings(max_examples=30, deadline=None)
@given(works(2), st.integers(1, 9))
def test_every_order_of_a_v_is_replayed_as_by_brute_force(
    work: ZeroBubbleWork, microbatches: int
) -> None:
    """With two chunks, the second ones from the last stage back to the first, nothing is stuck."""
    for rule in ORDERS["zb-v"]:
        check_order(rule, work, microbatches)


@pytest.mark.parametrize(("schedule", "lag"), [("zb-h1", 1), ("zb-h2", 2)])
def test_orders_by_rule_are_those_of_the_paper(schedule: PipelineScheduleName, lag: int) -> None:
    """So many forwards ahead, then a W behind every B by 0, 1, … (H1) or 0, 2, … microbatches."""
    stages, microbatches = 4, 12
    codes = order_of(ORDERS[schedule][-1], uniform(stages, room=7.0), microbatches)
    assert codes is not None
    for stage, row in enumerate(codes.tolist()):
        ahead = lag * (stages - stage - 1) + 1
        assert row[:ahead] == [0] * ahead
        assert row[ahead] == 1
        held_back = [row[:place].count(1) - row[:place].count(2) for place in range(len(row))]
        assert max(held_back) - 1 == lag * stage


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("parts_s", [(1.0, 1.0, 1.0), (1.0, 1.2, 0.8), (1.0, 1.4, 0.6)])
def test_equal_stages_wait_as_long_as_the_paper_says(
    stages: int, parts_s: tuple[float, float, float]
) -> None:
    """H1: (p − 1)(F + B − W) and p stashes; H2: (p − 1)(F + B − 2 W) and 2 p − 1 stashes."""
    microbatches, (forward, backward, weight) = 4 * stages, parts_s
    work_s = microbatches * sum(parts_s)
    for index, most, bubble_s in (
        (1, stages, (stages - 1) * (forward + backward - weight)),
        (2, 2 * stages - 1, (stages - 1) * (forward + backward - 2 * weight)),
    ):
        work = uniform(stages, parts_s, room=float(most))
        codes = order_of(ORDERS["zb-h2"][index], work, microbatches)
        assert codes is not None
        done = replay_order(work, codes, microbatches)
        assert done.own_s(work.head_s).max() - work_s == pytest.approx(max(bubble_s, 0.0), abs=1e-9)
        assert done.peak_bytes.max() == pytest.approx(most)


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_searched_orders_are_no_worse_than_those_by_rule(stages: int) -> None:
    """Of equal stages, at p and 2 p stashes; a V waits less than H1 in as much memory."""
    microbatches, parts_s = 4 * stages, (1.0, 1.2, 0.8)
    times = {}
    for schedule, most in (("zb-h1", 1), ("zb-1p", 1), ("zb-h2", 2), ("zb-2p", 2), ("zb-v", 1)):
        chunks = 2 if schedule == "zb-v" else 1
        work = uniform(stages, parts_s, float(most * stages), chunks)
        found = best_order(schedule, work, microbatches, {})  # type: ignore[arg-type]
        assert found is not None
        times[schedule] = found.done.own_s(work.head_s).max()
        assert times[schedule] >= busy_s(work, microbatches).max() / SLACK
    assert times["zb-1p"] <= times["zb-h1"]
    assert times["zb-2p"] <= min(times["zb-h2"], times["zb-1p"])
    assert times["zb-v"] < times["zb-h1"]


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_a_v_of_equal_parts_waits_for_little(stages: int) -> None:
    """Where F, B and W are equal, less than an eighth of what 1F1B waits, in as much memory."""
    work = uniform(stages, chunks=2)
    found = best_order("zb-v", work, 3 * stages, {})
    assert found is not None
    bubble_s = found.done.own_s(work.head_s).max() - 3 * stages * 3.0
    assert bubble_s <= (stages - 1) * 3.0 / 8.0
    assert found.done.peak_bytes.max() <= stages * SLACK


@settings(max_examples=30, deadline=None)
@given(works(), st.integers(1, 9), st.sampled_from(ONE_CHUNK))
def test_an_order_is_found_again(
    work: ZeroBubbleWork, microbatches: int, schedule: PipelineScheduleName
) -> None:
    """What a placement says of its order is enough to replay it."""
    found = best_order(schedule, work, microbatches, {})
    assert found is not None
    order = planned_order(schedule, found.number, work, microbatches)
    assert order is not None
    again = replay_order(work, order, microbatches)
    assert np.array_equal(again.starts_s, found.done.starts_s)


@st.composite
def split_problems(draw: st.DrawFn) -> PlacementProblem:
    """Draw any layers, memory and network, with a part of every backward for weight gradients."""
    problem = draw(training_problems())
    part, bytes_part = draw(st.sampled_from([0.0, 0.4, 1.0])), draw(st.sampled_from([0.0, 0.9]))
    overlap = "data" if problem.training.pairs_microbatches else problem.training.overlap
    training = replace(
        problem.training,
        pipeline_schedule=draw(st.sampled_from(ZERO_BUBBLE)),
        interleave=1,
        zero=problem.training.zero % 2,
        fp8_param_gather=False,
        overlap=overlap,
    )

    def with_weights(layer: LayerCost) -> LayerCost:
        return replace(
            layer,
            weight_gradient_s=part * layer.passes.backward.seconds,
            weight_operand_bytes=int(bytes_part * layer.stash_bytes),
        )

    layers = {degree: tuple(map(with_weights, own)) for degree, own in problem.layers.items()}
    return replace(problem, layers=layers, training=training)


@pytest.mark.parametrize("schedule", ONE_CHUNK)
def test_weight_gradients_are_on_no_way_through_the_stages(schedule: PipelineScheduleName) -> None:
    """A batch of one microbatch is shorter than all its passes, and so is its bound."""
    layer = LayerCost("layer", LayerPasses.of(1.0, 1.0), 0, 0, 0, 0, 0, weight_gradient_s=0.4)
    cluster = Cluster("two", (NetworkLevel(1e9, 0.0, "switch"),), 2)
    training = Training(1, pipeline_schedule=schedule)
    problem = PlacementProblem({1: (layer,) * 2}, ((0, 1),), cluster, training, 1e9, 1e9)
    assert least_s(problem) <= solve_placement(problem).time_per_batch_s < 4.0


def placed(
    problem: PlacementProblem, schedule: PipelineScheduleName | None, degrees: Degrees | None
) -> Placement | None:
    """Place under another schedule; ``None`` if nothing fits."""
    named = schedule or problem.training.pipeline_schedule
    training = replace(problem.training, pipeline_schedule=named)
    try:
        return solve_placement(replace(problem, training=training), degrees)
    except InfeasibleError:
        return None


@settings(max_examples=60, deadline=None)
@given(split_problems(), st.data())
def test_never_slower_than_1f1b_in_the_same_memory(
    problem: PlacementProblem, data: st.DataObject
) -> None:
    """Solved and at given degrees; what fits under 1F1B fits, and its bounds are below it."""
    tensor = data.draw(st.sampled_from(sorted(problem.layers)))
    given_degrees = Degrees(
        data.draw(st.integers(1, 4)),
        data.draw(st.integers(1, 3)) * problem.training.replica_step(tensor),
        tensor,
    )
    for degrees in (None, given_degrees):
        plain, split = placed(problem, "1f1b", degrees), placed(problem, None, degrees)
        if plain is not None:
            assert split is not None
            assert split.time_per_batch_s <= plain.time_per_batch_s * (1.0 + 1e-12)
            if plain.pipeline == split.pipeline == 1:
                assert split.time_per_batch_s == plain.time_per_batch_s
        if split is None:
            continue
        assert split.bound_s is not None
        assert split.bound_s <= split.time_per_batch_s
        memory = max(stage.memory_bytes.total for stage in split.stages)
        assert memory <= problem.hbm_usable_bytes + 1
        assert sum(split.time_breakdown_s.values()) == pytest.approx(split.time_per_batch_s)
        if degrees is None:
            assert least_s(problem) <= split.time_per_batch_s * SLACK


@settings(max_examples=40, deadline=None)
@given(split_problems())
def test_a_placement_replays_and_is_placed_again(problem: PlacementProblem) -> None:
    """Its stages tell the order; the same split on the same chip takes as long."""
    split = placed(problem, None, None)
    if split is None:
        return
    done = placement_replay(split)
    own_s = done.finish_s - done.forward_start_s[0, :, 0]
    assert own_s.max() <= split.time_per_batch_s * SLACK
    if done.weight_start_s is None:
        # The order of 1F1B stands for whole backwards where these take as long.
        stages = zip(own_s, split.stages, strict=True)
        tails = (s + own.work[0].head_s + own.synchronisation_s + own.optimizer_s + own.gather_s
                 for s, own in stages)  # fmt: skip
        assert split.order == 0 and max(tails) == pytest.approx(split.time_per_batch_s, rel=1e-8)
    again = place_again(problem, split)
    assert again.time_per_batch_s == split.time_per_batch_s
    assert [stage.layers for stage in again.stages] == [stage.layers for stage in split.stages]


@settings(max_examples=25, deadline=None)
@given(split_problems())
def test_no_split_of_any_degrees_is_below_the_bounds(problem: PlacementProblem) -> None:
    """Every split of every degrees is tried: none takes less than the solved bound says."""
    problem = replace(problem, cluster=replace(problem.cluster, devices=4))
    split = placed(problem, None, None)
    if split is None:
        return
    assert split.bound_s is not None
    count = len(next(iter(problem.layers.values())))
    for degrees in all_degrees(problem):
        if degrees.data % problem.training.replica_step(degrees.tensor):
            continue
        for starts in all_splits(count, degrees.pipeline):
            sizes = np.diff([*starts, count]).tolist()
            try:
                time_s = solve_placement(problem, degrees, tuple(sizes)).time_per_batch_s
            except InfeasibleError:
                continue
            assert split.bound_s <= time_s * SLACK
            assert least_s(problem) <= time_s * SLACK


def with_weights(schedule: PipelineScheduleName, microbatches: int = 16) -> PlacementProblem:
    """Return 24 equal layers on 4 devices whose backward is half weight gradients."""
    problem = equal_layers(1, microbatches)
    layers = tuple(
        replace(layer, weight_gradient_s=1.0, weight_operand_bytes=9) for layer in problem.layers[1]
    )
    training = replace(problem.training, pipeline_schedule=schedule)
    return replace(problem, layers={1: layers}, training=training)


def test_a_v_holds_the_first_and_the_last_layers() -> None:
    """The first stage has the first and the last three layers of 24, and names the schedule."""
    placement = solve_placement(with_weights("zb-v"), Degrees(4, 1, 1))
    expected = [f"block.{index}" for index in (0, 1, 2, 21, 22, 23)]
    assert list(placement.stages[0].layers) == expected
    assert placement.pipeline_schedule == "zb-v"


def test_the_turn_of_a_v_sends_nothing() -> None:
    """Seven messages each way instead of the six of three links, twice: the turn is on a device."""
    slow = with_weights("zb-v")
    level = replace(slow.cluster.levels[0], bandwidth_bytes_per_s=1e3)
    slow = replace(slow, cluster=replace(slow.cluster, levels=(level,)))
    stages = solve_placement(slow, Degrees(4, 1, 1)).stages
    sent = [stage.communication[0].sent_bytes / 16 for stage in stages]
    # Of 8 bytes: the inner stages receive two activations and two gradients, the last one less.
    assert sent == [16.0, 32.0, 32.0, 16.0]


def test_what_h1_saves_is_a_third_of_the_backward() -> None:
    """Six layers a stage: 18 seconds a microbatch, 3 of them waits under 1F1B, one under H1."""
    plain = solve_placement(with_weights("1f1b"), Degrees(4, 1, 1)).time_per_batch_s
    split = solve_placement(with_weights("zb-h1"), Degrees(4, 1, 1))
    assert plain == pytest.approx((16 + 3) * 18.0, rel=1e-6)
    assert split.time_per_batch_s == pytest.approx(16 * 18.0 + 3 * 6.0, rel=1e-6)
    assert split.time_breakdown_s["bubble"] == pytest.approx(18.0, rel=1e-5)
    assert [stage.memory_bytes.stash for stage in split.stages] == [240, 234, 228, 222]


def test_given_stages_hold_the_layers_that_are_said() -> None:
    """Uneven stages, as a run had them; nonsense is refused."""
    problem = with_weights("zb-1p")
    placement = solve_placement(problem, Degrees(4, 1, 1), (5, 7, 7, 5))
    assert [len(stage.layers) for stage in placement.stages] == [5, 7, 7, 5]
    for sizes in ((6, 6, 6), (5, 7, 7, 6), (0, 8, 8, 8)):
        with pytest.raises(InputError):
            solve_placement(problem, Degrees(4, 1, 1), sizes)
    with pytest.raises(InfeasibleError):
        solve_placement(replace(problem, hbm_usable_bytes=10.0), Degrees(4, 1, 1), (6, 6, 6, 6))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"zero": 2}, "zero must be 0 or 1"),
        ({"zero": 3}, "zero must be 0 or 1"),
        ({"overlap": "all", "expert_parallel": 2}, "overlap must be none, partial or data"),
        ({"interleave": 2}, "per stage"),
    ],
)
@pytest.mark.parametrize("schedule", ZERO_BUBBLE)
def test_what_has_no_meaning_is_refused(
    schedule: PipelineScheduleName, options: dict[str, object], words: str
) -> None:
    """With one sentence, which says what is allowed."""
    with pytest.raises(InputError, match=words):
        Training(64, pipeline_schedule=schedule, **options)  # type: ignore[arg-type]
