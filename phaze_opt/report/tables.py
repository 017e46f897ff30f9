"""Tables of one evaluation, a workload, an accelerator, a cluster, and of plain rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from phaze_opt.evaluation import Evaluation
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.chip_file import derived_numbers
from phaze_opt.hardware.fields import PEAK_TFLOPS, chip_values, in_units
from phaze_opt.network.bill import NetworkBill
from phaze_opt.network.cluster import Cluster
from phaze_opt.passes.layers import LayerEvaluation
from phaze_opt.placement.placement_problem import Placement
from phaze_opt.report.layout import add_row, grid, pairs, section, sentence, shortened
from phaze_opt.report.words import (
    degraded_facts,
    evaluation_facts,
    kind_words,
    neighbour_words,
    placement_facts,
)
from phaze_opt.units import format_bytes, format_count, format_number, format_seconds
from phaze_opt.workload.graph import Workload
from phaze_opt.workload.summary import LayerSummary, WorkloadSummary, summarise

_MOST_STAGES = 12
_LONGEST_NAME = 18
_NEGLIGIBLE = 1e-9


def evaluation_tables(evaluation: Evaluation, title: str = "") -> RenderableType:
    """Show an evaluation with its layers, stages and time.

    Parameters
    ----------
    evaluation
        Feasible or not.
    title
        Names the point, on one line.
    """
    parts: list[RenderableType] = [sentence(title, style="bold")] if title else []
    parts += [
        _head_table(evaluation_facts(evaluation)),
        section("Layers", _layer_table(evaluation.layers)),
    ]
    if evaluation.placement is not None and evaluation.time_per_batch_s is not None:
        parts += [
            section("Stages", _stage_table(evaluation.placement, evaluation.accelerators)),
            section(
                "Time of a batch",
                time_table(evaluation.time_breakdown_s, evaluation.time_per_batch_s),
            ),
        ]
    if evaluation.degraded is not None:
        parts.append(section("Degraded", _head_table(degraded_facts(evaluation.degraded))))
    return Group(*parts)


def placement_tables(placement: Placement) -> RenderableType:
    """Show the degrees of a placement and its stages."""
    head = _head_table(placement_facts(placement))
    add_row(head, "schedule", placement.pipeline_schedule)
    add_row(head, "time per batch", format_seconds(placement.time_per_batch_s))
    return Group(head, section("Stages", _stage_table(placement)))


def _head_table(facts: Iterable[tuple[str, str]]) -> Table:
    """Show facts by their names."""
    head = pairs()
    for name, words in facts:
        add_row(head, name, words)
    return head


def _layer_table(layers: Iterable[LayerEvaluation]) -> Table:
    """Show the distinct layers."""
    table = grid(
        *("layer", ">count", ">forward", ">backward", ">parameters", ">stash", "schedules")
    )
    for layer in layers:
        proofs = (layer.forward_schedule, layer.backward_schedule)
        words = ["optimal" if p.status == "optimal" else f"{p.gap:.2%}" for p in proofs]
        add_row(
            table,
            shortened(layer.name, _LONGEST_NAME),
            str(layer.count),
            format_seconds(layer.forward_s),
            format_seconds(layer.backward_s),
            f"{layer.parameters:,}",
            format_bytes(layer.stash_bytes),
            words[0] if words[0] == words[1] else " / ".join(words),
        )
    return table


def _stage_table(placement: Placement, accelerators: Sequence[str] | None = None) -> Table:
    """Show the pipeline stages, on which accelerator if that differs; of many first and last."""
    kinds = ("accelerator",) if accelerators else ()
    table = grid(">stage", *kinds, "layers", ">devices", ">load", ">memory", ">of which stash")
    count = len(placement.stages)
    for index, stage in enumerate(placement.stages):
        if count > _MOST_STAGES and _MOST_STAGES // 2 <= index < count - 2:
            continue
        names = [shortened(name, _LONGEST_NAME) for name in stage.layers]
        add_row(
            table,
            str(index),
            *((accelerators[index],) if accelerators else ()),
            names[0] if len(names) == 1 else f"{names[0]} … {names[-1]} ({len(names)})",
            str(stage.devices),
            format_seconds(stage.load_s),
            format_bytes(stage.memory_bytes.total),
            format_bytes(stage.memory_bytes.stash),
        )
    return table


def time_table(parts_s: Mapping[str, float], time_s: float) -> Table:
    """Show the time of a batch by kind, the largest first.

    Parameters
    ----------
    parts_s
        By kind.
    time_s
        The time of the batch, which is their sum.
    """
    table = grid("part", ">time", ">share")
    for kind, seconds in sorted(parts_s.items(), key=lambda item: -item[1]):
        if seconds > _NEGLIGIBLE * time_s:
            add_row(table, kind_words(kind), format_seconds(seconds), f"{seconds / time_s:.1%}")
    return table


def rows_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """List plain rows that all have the same keys; columns of numbers end in line."""
    names = list(rows[0]) if rows else []
    table = grid(*((">" if _is_number(rows[0][name]) else "") + name for name in names))
    for row in rows:
        add_row(table, *(value_words(value) for value in row.values()))
    return table


def value_words(value: object) -> str:
    """Write a plain value: six digits of a fraction, all of a whole number, a dash for no value.

    Of what is below one, four digits are enough.
    """
    if value is None or value == () or value == []:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    if abs(value) >= 1.0:
        return f"{value:.6g}"
    return format_number(value)


def named_in_units(name: str, value: object) -> tuple[str, object]:
    """Return a number of an accelerator as files and ``--set`` take it in a convenient unit."""
    if name == "peak_flops_per_s" and isinstance(value, float):
        return PEAK_TFLOPS, value / 1e12
    return in_units(name, value) or (name, value)


def _is_number(value: object) -> bool:
    """Tell numbers from words and switches."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def workload_tables(workload: Workload) -> RenderableType:
    """Show the first captured variant of a model, and say which variants there are."""
    captured = ", ".join(
        f"{variant.tensor_parallel} and {variant.microbatch}" for variant in workload.variants
    )
    variants = sentence(f"Captured tensor degrees and microbatches: {captured or 'none'}.")
    tables = [summary_tables(summarise(workload))] if workload.variants else []
    return Group(*tables, Text(), variants)


def summary_tables(summary: WorkloadSummary) -> RenderableType:
    """Show one captured variant: its layers, and their operators by kind."""
    is_partly_frozen = any(layer.frozen_parameters for layer in summary.layers)
    layers = grid(
        *("layer", ">count", ">parameters", *([">trained"] if is_partly_frozen else [])),
        *(">stash: none", ">selective", ">full", ">output"),
        gap=1 if is_partly_frozen else 2,
    )
    operators = grid("layer", "pass", ">FLOPs", "operators")
    for layer in summary.layers:
        stash = layer.stash_bytes
        name = shortened(layer.name, _LONGEST_NAME)
        add_row(
            layers,
            name,
            str(layer.count),
            f"{layer.parameters:,}",
            *([_trained_share(layer)] if is_partly_frozen else []),
            *(format_bytes(size) for size in (stash.none, stash.selective, stash.full)),
            format_bytes(layer.output_bytes),
        )
        for direction, flops, kinds in (
            ("forward", layer.forward_flops, layer.forward_operators),
            ("backward", layer.backward_flops, layer.backward_operators),
        ):
            words = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
            add_row(operators, name, direction, format_count(flops, "FLOP"), words)
    tokens = f"{summary.sequence:,} tokens per sample" if summary.sequence > 1 else "no sequence"
    active = summary.active_parameters
    working = f", of which {active:,} work on a token" if active else ""
    title = (
        f"{summary.model}: {summary.parameters:,} parameters{working}, {tokens}; per device at "
        f"tensor degree {summary.tensor_parallel}, microbatch {summary.microbatch}"
    )
    note = "Stash under no, selective and full recompute; output to the next layer."
    return Group(
        sentence(title, style="bold"), layers, sentence(note), section("Operators", operators)
    )


def _trained_share(layer: LayerSummary) -> str:
    """Return which share of a layer's parameters is trained, as text."""
    trained = layer.parameters - (layer.frozen_parameters or 0)
    if trained in (0, layer.parameters):
        return "all" if trained else "none"
    return f"{trained / layer.parameters:.3g}"


def accelerator_tables(
    accelerator: Accelerator,
    title: str = "Accelerator",
    provenance: Mapping[str, Mapping[str, str]] | None = None,
) -> RenderableType:
    """Show every number of an accelerator and, where that is known, where it comes from.

    Parameters
    ----------
    accelerator
        The chip.
    title
        Names it, on one line.
    provenance
        ``source`` and ``confidence`` by the names of `accelerator_numbers`.
    """
    columns = ("confidence", ">source") if provenance else ()
    table = grid("field", ">value", *columns)
    sources: dict[str, str] = {"": ""}
    for name, value in accelerator_numbers(accelerator).items():
        origin = (provenance or {}).get(name, {})
        number = sources.setdefault(origin.get("source", ""), f"[{len(sources)}]")
        cells = (origin.get("confidence", ""), number)[: len(columns)]
        shown_name, shown = named_in_units(name, value)
        add_row(table, shown_name, value_words(shown), *cells)
    notes = [sentence(f"{number} {source}") for source, number in sources.items() if source]
    return Group(sentence(title, style="bold"), table, *notes)


def accelerator_numbers(accelerator: Accelerator) -> dict[str, Any]:
    """Return every number of an accelerator by name, `derived_numbers` included.

    Fields of the calibration are named ``calibration.<field>``.
    """
    return {**chip_values(accelerator), **derived_numbers(accelerator)}


def bill_table(bill: NetworkBill) -> RenderableType:
    """Show what every level of a network is built of, and what all of it costs and draws."""
    table = grid("", *(f">level {index}" for index in range(len(bill.levels))), ">all")
    levels = bill.levels
    kinds = {
        "switches, GB/s": "switch_bytes_per_s",
        "copper, GB/s": "copper_bytes_per_s",
        "optics, GB/s": "optics_bytes_per_s",
    }
    add_row(table, "topology", *(level.topology for level in levels), "")
    add_row(table, "tiers of switches", *(value_words(level.tiers) for level in levels), "")
    for name, field in kinds.items():
        values = [getattr(level, field) / 1e9 for level in levels]
        add_row(table, name, *map(format_number, values), format_number(sum(values)))
    for name, field in {"price, USD": "usd", "power, W": "power_w"}.items():
        ranges = [getattr(each, field) for each in (*levels, bill)]
        add_row(table, name, *(format_number(each.central) for each in ranges))
        spans = (f"{format_number(each.low)} to {format_number(each.high)}" for each in ranges)
        add_row(table, "", *spans)
    title = "bandwidths per direction, of all devices together"
    return Group(sentence(title, style="bold"), table)


def cluster_tables(cluster: Cluster) -> RenderableType:
    """Show the levels of a cluster side by side, the innermost first, and their source."""
    levels = cluster.levels
    tapered = any(level.taper > 1.0 for level in levels)
    table = grid("", *(f">level {index}" for index in range(len(levels))))
    rows: dict[str, Sequence[object]] = {
        "topology": [level.topology for level in levels],
        "joins": [level.group_size or "any number" for level in levels],
        "axes": ["×".join(map(str, level.axes)) or None for level in levels],
        **({"taper": [level.taper for level in levels]} if tapered else {}),
        "nominal, GB/s": [level.bandwidth_bytes_per_s / 1e9 for level in levels],
        "efficiency": [level.efficiency for level in levels],
        "sustained, GB/s": [level.sustained_bytes_per_s / 1e9 for level in levels],
        "latency, µs": [level.latency_s * 1e6 for level in levels],
    }
    for name, values in rows.items():
        add_row(table, name, *map(value_words, values))
    title = f"{cluster.name}; bandwidths per device and direction"
    neighbours = [sentence(words) for words in neighbour_words(cluster)]
    source = [Text(), sentence(cluster.source)] if cluster.source else []
    return Group(sentence(title, style="bold"), table, Text(), *neighbours, *source)
