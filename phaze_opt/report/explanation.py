"""An explanation for a person: a few sentences first, then tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from phaze_opt.explanation.binding import PassBinding
from phaze_opt.explanation.explain import Explanation
from phaze_opt.explanation.fixes import Fix
from phaze_opt.explanation.gains import Gain
from phaze_opt.explanation.stage import LayerBinding, MemoryUse, StageTime
from phaze_opt.placement.placement_problem import Communication
from phaze_opt.report.explanation_words import (
    explanation_sentences,
    gain_words,
    heavy_layers,
    stage_words,
)
from phaze_opt.report.layout import add_row, broken, grid, section, sentence, shortened
from phaze_opt.report.tables import time_table
from phaze_opt.report.words import kind_words
from phaze_opt.units import format_bytes, format_seconds

_SHARES = {
    "compute": "compute",
    "lanes": "lanes",
    "glb": "GLB",
    "hbm": "HBM",
    "link": "link",
    "overhead": "per op",
}
_SAVINGS = {
    **_SHARES,
    "compute": "arrays",
    "network_latency": "latency",
}
_LEAST_PERCENT = 0.05
_MOST_FIXES = 12
_LONGEST_ID = 40
_LONGEST_NAME = 14
_LONGEST_OPTIONS = 39


def explanation_tables(explanation: Explanation, title: str = "") -> RenderableType:
    """Show an explanation.

    Parameters
    ----------
    explanation
        Of a feasible point or of another one.
    title
        Names the point, on one line.
    """
    evaluation, layers = explanation.evaluation, explanation.layers
    parts: list[RenderableType] = [sentence(title, style="bold")] if title else []
    parts += [sentence(each) for each in explanation_sentences(explanation)]
    if explanation.fixes:
        parts.append(_fixes_table(explanation.fixes))
    if explanation.gains:
        parts.append(_gains_table(explanation.gains))
    if explanation.stage is not None and evaluation.time_per_batch_s is not None:
        parts.append(_stage_table(explanation.stage, evaluation.time_per_batch_s))
        parts.append(_communication_table(explanation.stage.communication))
    if explanation.memory is not None:
        parts.append(_memory_table(explanation.memory))
    parts += [_binding_table(layers), _saving_table(layers)]
    if evaluation.feasible:
        parts += _path_tables(layers)
    return Group(*parts)


def _binding_table(layers: Iterable[LayerBinding]) -> RenderableType:
    """Show the binding resource of every pass of every layer, with the shares of all."""
    shares = [f">{name}" for name in (*_SHARES.values(), "idle")]
    table = grid("layer", "pass", ">time", "bound by", *shares, gap=1)
    for layer, name, binding in _passes(layers):
        add_row(
            table,
            layer,
            name,
            format_seconds(binding.makespan_s),
            _SHARES.get(binding.bound_by, binding.bound_by),
            *(_percent(binding.share(resource)) for resource in _SHARES),
            _percent(binding.schedule_s / binding.makespan_s),
        )
    return section(
        "What binds each layer, in % of its time (per device and microbatch)",
        table,
        "per op: the chip's constant per operator. idle: the part of compute and lanes in which "
        "cores stand idle, since operators wait for one another; more cores do not help there.",
    )


def _passes(layers: Iterable[LayerBinding]) -> Iterator[tuple[str, str, PassBinding]]:
    """Yield the layer, the name and the binding of every pass that takes time, to be shown."""
    for layer in layers:
        passes = {"forward": layer.forward, "backward": layer.backward, "recomp.": layer.recompute}
        for name, binding in passes.items():
            if binding is not None and binding.makespan_s > 0.0:
                yield f"{shortened(layer.name, _LONGEST_NAME)} ×{layer.count}", name, binding


def _saving_table(layers: Sequence[LayerBinding]) -> RenderableType:
    """Show the share of every pass that a tenth more of each resource saves."""
    sizes = "hbm_size", "glb_size"
    resources = [resource for resource in layers[0].forward.saving if resource not in sizes]
    names = [_SAVINGS.get(resource, resource.replace("_", " ")) for resource in resources]
    table = grid("layer", "pass", *(f">{name}" for name in names), gap=1)
    for layer, name, binding in _passes(layers):
        cells = [100 * binding.saving[resource] for resource in resources]
        words = [f"{cell:.1f}" if abs(cell) >= _LEAST_PERCENT else "" for cell in cells]
        add_row(table, layer, name, *words)
    return section("What a tenth more of each resource saves of that time, in %", table)


def _path_tables(layers: Sequence[LayerBinding]) -> list[RenderableType]:
    """Show the critical paths of the layers that matter."""
    shown = heavy_layers(layers)
    tables = [
        _path_table(f"{layer.name} {name}", binding)
        for layer in shown
        for name, binding in (("forward", layer.forward), ("backward", layer.backward))
        if binding.critical_path
    ]
    if len(shown) < len(layers):
        tables.append(Text("\nThe other layers take little time; --json has their paths."))
    return tables


def _path_table(title: str, binding: PassBinding) -> RenderableType:
    """Show the operators of a critical path in their order."""
    table = grid(">start", ">time", ">%", "cores", "bound by", "operator", gap=1)
    for step in binding.critical_path:
        seconds = step.end_s - step.start_s
        add_row(
            table,
            format_seconds(step.start_s),
            format_seconds(seconds),
            _percent(seconds / binding.makespan_s),
            "–" if step.collective else "all" if step.all_cores else "one",
            _SHARES[step.bound_by],
            shortened(step.id, _LONGEST_ID),
        )
    heading = f"Critical path of {title}, {format_seconds(binding.makespan_s)}"
    path = section(heading, table)
    if binding.groups:
        path = Group(path, _tile_table(title, binding))
    kept = binding.stays or binding.groups
    return Group(path, _stay_table(title, binding)) if kept else path


def _tile_table(title: str, binding: PassBinding) -> RenderableType:
    """Show which operators run tile by tile, and what they pass in the global buffer."""
    table = grid(">from", ">to", ">tiles", ">passed", ">in the buffer", ">HBM saved", "operators")
    for group in binding.groups:
        add_row(
            table,
            format_seconds(group.start_s),
            format_seconds(group.end_s),
            str(group.tiles),
            format_bytes(group.passed_bytes),
            format_bytes(group.buffered_bytes + group.held_bytes),
            format_bytes(group.saved_bytes),
            ", ".join(shortened(name, _LONGEST_ID) for name in group.operators),
        )
    return section(f"What runs tile by tile during {title}", table)


def _stay_table(title: str, binding: PassBinding) -> RenderableType:
    """Show what stays in the global buffer or the cache, and what the HBM need not move."""
    table = grid(">from", ">to", ">size", "tensor", gap=1)
    for stay in binding.stays:
        kind = "input of" if stay.is_input else "result of"
        add_row(
            table,
            format_seconds(stay.start_s),
            format_seconds(stay.end_s),
            format_bytes(stay.size_bytes),
            f"{kind} {shortened(stay.operator, _LONGEST_ID)}",
        )
    moved, without = format_bytes(binding.hbm_bytes), format_bytes(binding.hbm_bytes_without)
    heading, why = f"What stays in the global buffer during {title}", "it counts at both ends."
    if binding.cached:
        heading = f"What the L2 cache holds until it is read again during {title}"
        why = "it counts at both ends. The cache saves reads; all that is written is moved."
    note = sentence(
        f"The HBM moves {moved} instead of {without}. What one layer hands to the next is written "
        f"and read again: {why}"
    )
    return Group(section(heading, table), note)


def _stage_table(stage: StageTime, time_s: float) -> RenderableType:
    """Show the time of a batch by kind."""
    return section(f"Time of a batch on {stage_words(stage)}", time_table(stage.parts_s, time_s))


def _communication_table(communication: Iterable[Communication]) -> RenderableType:
    """Show the bytes that the busiest stage sends, and the hidden and the exposed time."""
    table = grid("communication", ">sent", ">on the network", ">hidden", ">exposed")
    for each in communication:
        if each.total_s > 0.0:
            add_row(
                table,
                kind_words(each.kind),
                format_bytes(each.sent_bytes),
                format_seconds(each.total_s),
                format_seconds(each.hidden_s),
                format_seconds(each.exposed_s),
            )
    return section("Communication of that stage, per device and batch", table)


def _memory_table(memory: MemoryUse) -> RenderableType:
    """Show the memory of the fullest stage by kind."""
    table = grid("kind", ">size", ">of usable")
    sizes: dict[str, float] = {
        **memory.bytes_by_kind,
        "together": memory.total_bytes,
        "usable": memory.usable_bytes,
    }
    for kind, size in sizes.items():
        share = f"{size / memory.usable_bytes:.1%}"
        add_row(table, kind_words(kind), format_bytes(size), share)
    where = "that does not fit" if memory.stage is None else f"{memory.stage}, the fullest"
    return section(f"Memory of stage {where}, per device", table)


def _gains_table(gains: Sequence[Gain]) -> RenderableType:
    """Show the throughput that a tenth more of each resource brings."""
    table = grid("change", ">throughput", ">same placement", ">per batch", "placement", gap=1)
    for gain in gains:
        time_s = gain.time_per_batch_s
        add_row(
            table,
            gain_words(gain.resource),
            "over power" if time_s is None else f"{gain.throughput_gain:+.2%}",
            f"{gain.same_placement_gain:+.2%}",
            "–" if time_s is None else format_seconds(time_s),
            gain.placement or "–",
        )
    settings = [option.removeprefix("--set ") for gain in gains for option in gain.options]
    note = (
        f"Each is an evaluation, with --set {', '.join(dict.fromkeys(settings))}. No chip has "
        "faster arrays or lanes alone, which share a clock: these two are what-ifs."
    )
    return section("What a tenth more of each resource would bring", table, note)


def _fixes_table(fixes: Sequence[Fix]) -> RenderableType:
    """Show the changes that were tried; those that fit come first."""
    shown = told_fixes(fixes)
    table = grid("options", "", ">per batch", "placement", gap=1)
    for fix in shown:
        time_s = fix.time_per_batch_s
        add_row(
            table,
            broken(" ".join(fix.options), _LONGEST_OPTIONS),
            verdict_words(fix),
            "–" if time_s is None else format_seconds(time_s),
            fix.placement or "–",
        )
    left = len(fixes) - len(shown)
    note = f"Tried and not shown: {left}, which --json lists." if left else ""
    return section("What was tried to make it fit", table, note)


def verdict_words(fix: Fix) -> str:
    """Say whether the run fits after a change, and by how much it does not."""
    if fix.feasible:
        return "fits"
    if fix.excess_bytes is not None:
        return f"still {format_bytes(fix.excess_bytes)} over"
    return f"takes {fix.power_w_per_device:.4g} W" if fix.power_w_per_device else "does not fit"


def told_fixes(fixes: Sequence[Fix]) -> list[Fix]:
    """Return the changes that are shown of those that were tried.

    Combinations that miss by no less memory than a part of them does are left out.
    """

    def is_idle(fix: Fix) -> bool:
        return any(
            set(part.options) < set(fix.options) and part.excess_bytes == fix.excess_bytes
            for part in fixes
            if not part.feasible
        )

    return [fix for fix in fixes if fix.feasible or not is_idle(fix)][:_MOST_FIXES]


def _percent(share: float) -> str:
    """Write a share without its sign; nothing for none."""
    return f"{100 * share:.0f}" if share >= 0.005 else ""
