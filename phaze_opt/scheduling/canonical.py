"""A form of the problem that no longer knows names or the order of writing.

Two problems that differ only in ids, in the order of their operators or in repeated edges have the
same canonical form, hence the same key in a cache and the same schedule bit for bit.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from phaze_opt.scheduling.problem_checks import CORE_TYPES, INTRA_OPERATOR_RULES
from phaze_opt.scheduling.schedule_problem import ScheduleOperator, ScheduleProblem

Attributes = tuple[int, float, float, float, float, float, float, float]


def operator_attributes(operator: ScheduleOperator, bandwidth: bool) -> Attributes:
    """List what matters to the schedule, in a fixed order: core, two latencies, five fractions."""
    core = CORE_TYPES.index(operator.core)
    # An operator on no core has one mode only, whatever the second column says.
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
    """Order operators topologically by what they are and where they stand, not by name.

    Every operator gets a colour from its attributes and the colours of everything before it, and
    one from everything after it (one round of Weisfeiler–Leman refinement in each direction, which
    on an acyclic graph already reaches its ends). Operators of equal colour are in practice
    interchangeable; where they are not, the order is still valid, only less canonical.

    Parameters
    ----------
    attributes
        Of each operator.
    edges
        Index pairs.
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
    """Return the canonical order, and attributes and edges written in it.

    Parameters
    ----------
    problem
        A valid problem.
    order
        Any topological order of it.
    bandwidth
        Whether bandwidths are resources; without, fractions count as 0.
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
    """Hash a canonical form with everything else that the schedule depends on."""
    rule = INTRA_OPERATOR_RULES.index(problem.intra_operator)
    head = (problem.num_tc, problem.num_vc, rule, int(problem.serial), *settings)
    digest = hashlib.blake2b(struct.pack(f"<{len(head)}qq", *head, len(attributes)), digest_size=20)
    for entry in attributes:
        digest.update(struct.pack("<q7d", *entry))
    digest.update(struct.pack(f"<{2 * len(edges)}q", *[end for edge in edges for end in edge]))
    return digest.hexdigest()
