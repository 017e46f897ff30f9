"""The canonical form of a problem, without names and without the order of writing.

Two problems that differ only in ids, in the order of their operators or in repeated edges have
equal canonical forms, hence equal keys in a cache and schedules that are equal bit for bit.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from phaze_opt.scheduling.schedule_problem import (
    CORE_TYPES,
    INTRA_OPERATOR_RULES,
    ScheduleOperator,
    ScheduleProblem,
)

Attributes = tuple[int, float, float, float, float, float, float, float]


def operator_attributes(operator: ScheduleOperator, bandwidth: bool) -> Attributes:
    """List the numbers of an operator: index of the core type, two latencies, five fractions."""
    core = CORE_TYPES.index(operator.core)
    # An operator on no core has one mode: its other latency and shares do not count.
    has_modes = operator.core != "none"
    latency_s = operator.latency_s
    intra_s = operator.intra_op_latency_s if has_modes else latency_s
    if not bandwidth:
        return (core, latency_s, intra_s, 0.0, 0.0, 0.0, 0.0, 0.0)
    return (
        core,
        latency_s,
        intra_s,
        operator.hbm_fraction,
        operator.glb_fraction,
        operator.link_fraction,
        operator.intra_op_hbm_fraction if has_modes else operator.hbm_fraction,
        operator.intra_op_glb_fraction if has_modes else operator.glb_fraction,
    )


def canonical_order(
    attributes: Sequence[Attributes], edges: Sequence[tuple[int, int]], order: Sequence[int]
) -> list[int]:
    """Order operators topologically by their attributes and their place in the graph, not by name.

    Every operator gets one colour from its attributes and the colours of its predecessors, and one
    from the first colour and the colours of its successors: one round of Weisfeiler–Leman
    refinement in each direction, which covers the whole of an acyclic graph. Operators of equal
    colours are interchangeable in practice; if they are not, the order is still topological, but
    depends on the order of writing.

    Parameters
    ----------
    attributes
        Attributes of each operator.
    edges
        Precedences as pairs of indices.
    order
        Any topological order.
    """
    count = len(attributes)
    before: list[list[int]] = [[] for _ in range(count)]
    after: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        before[target].append(source)
        after[source].append(target)
    depth = [0] * count
    above = [0] * count
    for index in order:
        colours = sorted([above[other] for other in before[index]])
        above[index] = hash((attributes[index], *colours))
        for other in after[index]:
            depth[other] = max(depth[other], depth[index] + 1)
    below = [0] * count
    for index in reversed(order):
        colours = sorted([below[other] for other in after[index]])
        below[index] = hash((above[index], *colours))
    return sorted(order, key=lambda index: (depth[index], above[index], below[index]))


def canonical_form(
    problem: ScheduleProblem, order: Sequence[int], bandwidth: bool
) -> tuple[list[int], list[Attributes], list[tuple[int, int]]]:
    """Give the canonical order of the operators, and the attributes and edges in this order.

    Parameters
    ----------
    problem
        A valid problem.
    order
        Any topological order of its operators.
    bandwidth
        Whether bandwidths are resources; if not, all shares count as 0.
    """
    attributes = [operator_attributes(operator, bandwidth) for operator in problem.operators]
    edges = sorted(set(problem.edges))
    canonical = canonical_order(attributes, edges, order)
    rank = [0] * len(canonical)
    for position, index in enumerate(canonical):
        rank[index] = position
    return (
        canonical,
        [attributes[index] for index in canonical],
        sorted([(rank[source], rank[target]) for source, target in edges]),
    )


def form_key(
    problem: ScheduleProblem,
    attributes: Sequence[Attributes],
    edges: Sequence[tuple[int, int]],
    settings: tuple[int, ...],
) -> str:
    """Hash a canonical form together with the cores, the rules and the settings of the solver."""
    rule = INTRA_OPERATOR_RULES.index(problem.intra_operator)
    head = (problem.num_tc, problem.num_vc, rule, int(problem.serial), *settings)
    digest = hashlib.blake2b(struct.pack(f"<{len(head)}qq", *head, len(attributes)), digest_size=20)
    for entry in attributes:
        digest.update(struct.pack("<q7d", *entry))
    digest.update(struct.pack(f"<{2 * len(edges)}q", *[end for edge in edges for end in edge]))
    return digest.hexdigest()
