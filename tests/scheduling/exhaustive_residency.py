"""The shortest plan of a joint problem by trying every order and every set of resident tensors."""

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.scheduling.residency import Residency


def shortest_joint_s(residency: Residency) -> float:
    """Find the least makespan over all orders, resident tensors and levels.

    What an operator takes depends on the resident tensors and on the operators that came before
    it, not on their order: so the least time to have run a set of operators is kept for every such
    set, and for every set of resident tensors at once.
    """
    graph = residency.graph
    n, count = graph.operators, len(graph.tensors)
    choices = np.arange(1 << count)
    resident = [(choices >> i & 1).astype(bool) for i in range(count)]
    needs = [{a for a, b in graph.edges if b == one} for one in range(n)]
    best = {frozenset[int](): np.zeros(len(choices))}
    for _ in range(n):
        longer: dict[frozenset[int], FloatArray] = {}
        for done, time_s in best.items():
            for one in range(n):
                if one in done or not needs[one] <= done:
                    continue
                end_s = time_s + duration_s(residency, one, done, resident)
                after = done | {one}
                longer[after] = np.minimum(longer.get(after, np.inf), end_s)
        best = longer
    return float(best[frozenset(range(n))].min())


def duration_s(
    residency: Residency, one: int, done: frozenset[int], resident: list[np.ndarray]
) -> FloatArray:
    """Give what an operator takes after others, for every set of resident tensors."""
    graph = residency.graph
    size = len(resident[0]) if resident else 1
    held = np.zeros(size)
    for stays, tensor in zip(resident, graph.tensors, strict=True):
        touched = set(tensor.accesses)
        if one in touched or (touched & done and touched - done):
            held = held + stays * tensor.bytes
    best = np.full(size, np.inf)
    for level in range(residency.levels):
        flow = np.full(size, residency.hbm_bytes[one, level])
        for number, (i, operator) in enumerate(graph.accesses):
            tensor = graph.tensors[i]
            if operator != one:
                continue
            if not (tensor.outlives and tensor.producer == one):
                flow = flow - resident[i] * residency.saved_bytes[number, level]
            if tensor.producer is None and not set(tensor.readers) & done:
                flow = flow + resident[i] * tensor.bytes
        busy_s = np.maximum(residency.other_s[one, level], flow / residency.hbm_bytes_per_s)
        fits = held + residency.working_bytes[one, level] <= residency.glb_bytes
        best = np.minimum(best, np.where(fits, busy_s + residency.overhead_s[one], np.inf))
    return best
