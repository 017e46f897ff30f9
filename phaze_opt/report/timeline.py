"""The timeline of a batch through its pipeline, for Perfetto and Chrome: a lane per stage.

Beside it, each from time 0, the passes of the distinct layers: what their cores do, and which
tensors stay on the chip.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from phaze_opt.passes.scheduled import ScheduledPass
from phaze_opt.placement.describe import placement_replay
from phaze_opt.placement.pipeline import Replay
from phaze_opt.placement.placement_problem import Placement, Stage
from phaze_opt.report.gantt import gantt_page
from phaze_opt.scheduling.perfetto import Event, name_event, slice_event, trace_events, write_events
from phaze_opt.user_files import write_file

_PROCESS = 1

_Slice = tuple[str, tuple[float, float], Event]


def write_timeline(path: Path, placement: Placement, passes: Iterable[ScheduledPass] = ()) -> None:
    """Write the events of one batch, and those of single passes, to a file.

    Parameters
    ----------
    path
        A name that ends in ``.html`` gets a drawing, any other one the events for Perfetto.
    placement
        Of the layers.
    passes
        Of the distinct layers; a process for each.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    write_drawing_or_events(path, [*timeline_events(placement), *pass_events(passes)])


def write_drawing_or_events(path: Path, events: Sequence[Event]) -> None:
    """Write events as a Gantt chart where the name ends in ``.html``, else for Perfetto.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    if path.suffix != ".html":
        write_events(path, events)
        return
    write_file(path, gantt_page(events, path.stem))


def pass_events(passes: Iterable[ScheduledPass]) -> list[Event]:
    """Return the events of single passes, a process for each; those of a batch come before them."""
    # The forward that runs again under full recompute is one pass.
    return [
        event
        for process, name in enumerate(dict.fromkeys(passes), start=_PROCESS + 1)
        for event in trace_events(name.problem, name.schedule, process)
    ]


def timeline_events(placement: Placement) -> list[Event]:
    """Return the events of one batch on one replica; spans without duration have none.

    A stage's lane shows the forward, recompute and backward of every microbatch, and the weight
    gradients where the schedule makes them apart, as the event replay has them, with receives in
    the pass that waits for them; after its last backward the exposed gradient synchronisation and
    the optimizer step. A gather of the weights once per batch stands before the first forward, or
    after the optimizer step where nothing hides it. A second lane shows the gradients that replicas
    exchange beside the last backward and after it. The last event of all lanes ends with the batch,
    unless stages begin and end one after another, as those do that make weight gradients apart.
    """
    done = placement_replay(placement)
    process = f"{placement.degrees_text} {placement.pipeline_schedule}"
    events = [name_event("process_name", _PROCESS, 0, process)]
    for index, stage in enumerate(placement.stages):
        lane = index + 1
        label = f"stage {lane}: {stage.layers[0]} to {stage.layers[-1]}"
        events.append(name_event("thread_name", _PROCESS, lane, label))
        slices = [*_microbatch_slices(done, index, stage), *_final_slices(done, index, stage)]
        slices.sort(key=lambda entry: entry[1])
        events += [
            slice_event(kind, kind, span_s, _PROCESS, lane, args)
            for kind, span_s, args in slices
            if span_s[1] > span_s[0]
        ]
        events += _network_events(done, index, stage, lane + len(placement.stages))
    return events


def _network_events(done: Replay, index: int, stage: Stage, lane: int) -> list[Event]:
    """Show what the replicas of a stage exchange after the last backward and beside it.

    The hidden part is drawn where it ends, as long as it takes; where gradients are sent in every
    microbatch there is no such part.
    """
    kind = "gradient_synchronisation"
    gradients = next((each for each in stage.communication if each.kind == kind), None)
    once_s = stage.synchronisation_s
    if gradients is None or gradients.hidden_s <= 0.0 or gradients.exposed_s > once_s:
        return []
    end_s = float(done.finish_s[index])
    hidden_s = min(gradients.hidden_s, end_s)
    spans = {
        "hidden gradient synchronisation": (end_s - hidden_s, end_s),
        "exposed gradient synchronisation": (end_s, end_s + once_s),
    }
    return [
        name_event("thread_name", _PROCESS, lane, f"stage {index + 1}: network of the replicas"),
        *(
            slice_event(kind, kind, span_s, _PROCESS, lane, {})
            for kind, span_s in spans.items()
            if span_s[1] > span_s[0]
        ),
    ]


def _microbatch_slices(done: Replay, index: int, stage: Stage) -> Iterator[_Slice]:
    """Yield the gather before a stage's first forward, and its work on every microbatch."""
    gathered_s = min(stage.work[0].head_s, float(done.forward_start_s[0, index, 0]))
    yield "parameter gather", (0.0, gathered_s), {}
    for chunk, work in enumerate(stage.work):
        starts_s = zip(
            done.forward_start_s[chunk, index].tolist(),
            done.backward_start_s[chunk, index].tolist(),
            strict=True,
        )
        for microbatch, (forward_s, backward_s) in enumerate(starts_s):
            recomputed_s = backward_s + work.recompute_s
            # The first microbatch's gradients are not added to any others.
            saving_s = 0.0 if microbatch else work.first_saving_s
            end_s = backward_s + work.backward_s - saving_s
            args: Event = {"microbatch": microbatch, "chunk": chunk}
            if done.weight_start_s is not None:
                end_s = backward_s + work.backward_s - work.weight_gradient_s
                weights_s = float(done.weight_start_s[chunk, index, microbatch])
                weights_end_s = weights_s + work.weight_gradient_s - saving_s
                yield "weight gradient", (weights_s, weights_end_s), args
            yield "forward", (forward_s, forward_s + work.forward_s), args
            yield "recompute", (backward_s, recomputed_s), args
            yield "backward", (recomputed_s, end_s), args


def _final_slices(done: Replay, index: int, stage: Stage) -> Iterator[_Slice]:
    """Yield the work of a stage once per batch, after its last backward."""
    end_s = float(done.finish_s[index])
    for kind, seconds in (
        ("gradient synchronisation", stage.synchronisation_s),
        ("optimizer", stage.optimizer_s),
        ("parameter gather", stage.gather_s),
    ):
        yield kind, (end_s, end_s + seconds), {}
        end_s += seconds
