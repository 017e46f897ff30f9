"""Scheduling problems for hypothesis, and random graphs that look like layers."""

import random
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
from hypothesis import strategies as st

from phaze_opt.choices import IntraOperatorRule
from phaze_opt.scheduling.bounds import Bounds, least_durations, root_bound, tails
from phaze_opt.scheduling.branch_and_bound import improve_wide, narrow_passes
from phaze_opt.scheduling.canonical import canonical_form
from phaze_opt.scheduling.instance import TIME_RESOLUTION, Instance, Plan
from phaze_opt.scheduling.list_scheduler import best_list_schedule
from phaze_opt.scheduling.problem_columns import PrecedenceGraph, ProblemColumns, problem_columns
from phaze_opt.scheduling.reduction import build_instance, contracted_ancestors
from phaze_opt.scheduling.schedule_problem import (
    CoreType,
    Schedule,
    ScheduleOperator,
    ScheduleProblem,
    check_problem,
)
from phaze_opt.scheduling.search_arrays import search_arrays
from phaze_opt.scheduling.solve_schedule import solve_schedule

CORES: tuple[CoreType, ...] = ("TC", "VC", "TC+VC", "none")
RULES: tuple[IntraOperatorRule, ...] = ("exclusive", "per-type")

# Small whole numbers make many ties, fractions of a second make none.
latencies = st.one_of(st.integers(0, 8).map(float), st.floats(0.05, 5.0))
# Millionths: the scheduler rounds shares to billionths, so nothing may fit by so little.
fractions = st.one_of(
    st.just(0.0),
    st.integers(0, 100).map(lambda n: n / 100),
    st.integers(0, 10**6).map(lambda n: n / 10**6),
)


@st.composite
def problems(draw: st.DrawFn, most: int = 6) -> ScheduleProblem:
    """Problems of any shape."""
    count = draw(st.integers(0, most))
    operators = []
    for index in range(count):
        core = draw(st.sampled_from(CORES))
        latency_s = draw(latencies)
        speed_up = draw(st.one_of(st.just(1.0), st.sampled_from([2.0, 3.0]), st.floats(0.8, 4.0)))
        operators.append(
            ScheduleOperator(
                id=f"operator {index}",
                core=core,
                latency_s=latency_s,
                intra_op_latency_s=latency_s / speed_up,
                hbm_fraction=draw(fractions),
                glb_fraction=draw(fractions),
                link_fraction=draw(fractions) if core == "none" else 0.0,
                intra_op_hbm_fraction=draw(fractions),
                intra_op_glb_fraction=draw(fractions),
            )
        )
    place = draw(st.permutations(range(count)))
    pairs = [(place[i], place[j]) for i in range(count) for j in range(i + 1, count)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return ScheduleProblem(
        name="drawn",
        num_tc=draw(st.integers(1, 3)),
        num_vc=draw(st.integers(1, 3)),
        operators=tuple(operators),
        edges=tuple(edges),
        intra_operator=draw(st.sampled_from(RULES)),
    )


def layer_like(seed: int, count: int, width: int, **changes: Any) -> ScheduleProblem:
    """Draw a graph of ``width`` tracks with edges between them, and latencies over two decades."""
    rng = random.Random(seed)
    cores = rng.choice([(1, 1), (1, 4), (2, 2), (4, 1), (4, 4), (8, 2), (16, 16)])
    operators = []
    for index in range(count):
        core = rng.choice((*CORES, "TC", "VC", "VC"))
        all_cores = {"TC": cores[0], "VC": cores[1], "TC+VC": min(cores), "none": 1}[core]
        latency_s = 10 ** rng.uniform(-6, -4)
        share = rng.randint(2, 60) / 100
        speed_up = 1 / (0.1 + 0.9 / all_cores)
        operators.append(
            ScheduleOperator(
                id=str(index),
                core=core,
                latency_s=latency_s,
                intra_op_latency_s=latency_s / speed_up,
                hbm_fraction=share,
                link_fraction=0.6 if core == "none" else 0.0,
                intra_op_hbm_fraction=min(1.0, round(share * speed_up, 2)),
            )
        )
    edges = set()
    tracks: list[list[int]] = [[] for _ in range(width)]
    for index in range(count):
        own = rng.choice(tracks)
        other = rng.choice(tracks)
        if own:
            edges.add((own[-1], index))
        if other and rng.random() < 0.35:
            edges.add((other[-1], index))
        own.append(index)
    fields: dict[str, Any] = {
        "name": f"{count} operators, {width} wide, seed {seed}",
        "num_tc": cores[0],
        "num_vc": cores[1],
        "operators": tuple(operators),
        "edges": tuple(sorted(edges)),
    }
    return ScheduleProblem(**{**fields, **changes})


def random_problem(seed: int, most: int = 12) -> ScheduleProblem:
    """Draw a problem of 2 to ``most`` operators: like a layer, with ties, or with neither."""
    rng = random.Random(seed)
    count, rule = rng.randint(2, most), rng.choice(RULES)
    if seed % 3 == 0:
        return layer_like(seed, count, rng.randint(1, 4), intra_operator=rule)

    def share() -> float:
        return rng.choice([0.0, rng.randint(0, 100) / 100, rng.randint(0, 10**6) / 10**6])

    operators = []
    for index in range(count):
        core = rng.choice(CORES)
        latency_s, speed_up = float(rng.randint(1, 8)), rng.choice([1.0, 2.0, 4.0])
        if seed % 3 == 1:
            latency_s, speed_up = rng.uniform(0.05, 5.0), rng.uniform(0.8, 4.0)
        link = share() if core == "none" else 0.0
        shares = (share(), share(), link, share(), share())
        operators.append(
            ScheduleOperator(str(index), core, latency_s, latency_s / speed_up, *shares)
        )
    density = rng.choice([0.05, 0.15, 0.3])
    pairs = combinations(range(count), 2)
    edges = tuple(pair for pair in pairs if rng.random() < density)
    cores = rng.randint(1, 3), rng.randint(1, 3)
    return ScheduleProblem(f"seed {seed}", *cores, tuple(operators), edges, rule)


def with_like_operators(seed: int, count: int) -> ScheduleProblem:
    """Draw a graph like a layer, most of whose operators are of a few kinds."""
    rng = random.Random(seed)
    rule: IntraOperatorRule = rng.choice(RULES)
    drawn = layer_like(seed, count, rng.randint(2, 5), intra_operator=rule)
    kinds = [rng.choice(drawn.operators) for _ in range(rng.randint(1, 3))]
    operators = [
        replace(rng.choice(kinds), id=one.id) if rng.random() < 0.8 else one
        for one in drawn.operators
    ]
    return replace(drawn, operators=tuple(operators))


def to_columns(problem: ScheduleProblem) -> ProblemColumns:
    """Write a problem as arrays, after checking it."""
    return problem_columns(problem, PrecedenceGraph.of(problem.edges, check_problem(problem)))


def to_instance(problem: ScheduleProblem) -> Instance:
    """Write the whole problem as one instance, not split."""
    form = canonical_form(to_columns(problem), bandwidth=True)
    instant = form.values[:, :2].min(axis=1) <= 0.0
    arrays, total_s = build_instance(
        np.flatnonzero(~instant),
        form.core,
        form.values,
        contracted_ancestors(instant, form.edges),
        (problem.num_tc, problem.num_vc, problem.intra_operator == "exclusive", problem.elastic),
    )
    return Instance(*arrays, total_s / TIME_RESOLUTION)


def bounds_and_list(instance: Instance) -> tuple[Bounds, Plan]:
    """Give the bounds of an instance and its best list schedule."""
    duration, allowed, demand = instance.duration, instance.allowed, instance.demand
    tail = tails(instance.descendants, least_durations(duration, allowed))
    bounds = Bounds(root_bound(duration, allowed, demand, instance.capacity, tail), tail)
    plan, makespan = best_list_schedule(*instance.arrays, bounds.makespan)
    return bounds, Plan.of(plan, makespan)


def improve(instance: Instance, bounds: Bounds, incumbent: Plan, effort: int) -> tuple[Plan, int]:
    """Search a whole instance: the narrow passes, and what goes on after them."""
    arrays, at_once = search_arrays(*instance.arrays, bounds.tail)
    known = np.column_stack([incumbent.start, incumbent.mode])
    plan, makespan, lower, left, width = narrow_passes(
        arrays, at_once, known, incumbent.makespan, bounds.makespan, effort
    )
    best = Plan.of(plan, makespan)
    return improve_wide(instance, replace(bounds, makespan=lower), best, left, width)


def cache_key(problem: ScheduleProblem, **settings: Any) -> str:
    """Give the key under which the scheduler stores the schedule of a problem."""
    cache: dict[str, Schedule] = {}
    solve_schedule(problem, cache, **settings)
    (key,) = cache
    return key
