"""Time of one batch through a pipeline, event by event, and what its stages hold.

A stage runs one thing at a time. The forward of a microbatch waits for the same one on the stage
before, its backward for the one on the stage after. Receiving is part of the work.

Sources: D. Narayanan et al., "PipeDream" (SOSP 2019) and "Efficient large-scale language model
training on GPU clusters using Megatron-LM" (SC 2021): 1F1B and its interleaved form; Y. Huang et
al., "GPipe" (NeurIPS 2019).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.choices import PipelineScheduleName
from phaze_opt.compiled import lazily_compiled
from phaze_opt.errors import InputError
from phaze_opt.placement.closed_form import held_at


@dataclass(frozen=True, eq=False)
class PipelineWork:
    """What the stages of a pipeline do for one microbatch; all arrays are ``(chunks, stages)``.

    Attributes
    ----------
    forward_s, backward_s
        Receives included.
    first_saving_s
        By how much the first microbatch's backward is shorter.
    head_s
        Before which the first microbatch's forward cannot start.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    first_saving_s: FloatArray
    head_s: FloatArray

    @classmethod
    def of(cls, forward_s: ArrayLike, backward_s: ArrayLike) -> PipelineWork:
        """Build the work of stages whose microbatches are all alike, of shape ``(stages,)`` too."""
        forward = np.atleast_2d(np.asarray(forward_s, dtype=np.float64))
        backward = np.atleast_2d(np.asarray(backward_s, dtype=np.float64))
        return cls(forward, backward, np.zeros_like(forward), np.zeros_like(forward))


@dataclass(frozen=True)
class Replay:
    """When everything of one batch happened.

    Attributes
    ----------
    finish_s : (stages,)
        End of the last backward of each stage.
    forward_start_s, backward_start_s : (chunks, stages, microbatches)
        Starts; one chunk unless interleaved.
    peak_microbatches : (stages,)
        Largest number of forwards done whose backward is not; chunks count one each.
    weight_start_s : (chunks, stages, microbatches)
        Starts of the weight gradients, where a schedule makes them apart from the backward.
    """

    finish_s: FloatArray
    forward_start_s: FloatArray
    backward_start_s: FloatArray
    peak_microbatches: IntArray
    weight_start_s: FloatArray | None = None


def in_flight(stages: int, microbatches: int, schedule: PipelineScheduleName = "1f1b") -> IntArray:
    """Return how many microbatches each stage holds at most, first stage first."""
    return held_by_place(stages, microbatches, schedule)[:0:-1].copy()


@lru_cache(maxsize=512)
def held_by_place(
    most_stages: int, microbatches: int, schedule: PipelineScheduleName = "1f1b"
) -> IntArray:
    """Return the same by place from the end of the pipeline; index 0 is not a place.

    Who asks again gets the same array, which nobody may change.
    """
    held = np.arange(most_stages + 1, dtype=np.int64)
    held[1:] = held_at(held[1:], microbatches, schedule == "gpipe")
    return held


def interleaved_in_flight(stages: int, microbatches: int, chunks: int) -> IntArray:
    """Return how many chunks' stashes each stage of an interleaved pipeline holds at most.

    Megatron-LM runs 2·(p − s − 1) + (v − 1)·p forwards before the first pair, so that the first
    stage holds p · (1 + (p − 1) / (p · v)) microbatches of its layers.
    """
    if chunks == 1:
        return in_flight(stages, microbatches)
    ahead = 2 * np.arange(stages - 1, -1, -1, dtype=np.int64) + (chunks - 1) * stages + 1
    return np.minimum(ahead, microbatches * chunks)


def alone_share(stages: int, microbatches: int, chunks: int) -> float:
    """Return the share of the microbatches of which no pass runs beside one of another microbatch.

    Where passes run in pairs (`phaze_opt.passes.paired`), even the last stage runs some forwards,
    and at the end as many backwards, alone.
    """
    before = interleaved_in_flight(stages, microbatches, chunks)[-1]
    return float(before) / (microbatches * chunks)


def finish_s(
    work: PipelineWork, microbatches: int, schedule: PipelineScheduleName = "1f1b"
) -> FloatArray:
    """Return when each stage ends its last backward, replaying every event.

    Parameters
    ----------
    work
        Of one chunk.
    microbatches
        Per batch.
    schedule
        ``"1f1b"`` or ``"gpipe"``.

    Returns
    -------
    finish_s : (stages,)
    """
    (forward_s,), (backward_s,) = work.forward_s, work.backward_s
    (saving_s,), (head_s,) = work.first_saving_s, work.head_s
    limit = in_flight(len(forward_s), microbatches, schedule)
    return finished_s(forward_s, backward_s, saving_s, head_s, limit, microbatches)


def replay(
    work: PipelineWork, microbatches: int, schedule: PipelineScheduleName = "1f1b"
) -> Replay:
    """Replay a batch event by event, for interleaved schedules too.

    Parameters
    ----------
    work
        More than one chunk needs the interleaved schedule; model chunk ``c`` of stage ``s`` follows
        chunk ``c`` of stage ``s − 1``, and chunk ``c − 1`` of the last stage where ``s`` is the
        first.
    microbatches
        Per batch.
    schedule
        See `phaze_opt.training.Training`.

    Raises
    ------
    InputError
        If the microbatches cannot be interleaved.
    """
    chunks, stages = work.forward_s.shape
    _check_interleaving(stages, microbatches, chunks)
    if chunks > 1:
        warm_up = interleaved_in_flight(stages, microbatches, chunks)
    else:
        warm_up = in_flight(stages, microbatches, schedule)
    group = stages if chunks > 1 else 1
    starts = np.zeros((2, chunks, stages, microbatches))
    finish = np.zeros(stages)
    peak = np.zeros(stages, dtype=np.int64)
    arrays = work.forward_s, work.backward_s, work.first_saving_s, work.head_s
    _replay(*arrays, warm_up, group, starts, finish, peak)
    return Replay(finish, starts[0], starts[1], peak)


def _check_interleaving(stages: int, microbatches: int, chunks: int) -> None:
    """Refuse what Megatron-LM's interleaved schedule cannot run."""
    if chunks > 1 and microbatches % stages:
        raise InputError(
            f"{microbatches} microbatches cannot be interleaved over {stages} stages: the stages "
            "must divide them."
        )


@lazily_compiled(
    "float64[::1](float64[::1], float64[::1], float64[::1], float64[::1], int64[::1], int64)"
)
def finished_s(
    forward_s: FloatArray,
    backward_s: FloatArray,
    first_saving_s: FloatArray,
    head_s: FloatArray,
    limit: IntArray,
    microbatches: int,
) -> FloatArray:
    """Replay a pipeline without chunks; ends of the last ``limit`` forwards are enough to keep."""
    stages = len(forward_s)
    forward_end = np.zeros((stages, microbatches))
    backward_end = np.zeros((stages, microbatches))
    forwards = np.zeros(stages, dtype=np.int64)
    backwards = np.zeros(stages, dtype=np.int64)
    clock = head_s.copy()
    left = 2 * stages * microbatches
    while left > 0:
        for stage in range(stages):
            while True:
                done, undone = forwards[stage], backwards[stage]
                if done < microbatches and done - undone < limit[stage]:
                    if stage > 0 and forwards[stage - 1] <= done:
                        break
                    ready = forward_end[stage - 1, done] if stage > 0 else 0.0
                    clock[stage] = max(clock[stage], ready) + forward_s[stage]
                    forward_end[stage, done] = clock[stage]
                    forwards[stage] = done + 1
                elif undone < microbatches:
                    if stage < stages - 1 and backwards[stage + 1] <= undone:
                        break
                    ready = backward_end[stage + 1, undone] if stage < stages - 1 else 0.0
                    work = backward_s[stage] - (first_saving_s[stage] if undone == 0 else 0.0)
                    clock[stage] = max(clock[stage], ready) + work
                    backward_end[stage, undone] = clock[stage]
                    backwards[stage] = undone + 1
                else:
                    break
                left -= 1
    return clock


@lazily_compiled(
    "void(float64[:,::1], float64[:,::1], float64[:,::1], float64[:,::1], int64[::1], int64,"
    " float64[:,:,:,::1], float64[::1], int64[::1])"
)
def _replay(
    forward_s: FloatArray,
    backward_s: FloatArray,
    first_saving_s: FloatArray,
    head_s: FloatArray,
    warm_up: IntArray,
    group: int,
    starts: FloatArray,
    finish: FloatArray,
    peak: IntArray,
) -> None:
    """Fill starts, ends of the stages and peaks.

    The n-th forward of a stage is of chunk ``(n // group) % chunks``.
    """
    chunks, stages = forward_s.shape
    microbatches = starts.shape[3]
    total = chunks * microbatches
    ends = np.full(starts.shape, -1.0)
    forwards = np.zeros(stages, dtype=np.int64)
    backwards = np.zeros(stages, dtype=np.int64)
    clock = np.zeros(stages)
    left = 2 * stages * total
    while left > 0:
        for stage in range(stages):
            while True:
                is_forward = (
                    forwards[stage] < total and forwards[stage] - backwards[stage] < warm_up[stage]
                )
                count = forwards[stage] if is_forward else backwards[stage]
                if count >= total:
                    break
                turn = (count // group) % chunks
                chunk = turn if is_forward else chunks - 1 - turn
                microbatch = count // (group * chunks) * group + count % group
                pass_index = 0 if is_forward else 1
                step = -1 if is_forward else 1
                before, chunk_before = stage + step, chunk
                if before < 0 or before >= stages:
                    before, chunk_before = before % stages, chunk + step
                ready = 0.0
                if 0 <= chunk_before < chunks:
                    ready = ends[pass_index, chunk_before, before, microbatch]
                    if ready < 0.0:
                        break
                start = max(clock[stage], ready)
                work = forward_s[chunk, stage] if is_forward else backward_s[chunk, stage]
                if microbatch == 0:
                    if is_forward:
                        start = max(start, head_s[chunk, stage])
                    else:
                        work -= first_saving_s[chunk, stage]
                starts[pass_index, chunk, stage, microbatch] = start
                clock[stage] = start + work
                ends[pass_index, chunk, stage, microbatch] = clock[stage]
                if is_forward:
                    forwards[stage] += 1
                    peak[stage] = max(peak[stage], forwards[stage] - backwards[stage])
                else:
                    backwards[stage] += 1
                left -= 1
    finish[:] = clock
