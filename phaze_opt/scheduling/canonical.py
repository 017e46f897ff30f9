"""The canonical form of a problem, without names and without the order of writing.

Two problems that differ only in ids, in the order of their operators or in repeated edges have
equal canonical forms, hence equal keys in a cache and schedules that are equal bit for bit.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.compiled import inlined, lazily_compiled
from phaze_opt.scheduling.problem_columns import ProblemColumns
from phaze_opt.scheduling.schedule_problem import (
    CORE_TYPES,
    INTRA_OPERATOR_RULES,
)
from phaze_opt.scheduling.tuple_hashes import (
    EMPTY,
    add_entry,
    end_tuple,
    hash_float,
    hash_integer,
    sort_first,
)

NO_CORE = CORE_TYPES.index("none")


@dataclass(frozen=True, eq=False)
class CanonicalForm:
    """The content of a problem in the canonical order of its operators.

    Attributes
    ----------
    order : (operators,)
        Place of every operator in the problem.
    core, values
        As in `ProblemColumns`; an operator on no core has the same numbers in both modes, and all
        shares are 0 where bandwidths are no resources.
    edges : (precedences, 2)
        Sorted, without repetition.
    """

    order: IntArray
    core: IntArray
    values: FloatArray
    edges: IntArray


def canonical_form(columns: ProblemColumns, bandwidth: bool) -> CanonicalForm:
    """Order operators topologically by their numbers and their place in the graph, not by name.

    Every operator gets one colour from its numbers and the colours of its predecessors, and one
    from the first colour and the colours of its successors: one round of Weisfeiler–Leman
    refinement in each direction, which covers the whole of an acyclic graph. Operators of equal
    colours are interchangeable in practice; if they are not, the order is still topological, but
    depends on the order of writing.

    Parameters
    ----------
    columns
        A valid problem.
    bandwidth
        Whether bandwidths are resources; if not, all shares count as 0.
    """
    graph = columns.graph
    return CanonicalForm(
        *canonical_order(columns.core, columns.values, graph.edges, graph.order, bandwidth)
    )


@lazily_compiled(
    "Tuple((i8[::1], i8[::1], f8[:, ::1], i8[:, ::1]))"
    "(i8[::1], f8[:, ::1], i8[:, ::1], i8[::1], b1)"
)
def canonical_order(
    core: IntArray, values: FloatArray, edges: IntArray, order: IntArray, bandwidth: bool
) -> tuple[IntArray, IntArray, FloatArray, IntArray]:
    """Give the arrays of a `CanonicalForm`.

    Parameters
    ----------
    core, values, edges
        Of the operators as they are written.
    order
        Any topological order.
    bandwidth
        Whether bandwidths are resources.
    """
    count = len(core)
    values = values.copy()
    for i in range(count):
        if core[i] == NO_CORE:
            # An operator on no core has one mode: its other latency and shares do not count.
            values[i, 1], values[i, 5], values[i, 6] = values[i, 0], values[i, 2], values[i, 3]
        if not bandwidth:
            for column in range(2, values.shape[1]):
                values[i, column] = 0.0
    before, first_before = _neighbours(edges[:, 1], edges[:, 0], count)
    after, first_after = _neighbours(edges[:, 0], edges[:, 1], count)
    depth = np.zeros(count, dtype=np.int64)
    above = np.empty(count, dtype=np.int64)
    below = np.empty(count, dtype=np.int64)
    colours = np.empty(count, dtype=np.int64)
    for i in order:
        own = add_entry(EMPTY, core[i])
        for column in range(values.shape[1]):
            own = add_entry(own, hash_float(values[i, column]))
        own = end_tuple(own, 1 + values.shape[1])
        around = before[first_before[i] : first_before[i + 1]]
        above[i] = _colour(own, above, around, colours)
        for j in after[first_after[i] : first_after[i + 1]]:
            depth[j] = max(depth[j], depth[i] + 1)
    for i in order[::-1]:
        around = after[first_after[i] : first_after[i + 1]]
        below[i] = _colour(hash_integer(above[i]), below, around, colours)
    canonical = order.copy()
    for key in (below, above, depth):
        canonical = canonical[np.argsort(key[canonical], kind="mergesort")]
    rank = np.empty(count, dtype=np.int64)
    rank[canonical] = np.arange(count)
    pairs = np.sort(rank[edges[:, 0]] * count + rank[edges[:, 1]])
    sorted_values = np.empty_like(values)
    for place in range(count):
        for column in range(values.shape[1]):
            sorted_values[place, column] = values[canonical[place], column]
    ends = np.column_stack((pairs // count, pairs % count))
    return canonical, core[canonical], sorted_values, ends


@lazily_compiled("UniTuple(i8[::1], 2)(i8[:], i8[:], i8)")
def _neighbours(ends: IntArray, others: IntArray, count: int) -> tuple[IntArray, IntArray]:
    """Group the other ends of edges by one end, and say where each group begins."""
    first = np.zeros(count + 1, dtype=np.int64)
    for end in ends:
        first[end + 1] += 1
    for i in range(count):
        first[i + 1] += first[i]
    place = first.copy()
    grouped = np.empty(len(ends), dtype=np.int64)
    for e in range(len(ends)):
        grouped[place[ends[e]]] = others[e]
        place[ends[e]] += 1
    return grouped, first


@inlined
def _colour(own: int, of: IntArray, around: IntArray, scratch: IntArray) -> int:
    """Hash an operator's own hash together with the colours of its neighbours, sorted."""
    for place in range(around.shape[0]):
        scratch[place] = of[around[place]]
    sort_first(scratch, around.shape[0])
    state = add_entry(EMPTY, own)
    for place in range(around.shape[0]):
        state = add_entry(state, hash_integer(scratch[place]))
    return end_tuple(state, 1 + around.shape[0])


_ENTRY = np.dtype([("core", "<i8"), ("values", "<f8", 7)])


def form_key(form: CanonicalForm, columns: ProblemColumns, settings: Sequence[int]) -> str:
    """Hash a canonical form together with the cores, the rules and the settings of the solver."""
    rule = INTRA_OPERATOR_RULES.index(columns.intra_operator)
    kind = int(columns.serial) + 2 * int(columns.elastic)
    head = (columns.num_tc, columns.num_vc, rule, kind, *settings, len(form.core))
    entries = np.empty(len(form.core), dtype=_ENTRY)
    entries["core"], entries["values"] = form.core, form.values
    digest = hashlib.blake2b(struct.pack(f"<{len(head)}q", *head), digest_size=20)
    digest.update(entries.tobytes())
    digest.update(form.edges.astype("<i8").tobytes())
    return digest.hexdigest()
