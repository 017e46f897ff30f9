"""Tables for the terminal (rich); they take the JSON records, so that nothing is shown twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape as escape_markup
from rich.table import Table

from phaze_opt.errors import printable
from phaze_opt.evaluation import evaluation_to_json_dict
from phaze_opt.report.words import (
    accelerator_words,
    binding_words,
    effort_words,
    placement_words,
    proof_words,
    ratio_words,
    share_words,
    training_words,
    trial_words,
)
from phaze_opt.search.results import StudySummary, TrialRecord
from phaze_opt.units import format_bytes, format_seconds
from phaze_opt.workload.summary import WorkloadSummary


def escape(text: str) -> str:
    """Make text from a file or a database safe for a terminal: no markup, no control sequences."""
    return escape_markup(printable(text))


def evaluation_tables(title: str, record: Mapping[str, Any]) -> RenderableType:
    """Show one evaluation with its layers, stages and time."""
    head = _pairs(escape(title))
    if record["feasible"]:
        head.add_row("throughput", f"{record['throughput_samples_per_s']:,.1f} samples/s")
        head.add_row("time per batch", format_seconds(record["time_per_batch_s"]))
        head.add_row("MFU", share_words(record["mfu"]))
    else:
        head.add_row("infeasible", escape(str(record["reason"])))
    head.add_row("area", f"{record['area_mm2']:.4g} mm² (a relative budget, not a die size)")
    head.add_row("placement", placement_words(record["placement"]))
    head.add_row("bound by", escape(binding_words(record)))
    parts: list[RenderableType] = [head, _layer_table(record["layers"])]
    if record["placement"] is not None:
        parts += [_stage_table(record["placement"]["stages"]), _time_table(record)]
    return Group(*parts)


def study_table(summary: StudySummary) -> RenderableType:
    """Show the answer of a study and how it was found."""
    spec = summary.resolved.spec
    table = _pairs(f"{escape(summary.name)}: {summary.state}")
    table.add_row(
        "question",
        f"{escape(spec.model)} on {spec.devices} devices, {escape(spec.cluster)}, global batch "
        f"{spec.global_batch}, {spec.optimizer}",
    )
    best = summary.best
    if best is None:
        table.add_row("best", "nothing feasible yet")
    else:
        speed = best.metrics.throughput_samples_per_s
        record = {} if best.evaluation is None else evaluation_to_json_dict(best.evaluation)
        table.add_row("best", f"{speed:,.0f} samples/s (trial {best.number})")
        table.add_row("accelerator", accelerator_words(best.point))
        table.add_row("training", training_words(best.point))
        table.add_row("placement", placement_words(record.get("placement")))
        for line in ratio_words(best):
            table.add_row("against", escape(line))
        area_mm2, limit_mm2 = best.metrics.area_mm2, summary.resolved.area_limit_mm2
        table.add_row(
            "area used", f"{area_mm2 / limit_mm2:.1%} ({area_mm2:.4g} of {limit_mm2:.4g} mm²)"
        )
        table.add_row("bound by", escape(binding_words(record)))
        table.add_row("MFU", share_words(record.get("mfu")))
    table.add_row("trials", trial_words(summary))
    for reason in summary.failures:
        table.add_row("failed", escape(reason))
    table.add_row("time taken", effort_words(summary))
    table.add_row("cached", f"{share_words(summary.cached_share)} of the evaluations")
    table.add_row("proven", proof_words(summary))
    return table


def trials_table(trials: Iterable[TrialRecord]) -> Table:
    """List trials, one line each."""
    table = _grid("trial", "state", "samples/s", "mm²", "accelerator", "training", "reason")
    for trial in trials:
        metrics, point = trial.metrics, trial.point
        feasible = metrics is not None and metrics.feasible
        table.add_row(
            str(trial.number),
            trial.kind,
            f"{metrics.throughput_samples_per_s:,.0f}" if metrics and feasible else "–",
            "–" if metrics is None else f"{metrics.area_mm2:.4g}",
            "–" if point is None else accelerator_words(point),
            "–" if point is None else training_words(point),
            "" if metrics is None else escape(metrics.reason or ""),
        )
    return table


def studies_table(summaries: Sequence[StudySummary]) -> Table:
    """List studies, one line each."""
    table = _grid("study", "state", "trials", "best samples/s", "model", "devices")
    for summary in summaries:
        best = summary.best
        speed = "–" if best is None else f"{best.metrics.throughput_samples_per_s:,.0f}"
        spec = summary.resolved.spec
        complete = summary.trials["complete"]
        counts = f"{complete} of {max(complete + summary.left, spec.search.trials)}"
        row = (summary.name, summary.state, counts, speed, spec.model, str(spec.devices))
        table.add_row(*map(escape, row))
    return table


def rows_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """List plain rows that all have the same keys."""
    table = _grid(*(rows[0] if rows else ()))
    for row in rows:
        table.add_row(*(escape(str(value)) for value in row.values()))
    return table


def workload_tables(summary: WorkloadSummary) -> RenderableType:
    """Show a captured model: its layers, and their operators by kind."""
    layers = _grid("layer", "count", "parameters", "FLOPs", "stash", "output")
    layers.title_justify = "left"
    layers.title = escape(
        f"{summary.model}: {summary.parameters:,} parameters, {summary.sequence} tokens per "
        f"sample; per device at tensor-parallel width {summary.tensor_parallel}, microbatch "
        f"{summary.microbatch}"
    )
    layers.caption_justify = "left"
    layers.caption = "FLOPs forward / backward; stash under no / selective / full recompute"
    operators = _grid("layer", "pass", "operators by kind")
    for layer in summary.layers:
        stash = layer.stash_bytes
        layers.add_row(
            escape(layer.name),
            str(layer.count),
            f"{layer.parameters:,}",
            f"{layer.forward_flops:.4g} / {layer.backward_flops:.4g}",
            " / ".join(format_bytes(size) for size in (stash.none, stash.selective, stash.full)),
            format_bytes(layer.output_bytes),
        )
        for direction, kinds in (
            ("forward", layer.forward_operators),
            ("backward", layer.backward_operators),
        ):
            words = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
            operators.add_row(escape(layer.name), direction, escape(words))
    return Group(layers, operators)


def pairs_table(title: str, pairs: Mapping[str, object]) -> Table:
    """List names with values."""
    table = _pairs(escape(title))
    for name, value in pairs.items():
        table.add_row(name, escape(str(value)))
    return table


def accelerator_table(plain: Mapping[str, Any]) -> RenderableType:
    """Show every number of an accelerator and where it comes from."""
    table = _grid("field", "value", "confidence", "source")
    table.title, table.title_justify = escape(str(plain["name"])), "left"
    provenance = plain["provenance"]
    for name, value in _flat(plain):
        if name in ("name", "description", "provenance"):
            continue
        origin = provenance.get(name, {})
        confidence, source = origin.get("confidence", ""), origin.get("source", "")
        table.add_row(*map(escape, (name, str(value), str(confidence), str(source))))
    return table


def _flat(plain: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield fields, those of nested tables as ``outer.inner``."""
    for name, value in plain.items():
        if isinstance(value, Mapping) and name != "provenance":
            yield from ((f"{name}.{inner}", each) for inner, each in value.items())
        else:
            yield name, value


def _layer_table(layers: Sequence[Mapping[str, Any]]) -> Table:
    """Show the distinct layers."""
    table = _grid("layer", "count", "forward", "backward", "parameters", "stash", "schedules")
    for layer in layers:
        table.add_row(
            escape(layer["name"]),
            str(layer["count"]),
            format_seconds(layer["forward_s"]),
            format_seconds(layer["backward_s"]),
            f"{layer['parameters']:,}",
            format_bytes(layer["stash_bytes"]),
            " / ".join(_proof(layer[f"{pass_}_schedule"]) for pass_ in ("forward", "backward")),
        )
    return table


def _proof(schedule: Mapping[str, Any]) -> str:
    """Say what is known about a schedule."""
    if schedule["status"] == "optimal":
        return "optimal"
    return f"within {schedule['gap']:.2%}"


_MOST_STAGES = 12


def _stage_table(stages: Sequence[Mapping[str, Any]]) -> Table:
    """Show the pipeline stages; of a long pipeline the first and the last."""
    table = _grid("stage", "layers", "devices", "load", "memory", "of which stash")
    for index, stage in enumerate(stages):
        if len(stages) > _MOST_STAGES and _MOST_STAGES // 2 <= index < len(stages) - 2:
            continue
        names = stage["layers"]
        layers = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]} ({len(names)})"
        table.add_row(
            str(index),
            escape(layers),
            str(stage["devices"]),
            format_seconds(stage["load_s"]),
            format_bytes(stage["memory_bytes"]["total"]),
            format_bytes(stage["memory_bytes"]["stash"]),
        )
    return table


def _time_table(record: Mapping[str, Any]) -> Table:
    """Show where the time of a batch goes."""
    table = _grid("time of a batch", "seconds", "share")
    for kind, seconds in record["time_breakdown_s"].items():
        share = seconds / record["time_per_batch_s"]
        table.add_row(escape(kind.replace("_", " ")), format_seconds(seconds), f"{share:.1%}")
    return table


def _pairs(title: str) -> Table:
    """Make a table of names and values."""
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _grid(*columns: str) -> Table:
    """Make a table with a header, without frames, as a pipe to other tools wants it."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
