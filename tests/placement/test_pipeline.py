from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.choices import PipelineScheduleName
from phaze_opt.errors import InputError
from phaze_opt.placement.pipeline import PipelineWork, finish_s, in_flight, replay


def closed_form_s(loads_s: list[float], microbatches: int) -> float:
    """Return ``Σ loads + (m − 1) · largest load``."""
    return sum(loads_s) + (microbatches - 1) * max(loads_s)


loads = st.lists(st.floats(0.01, 10.0), min_size=1, max_size=8)
counts = st.integers(1, 24)


@settings(max_examples=100, deadline=None)
@given(loads, counts, st.floats(0.1, 0.9))
def test_closed_form_is_never_below_the_replay(load: list[float], m: int, share: float) -> None:
    """With one share of forward in all loads, Σ L + (m − 1) max L is an upper bound."""
    load_s = np.array(load)
    replayed = finish_s(PipelineWork.of(share * load_s, (1 - share) * load_s), m).max()
    assert replayed <= closed_form_s(load, m) * (1 + 1e-12)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8), counts)
def test_equal_loads_meet_the_closed_form(shares: list[float], m: int) -> None:
    """For equal loads, however they divide into forward and backward, the bound is the time."""
    forward = np.array(shares)
    replayed = finish_s(PipelineWork.of(forward, 1.0 - forward), m).max()
    assert replayed == pytest.approx(len(shares) + m - 1)


@settings(max_examples=100, deadline=None)
@given(loads, st.floats(0.0, 1.0))
def test_one_microbatch_meets_the_closed_form(load: list[float], share: float) -> None:
    """A single microbatch goes down and up the pipeline once."""
    load_s = np.array(load)
    replayed = finish_s(PipelineWork.of(share * load_s, (1 - share) * load_s), 1).max()
    assert replayed == pytest.approx(sum(load))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0.9, 1.1), min_size=1, max_size=16), st.integers(1, 64))
def test_near_equal_loads_are_close_to_the_closed_form(load: list[float], m: int) -> None:
    """The closed form is above the replay by at most half of what the stages differ by.

    As many microbatches as stages, all stages equal but a longer first one, come near it.
    """
    load_s = np.array(load)
    replayed = finish_s(PipelineWork.of(load_s / 3, 2 * load_s / 3), m).max()
    most = (max(load) + min(load)) / (2.0 * min(load))
    assert closed_form_s(load, m) <= most * replayed * (1.0 + 1e-12)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@settings(max_examples=100, deadline=None)
@given(load=loads, m=counts)
def test_both_replays_agree(schedule: PipelineScheduleName, load: list[float], m: int) -> None:
    """The short replay of the search and the full one give the same finishes."""
    forward, backward = np.array(load) / 3, np.array(load) * 2 / 3
    work = PipelineWork.of(forward, backward)
    work = replace(work, head_s=work.forward_s * 1.5, first_saving_s=work.backward_s * 0.25)
    full = replay(work, m, schedule)
    assert full.finish_s.tolist() == finish_s(work, m, schedule).tolist()


@settings(max_examples=100, deadline=None)
@given(loads, counts)
def test_stash_peak_is_what_memory_counts(load: list[float], m: int) -> None:
    """A stage holds min(its place from the end, m) microbatches, under GPipe all of them."""
    forward, backward = np.array(load) / 3, np.array(load) * 2 / 3
    stages = len(load)
    peak = replay(PipelineWork.of(forward, backward), m).peak_microbatches
    assert list(peak) == [min(stages - stage, m) for stage in range(stages)]
    assert list(peak) == list(in_flight(stages, m))
    assert (
        list(replay(PipelineWork.of(forward, backward), m, "gpipe").peak_microbatches)
        == [m] * stages
    )


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4))
def test_interleaving_shrinks_the_bubble(stages: int, rounds: int, chunks: int) -> None:
    """Equal stages cut in v chunks take (m + (p − 1) / v) loads, in closed form and replayed."""
    m = rounds * stages
    forward = np.full((chunks, stages), 1.0 / chunks)
    backward = np.full((chunks, stages), 2.0 / chunks)
    replayed = replay(PipelineWork.of(forward, backward), m, "interleaved").finish_s.max()
    assert replayed == pytest.approx((m + (stages - 1) / chunks) * 3.0)


def test_interleaving_needs_whole_rounds() -> None:
    """Microbatches that the stages do not divide cannot be interleaved."""
    with pytest.raises(InputError, match="6 microbatches cannot be interleaved over 4 stages"):
        replay(PipelineWork.of(np.ones((2, 4)), np.ones((2, 4))), 6, "interleaved")


@settings(max_examples=100, deadline=None)
@given(loads, counts)
def test_starts_respect_the_order(load: list[float], m: int) -> None:
    """Forwards wait for the stage before, backwards for the stage after, and nothing overlaps."""
    forward, backward = np.array(load) / 3, np.array(load) * 2 / 3
    done = replay(PipelineWork.of(forward, backward), m)
    f, b = done.forward_start_s[0], done.backward_start_s[0]
    assert (f[1:] >= f[:-1] + forward[:-1, None] - 1e-9).all()
    assert (b[:-1] >= b[1:] + backward[1:, None] - 1e-9).all()
    for stage in range(len(load)):
        begins = np.concatenate([f[stage], b[stage]])
        lengths = np.repeat([forward[stage], backward[stage]], m)
        order = np.argsort(begins)
        ends = (begins + lengths)[order]
        assert (begins[order][1:] >= ends[:-1] - 1e-9).all()
