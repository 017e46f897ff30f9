"""Joint problems of order, levels and residency: small ones for hypothesis, and layers."""

import random
from typing import Any

import numpy as np
from hypothesis import strategies as st

from phaze_opt.scheduling.residency import PassTensor, Residency, TensorGraph
from phaze_opt.scheduling.schedule_problem import ScheduleOperator, ScheduleProblem


def random_residency(rng: random.Random, operators: int = 7, tensors: int = 8) -> Residency:
    """Draw a problem of any shape with at most so many operators and tensors."""
    count = max(rng.randint(1, operators), rng.randint(1, operators))
    place = list(range(count))
    rng.shuffle(place)
    density = rng.choice([0.0, 0.2, 0.5])
    edges = {
        (place[i], place[j])
        for i in range(count)
        for j in range(i + 1, count)
        if rng.random() < density
    }
    drawn = []
    for _ in range(max(rng.randint(0, tensors), rng.randint(0, tensors))):
        first = rng.randrange(count)
        is_input = rng.random() < 0.3
        later = [place[i] for i in range(first + 1 - is_input, count)]
        readers = rng.sample(later, rng.randint(0, min(3, len(later))))
        if is_input and not readers:
            continue
        producer = None if is_input else place[first]
        if producer is not None:
            edges |= {(producer, reader) for reader in readers}
        size = rng.choice([1, 2, 3, 5, 8, 13, rng.randint(0, 20)])
        drawn.append(PassTensor(size, producer, tuple(readers), rng.random() < 0.2))
    graph = TensorGraph(count, tuple(sorted(edges)), tuple(drawn))
    levels = rng.randint(1, 3)
    saved = np.zeros((len(graph.accesses), levels))
    for number, (tensor, operator) in enumerate(graph.accesses):
        again = operator != drawn[tensor].producer
        for level in range(levels):
            passes = rng.choice([0.5, 1, 1, 2, 3]) if again else 1
            saved[number, level] = drawn[tensor].bytes * passes
    hbm = np.array([[rng.choice([0.0, 1.0, 4.0]) for _ in range(levels)] for _ in range(count)])
    np.add.at(hbm, graph.access_operator, saved)
    other = np.array(
        [[rng.choice([0.0, 1.0, 3.0, rng.uniform(0, 9)]) for _ in range(levels)] for _ in hbm]
    )
    working = np.array(
        [[rng.choice([0, 1, 2, 4, 9]) for _ in range(levels)] for _ in hbm], dtype=np.int64
    )
    overhead = np.array([rng.choice([0.0, 0.5]) for _ in hbm])
    return Residency(
        graph, rng.randint(4, 30), rng.choice([1.0, 2.0]), working, hbm, other, overhead, saved
    )


@st.composite
def residencies(draw: st.DrawFn) -> Residency:
    """Small problems of any shape."""
    return random_residency(random.Random(draw(st.integers(0, 2**32))))


def layer_residency(
    seed: int, operators: int, width: int, glb_bytes: int, tensors: int = 100
) -> Residency:
    """Draw a graph of ``width`` tracks whose operators are products and element-wise passes."""
    rng = random.Random(seed)
    tracks: list[list[int]] = [[] for _ in range(width)]
    readers: dict[int, list[int]] = {}
    edges = set()
    for index in range(operators):
        sources = {track[-1] for track in rng.sample(tracks, min(width, 2)) if track}
        if index > 2 and rng.random() < 0.2:
            sources.add(rng.randrange(index))
        for source in sources:
            edges.add((source, index))
            readers.setdefault(source, []).append(index)
        rng.choice(tracks).append(index)
    mib = 2**20
    made = [
        PassTensor(rng.choice([1, 2, 4, 4, 8, 16]) * mib, source, tuple(own), rng.random() < 0.2)
        for source, own in readers.items()
    ]
    for _ in range(operators // 6):
        own = tuple(sorted(rng.sample(range(operators), 2)))
        made.append(PassTensor(rng.choice([2, 4, 8]) * mib, None, own))
    graph = TensorGraph(operators, tuple(sorted(edges)), tuple(made[:tensors]))
    levels = 3
    saved = np.zeros((len(graph.accesses), levels))
    working = np.array([[rng.choice([1, 2, 4]) * mib] * levels for _ in range(operators)])
    for level in range(1, levels):
        working[:, level] //= 2 * level
    product = [rng.random() < 0.5 for _ in range(operators)]
    for number, (tensor, operator) in enumerate(graph.accesses):
        again = product[operator] and operator != graph.tensors[tensor].producer
        for level in range(levels):
            passes = 1 + level * again * rng.randint(0, 2)
            saved[number, level] = graph.tensors[tensor].bytes * passes
    hbm = np.array([[rng.randint(0, 8) * mib * 1.0] * levels for _ in range(operators)])
    np.add.at(hbm, graph.access_operator, saved)
    rate = 1.2e12
    busy = np.array([[rng.uniform(0.0, 2e-5)] * levels for _ in range(operators)])
    other = np.where(np.array(product)[:, None], busy, busy / 4)
    return Residency(graph, glb_bytes, rate, working, hbm, other, np.full(operators, 1e-6), saved)


def as_problem(residency: Residency, **changes: Any) -> ScheduleProblem:
    """Make the scheduling problem whose all-core modes are the first levels."""
    busy_s = np.maximum(residency.other_s, residency.hbm_bytes / residency.hbm_bytes_per_s)
    latency_s = (busy_s[:, 0] + residency.overhead_s).tolist()
    fields: dict[str, Any] = {
        "name": "joint",
        "num_tc": 4,
        "num_vc": 4,
        "operators": tuple(
            ScheduleOperator(f"operator {i}", ("TC", "VC", "none")[i % 3], 2.0 * one, one, 0.5)
            for i, one in enumerate(latency_s)
        ),
        "edges": residency.graph.edges,
        "residency": residency,
    }
    return ScheduleProblem(**{**fields, **changes})
