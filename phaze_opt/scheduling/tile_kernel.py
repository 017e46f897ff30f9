"""The compiled search over a lattice of steps; see `tile_lattice`.

A dynamic program over nodes. A state is a node with the mask of its tensors that are resident; of
all ways to reach it only the best is kept, first by seconds, then by HBM bytes. What an arc takes
depends on the mask of its choices alone, so nothing is lost. States that cannot reach the best time
known, even if all arcs that are left take their least time, are dropped, and so are arcs.
"""

from __future__ import annotations

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.compiled import callee, lazily_compiled
from phaze_opt.scheduling.residency_kernel import LevelPrices, best_level

_ROUNDING = 1e-12
"""Relative rounding error of sums of times, by which a state may miss the best time known."""

LatticeArrays = tuple[
    IntArray, IntArray, IntArray, IntArray, IntArray, IntArray, IntArray, IntArray, IntArray,
    IntArray, IntArray, IntArray, IntArray, IntArray,
]  # fmt: skip
"""Arrays of a `tile_lattice.TileLattice`:

- where the states of every node begin: (nodes + 1,);
- of every arc: node before, node after, number of bits that are resident before;
- where the bits of every arc begin, and of every bit its bytes, its bits at the node after, and the
  bits of the arc that may not be chosen with it;
- where the operators of every arc begin, and the row of each: of a whole operator its number, of a
  tile operator its place behind all of these;
- where what each of these operators saves begins, and of each saving its access, the bits of which
  one is needed, and the bytes that flow nevertheless.
"""
_LATTICE_TYPE = f"UniTuple(i8[::1], {14})"

RowPrices = LevelPrices
"""Of whole and of tile operators."""
_PRICES_TYPE = "Tuple((i8[:, ::1], f8[:, ::1], f8[:, ::1], f8[::1], f8[:, ::1]))"


@callee(f"i8({_LATTICE_TYPE}, {_PRICES_TYPE}, i8, i8)")
def _fitting_bits(lattice: LatticeArrays, prices: RowPrices, glb_bytes: int, arc: int) -> int:
    """Give the bits of an arc that fit beside the operator that needs most, each by itself."""
    first_bit, bit_bytes, first_row, row_of = lattice[4], lattice[5], lattice[8], lattice[9]
    most = 0
    for at in range(first_row[arc], first_row[arc + 1]):
        most = max(most, prices[0][row_of[at]].min())
    fitting = 0
    for bit in range(first_bit[arc], first_bit[arc + 1]):
        if bit_bytes[bit] <= glb_bytes - most:
            fitting |= 1 << (bit - first_bit[arc])
    return fitting


@callee(f"f8({_LATTICE_TYPE}, {_PRICES_TYPE}, i8, f8, i8, i8)")
def _least_of_arc(
    lattice: LatticeArrays, prices: RowPrices, glb_bytes: int, rate: float, arc: int, allowed: int
) -> float:
    """Give a bound on the time of an arc: all that may be chosen needs no room, and no load."""
    first_row, row_of = lattice[8], lattice[9]
    first_entry, entry_access, entry_bits, entry_load = lattice[10:]
    working_bytes, hbm_bytes, other_s, overhead_s, saved_bytes = prices
    least_s = 0.0
    for at in range(first_row[arc], first_row[arc + 1]):
        row, fastest_s = row_of[at], np.inf
        for level in range(working_bytes.shape[1]):
            if working_bytes[row, level] > glb_bytes:
                continue
            flow = hbm_bytes[row, level]
            for entry in range(first_entry[at], first_entry[at + 1]):
                if allowed & entry_bits[entry]:
                    saved = saved_bytes[entry_access[entry], level]
                    # What saves less than it loads is not chosen for this operator.
                    flow -= max(saved - entry_load[entry], 0.0)
            fastest_s = min(fastest_s, max(other_s[row, level], flow / rate))
        least_s += fastest_s + overhead_s[row]
    return least_s


@lazily_compiled(
    f"Tuple((f8, f8, i8[::1], i8[::1]))({_LATTICE_TYPE}, {_PRICES_TYPE}, i8, f8, i8, f8, f8)"
)
def search_lattice(
    lattice: LatticeArrays,
    prices: RowPrices,
    glb_bytes: int,
    rate: float,
    operators: int,
    upper_s: float,
    upper_bytes: float,
) -> tuple[float, float, IntArray, IntArray]:
    """Find the best path through a lattice.

    Parameters
    ----------
    lattice, prices
        The problem.
    glb_bytes, rate
        Size of the global buffer, and bytes per second of HBM.
    operators
        Their number.
    upper_s, upper_bytes
        Makespan and HBM bytes of the best plan known; only better plans are searched.

    Returns
    -------
    makespan_s, hbm_bytes
        Infinity twice if nothing better was found.
    arcs, masks
        The arcs of the path, and what is chosen in each.
    """
    (
        first_state, arc_before, arc_after, arc_crossing, first_bit, bit_bytes, bit_after,
        bit_clashes, first_row, row_of, first_entry, entry_access, entry_bits, entry_load,
    ) = lattice  # fmt: skip
    nodes, arcs = first_state.shape[0] - 1, arc_before.shape[0]
    none = np.empty(0, dtype=np.int64)
    # The least times of arcs, and from every node to the last one.
    fitting, fastest_s = np.empty(arcs, dtype=np.int64), np.empty(arcs)
    left_s = np.full(nodes, np.inf)
    left_s[nodes - 1] = 0.0
    most_bits = 0
    for arc in range(arcs - 1, -1, -1):
        most_bits = max(most_bits, first_bit[arc + 1] - first_bit[arc])
        fitting[arc] = _fitting_bits(lattice, prices, glb_bytes, arc)
        fastest_s[arc] = _least_of_arc(lattice, prices, glb_bytes, rate, arc, fitting[arc])
        before, after = arc_before[arc], arc_after[arc]
        left_s[before] = min(left_s[before], fastest_s[arc] + left_s[after])
    if left_s[0] > upper_s * (1.0 + _ROUNDING):
        return np.inf, np.inf, none, none
    size = first_state[nodes]
    best_s, best_bytes = np.full(size, np.inf), np.full(size, np.inf)
    came_arc, came_mask = np.full(size, -1), np.zeros(size, dtype=np.int64)
    used = np.zeros(1 << most_bits, dtype=np.int64)
    out = np.zeros(1 << most_bits, dtype=np.int64)
    best_s[0] = best_bytes[0] = 0.0
    for arc in range(arcs):
        before, after, begin = arc_before[arc], arc_after[arc], first_bit[arc]
        own, last = first_row[arc], first_row[arc + 1]
        latest_s = (upper_s - left_s[after]) + upper_s * _ROUNDING
        earliest_s = np.inf
        for state in range(first_state[before], first_state[before + 1]):
            earliest_s = min(earliest_s, best_s[state])
        allowed = fitting[arc]
        if earliest_s + fastest_s[arc] > latest_s:
            continue
        past_bits = (1 << arc_crossing[arc]) - 1
        mask = 0
        while True:
            # Masks come in rising order, so that the one without the lowest bit came before.
            clashes = False
            if mask:
                rest = mask & (mask - 1)
                bit, low = begin, mask ^ rest
                while low > 1:
                    low >>= 1
                    bit += 1
                used[mask] = used[rest] + bit_bytes[bit]
                out[mask] = out[rest] | bit_after[bit]
                for other in range(begin, first_bit[arc + 1]):
                    if mask >> (other - begin) & 1 and bit_clashes[other] & mask:
                        clashes = True
            past = first_state[before] + (mask & past_bits)
            if (
                not clashes
                and used[mask] <= glb_bytes
                and best_s[past] + fastest_s[arc] <= latest_s
            ):
                end_s, flowed = best_s[past], best_bytes[past]
                for at in range(own, last):
                    _, seconds, flow = best_level(
                        row_of[at], glb_bytes - used[mask], rate, prices, entry_access,
                        entry_bits, entry_load, first_entry[at], first_entry[at + 1], mask,
                    )  # fmt: skip
                    end_s += seconds
                    flowed += flow
                    if end_s > latest_s:
                        break
                state = first_state[after] + out[mask]
                if end_s <= latest_s and (
                    end_s < best_s[state] or (end_s == best_s[state] and flowed < best_bytes[state])
                ):
                    best_s[state], best_bytes[state] = end_s, flowed
                    came_arc[state], came_mask[state] = arc, mask
            if mask == allowed:
                break
            mask = (mask - allowed) & allowed
    state = size - 1
    makespan_s, flowed = best_s[state], best_bytes[state]
    if (
        not makespan_s < np.inf
        or makespan_s > upper_s
        or (makespan_s == upper_s and flowed >= upper_bytes)
    ):
        return np.inf, np.inf, none, none
    path, chosen = np.empty(operators, dtype=np.int64), np.empty(operators, dtype=np.int64)
    steps = 0
    while state > 0:
        arc = came_arc[state]
        path[steps], chosen[steps] = arc, came_mask[state]
        steps += 1
        past_bits = (1 << arc_crossing[arc]) - 1
        state = first_state[arc_before[arc]] + (came_mask[state] & past_bits)
    return makespan_s, flowed, path[:steps][::-1].copy(), chosen[:steps][::-1].copy()


@lazily_compiled(
    f"void({_LATTICE_TYPE}, {_PRICES_TYPE}, i8, f8, i8[::1], i8[::1], i8[::1], f8[::1], f8[::1])"
)
def run_path(
    lattice: LatticeArrays,
    prices: RowPrices,
    glb_bytes: int,
    rate: float,
    arcs: IntArray,
    masks: IntArray,
    level: IntArray,
    flow_bytes: FloatArray,
    seconds: FloatArray,
) -> None:
    """Run the operators of a path.

    Parameters
    ----------
    lattice, prices, glb_bytes, rate, arcs, masks
        As of `search_lattice`.
    level, flow_bytes, seconds
        Receive level, HBM bytes and time of every operator, in the order in which they run.
    """
    first_bit, bit_bytes, first_row, row_of = lattice[4], lattice[5], lattice[8], lattice[9]
    first_entry, entry_access, entry_bits, entry_load = lattice[10:]
    place = 0
    for step in range(arcs.shape[0]):
        arc, mask, free = arcs[step], masks[step], glb_bytes
        for bit in range(first_bit[arc], first_bit[arc + 1]):
            if mask >> (bit - first_bit[arc]) & 1:
                free -= bit_bytes[bit]
        for at in range(first_row[arc], first_row[arc + 1]):
            level[place], seconds[place], flow_bytes[place] = best_level(
                row_of[at], free, rate, prices, entry_access, entry_bits, entry_load,
                first_entry[at], first_entry[at + 1], mask,
            )  # fmt: skip
            place += 1
