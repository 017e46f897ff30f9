"""The compiled search over one frame, and the least time of every operator.

The search is a dynamic program over positions. A state is the mask of the slots whose tensors are
resident and stay for the next position; of all ways to reach it only the best is kept, first by
seconds, then by HBM bytes. What an operator takes depends on the tensors that it makes or reads,
all of which are in the mask while it runs, so nothing is lost: the result is the best choice of
levels and resident candidates in the frame's order. States that cannot reach the best time known,
even if every operator that is left takes its least time, are dropped.
"""

from __future__ import annotations

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.compiled import callee, inlined, lazily_compiled

_MOST_SUBSET = 10
"""Tensors of an operator of which all subsets are tried; of more, all count as resident."""

_ROUNDING = 1e-12
"""Relative rounding error of sums of times, by which a state may miss the best time known."""

LevelPrices = tuple[IntArray, FloatArray, FloatArray, FloatArray, FloatArray]
"""Of every operator, by levels of tiles: working_bytes, hbm_bytes, other_s; its overhead_s; and by
accesses and levels saved_bytes."""

Chip = tuple[IntArray, FloatArray, FloatArray, FloatArray, FloatArray, IntArray]
"""Numbers of a `residency.Residency`: working_bytes, hbm_bytes, other_s, overhead_s,
effective_saved_bytes; and the bytes of every tensor."""
_CHIP_TYPE = "Tuple((i8[:, ::1], f8[:, ::1], f8[:, ::1], f8[::1], f8[:, ::1], i8[::1]))"

Onces = tuple[BoolArray, FloatArray, FloatArray]
"""Which operators may also work in no room and read nothing twice; what each then moves from and to
HBM, by operator; and of this what each access saves."""
_ONCES_TYPE = "Tuple((boolean[::1], f8[::1], f8[::1]))"

FrameArrays = tuple[
    IntArray, IntArray, IntArray, IntArray, IntArray, IntArray, IntArray, IntArray, IntArray,
    IntArray,
]  # fmt: skip
"""Arrays of a `residency_frames.Frame`, in the order of its attributes."""
_FRAME_TYPE = f"UniTuple(i8[::1], {10})"


@inlined
def best_level(
    operator: int,
    free: int,
    rate: float,
    prices: LevelPrices,
    access: IntArray,
    access_bit: IntArray,
    access_load: IntArray,
    lowest: int,
    highest: int,
    mask: int,
) -> tuple[int, float, float]:
    """Give level, seconds and HBM bytes of an operator, the best of the levels that fit.

    ``lowest`` and ``highest`` say which accesses are the operator's; ``free`` are the bytes beside
    the resident tensors. Without a level that fits, the level is -1, and the others are endless.
    """
    working_bytes, hbm_bytes, other_s, overhead_s, saved_bytes = prices
    best, best_s, best_bytes = -1, np.inf, np.inf
    for level in range(working_bytes.shape[1]):
        if working_bytes[operator, level] > free:
            continue
        flow = hbm_bytes[operator, level]
        for number in range(lowest, highest):
            if mask & access_bit[number]:
                flow -= saved_bytes[access[number], level]
                flow += access_load[number]
        flow = max(flow, 0.0)
        seconds = max(other_s[operator, level], flow / rate) + overhead_s[operator]
        if best < 0 or seconds < best_s or (seconds == best_s and flow < best_bytes):
            best, best_s, best_bytes = level, seconds, flow
    return best, best_s, best_bytes


@callee("f8(f8[::1], i8[::1], i8)")
def _most_saved(gain: FloatArray, size: IntArray, free: int) -> float:
    """Give the largest sum of gains whose sizes fit, or a bound on it where there are many."""
    whole, needed = 0.0, 0
    for place in range(size.shape[0]):
        whole += gain[place]
        needed += size[place]
    if needed <= free or size.shape[0] > _MOST_SUBSET:
        return whole
    most = 0.0
    for subset in range(1 << size.shape[0]):
        total, taken = 0.0, 0
        for place in range(size.shape[0]):
            if subset >> place & 1:
                total += gain[place]
                taken += size[place]
        if taken <= free:
            most = max(most, total)
    return most


@lazily_compiled(
    f"void({_CHIP_TYPE}, {_ONCES_TYPE}, i8[::1], i8[::1], i8[::1], i8[::1], i8, f8, f8[::1])"
)
def least_seconds(
    chip: Chip,
    onces: Onces,
    first: IntArray,
    access: IntArray,
    access_tensor: IntArray,
    load: IntArray,
    glb_bytes: int,
    rate: float,
    least_s: FloatArray,
) -> None:
    """Give the least time of every operator: of its tensors all that fit at once are resident.

    Parameters
    ----------
    chip, glb_bytes, rate
        The problem.
    onces
        One more level of some operators, whose other time is the least of all levels.
    first, access
        Accesses of every operator: numbers, and where those of each operator begin.
    access_tensor, load
        Of every access: its tensor, and the bytes that it reads although the tensor is resident,
        whatever the order.
    least_s
        (operators,): receives the times; infinity where no level fits.
    """
    working_bytes, hbm_bytes, other_s, overhead_s, saved_bytes, tensor_bytes = chip
    may_once, once_bytes, once_saved_bytes = onces
    levels = working_bytes.shape[1]
    for operator in range(least_s.shape[0]):
        least_s[operator] = np.inf
        count = first[operator + 1] - first[operator]
        gain = np.empty(count)
        size = np.empty(count, dtype=np.int64)
        for level in range(levels + may_once[operator]):
            once = level == levels
            free = glb_bytes
            if once:
                moved_bytes, busy_s = once_bytes[operator], other_s[operator].min()
            else:
                free -= working_bytes[operator, level]
                moved_bytes, busy_s = hbm_bytes[operator, level], other_s[operator, level]
            if free < 0:
                continue
            useful = 0
            for place in range(first[operator], first[operator + 1]):
                number = access[place]
                saved = once_saved_bytes[number] if once else saved_bytes[number, level]
                saved -= load[number]
                if saved > 0.0 and tensor_bytes[access_tensor[number]] <= free:
                    gain[useful] = saved
                    size[useful] = tensor_bytes[access_tensor[number]]
                    useful += 1
            most = _most_saved(gain[:useful], size[:useful], free)
            flow_s = max(moved_bytes - most, 0.0) / rate
            seconds = max(busy_s, flow_s) + overhead_s[operator]
            least_s[operator] = min(least_s[operator], seconds)


@lazily_compiled(
    f"UniTuple(f8, 2)({_FRAME_TYPE}, {_CHIP_TYPE}, i8, f8, f8[::1], f8, f8, i8, i8[::1], "
    "boolean[::1])"
)
def search_frame(
    frame: FrameArrays,
    chip: Chip,
    glb_bytes: int,
    rate: float,
    least_s: FloatArray,
    upper_s: float,
    upper_bytes: float,
    slots: int,
    level: IntArray,
    resident: BoolArray,
) -> tuple[float, float]:
    """Find the best levels and resident candidates of a frame.

    Parameters
    ----------
    frame, chip
        The problem.
    glb_bytes, rate
        Size of the global buffer, and bytes per second of HBM.
    least_s
        Least time of every operator, from `least_seconds`: (operators,).
    upper_s, upper_bytes
        Makespan and HBM bytes of the best plan known; only better plans are searched.
    slots
        Number of slots of the frame.
    level, resident
        (operators,), (tensors,): receive the choice, if it is better.

    Returns
    -------
    Makespan and HBM bytes, or infinity twice if nothing better was found.
    """
    (
        order, access_first, access, access_bit, access_load, live, kept, begin_first, begin_bit,
        begin_tensor,
    ) = frame  # fmt: skip
    n = order.shape[0]
    size = 1 << slots
    left_s = np.zeros(n)
    for position in range(n - 1, 0, -1):
        left_s[position - 1] = left_s[position] + least_s[order[position]]
    bytes_of_bit = np.zeros(size, dtype=np.int64)
    used = np.zeros(size, dtype=np.int64)
    now_s, now_bytes = np.full(size, np.inf), np.full(size, np.inf)
    next_s, next_bytes = np.full(size, np.inf), np.full(size, np.inf)
    came_from = np.empty((n, size), dtype=np.int32)
    chosen_level = np.empty((n, size), dtype=np.int16)
    now_s[0] = now_bytes[0] = 0.0
    before = 0
    for position in range(n):
        operator, here, keep = order[position], live[position], kept[position]
        for number in range(begin_first[position], begin_first[position + 1]):
            bytes_of_bit[begin_bit[number]] = chip[5][begin_tensor[number]]
        latest_s = (upper_s - left_s[position]) + upper_s * _ROUNDING
        mask = 0
        while True:
            # Masks come in rising order, so that the one without the lowest bit came before.
            if mask:
                rest = mask & (mask - 1)
                used[mask] = used[rest] + bytes_of_bit[mask ^ rest]
            past = mask & before
            if now_s[past] < np.inf and used[mask] <= glb_bytes:
                best, seconds, flow = best_level(
                    operator, glb_bytes - used[mask], rate, chip[:5], access, access_bit,
                    access_load, access_first[position], access_first[position + 1], mask,
                )  # fmt: skip
                end_s, flowed = now_s[past] + seconds, now_bytes[past] + flow
                state = mask & keep
                if (
                    best >= 0
                    and end_s <= latest_s
                    and (
                        end_s < next_s[state]
                        or (end_s == next_s[state] and flowed < next_bytes[state])
                    )
                ):
                    next_s[state], next_bytes[state] = end_s, flowed
                    came_from[position, state], chosen_level[position, state] = mask, best
            if mask == here:
                break
            mask = (mask - here) & here
        mask = 0
        while True:
            now_s[mask] = now_bytes[mask] = np.inf
            if mask == before:
                break
            mask = (mask - before) & before
        now_s, next_s, now_bytes, next_bytes = next_s, now_s, next_bytes, now_bytes
        before = keep
    makespan_s, flowed = now_s[0], now_bytes[0]
    if makespan_s > upper_s or (makespan_s == upper_s and flowed >= upper_bytes):
        return np.inf, np.inf
    resident[:] = False
    mask = 0
    for position in range(n - 1, -1, -1):
        state = mask & kept[position]
        mask = came_from[position, state]
        level[order[position]] = chosen_level[position, state]
        for number in range(begin_first[position], begin_first[position + 1]):
            if mask & begin_bit[number]:
                resident[begin_tensor[number]] = True
    return makespan_s, flowed
