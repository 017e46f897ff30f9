"""An explanation for a person: a few sentences first, tables after; all from its JSON record."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from phaze_opt.report.explanation_words import (
    explanation_sentences,
    gain_words,
    heavy_layers,
    kind_words,
    stage_words,
)
from phaze_opt.report.tables import escape
from phaze_opt.units import format_bytes, format_seconds

_PASSES = {"forward": "forward", "backward": "backward", "recompute": "recomp."}
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
_NEGLIGIBLE = 1e-9
_MOST_FIXES = 12
_LONGEST_ID = 40
_LONGEST_OPTIONS = 39
_LINE = 79

Justify = Literal["left", "right"]


def explanation_tables(title: str, record: Mapping[str, Any]) -> RenderableType:
    """Show an explanation.

    Parameters
    ----------
    title
        The point, on one line.
    record
        What ``explain --json`` prints.
    """
    parts: list[RenderableType] = [_wrapped(title, style="bold")]
    parts += [_wrapped(sentence) for sentence in explanation_sentences(record)]
    if record["fixes"]:
        parts.append(_fixes_table(record["fixes"]))
    if record["gains"]:
        parts.append(_gains_table(record["gains"]))
    if record["stage_time"] is not None:
        parts.append(_stage_table(record["stage_time"], record["time_per_batch_s"]))
    if record["memory"] is not None:
        parts.append(_memory_table(record["memory"]))
    parts += [_binding_table(record["layers"]), _saving_table(record["layers"])]
    if record["feasible"]:
        parts += _path_tables(record["layers"])
    return Group(*parts)


def _binding_table(layers: Iterable[Mapping[str, Any]]) -> RenderableType:
    """Show what binds every pass of every layer."""
    table = _table(
        *(("layer", "left"), ("pass", "left"), ("time", "right"), ("bound by", "left")),
        *((name, "right") for name in (*_SHARES.values(), "idle")),
    )
    for layer, name, binding in _passes(layers):
        table.add_row(
            layer,
            name,
            format_seconds(binding["makespan_s"]),
            _SHARES.get(binding["bound_by"], binding["bound_by"]),
            *(_percent(binding["share"][resource]) for resource in _SHARES),
            _percent(binding["schedule_s"] / binding["makespan_s"]),
        )
    return _section(
        "What binds each layer, in % of its time (per device and microbatch)",
        table,
        "per op: the chip's constant per operator. idle: the part of compute and lanes in which "
        "cores stand idle, since operators wait for one another; more cores do not help there.",
    )


def _passes(layers: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield the layer, the name and the binding of every pass that takes time, to be shown."""
    for layer in layers:
        for key, name in _PASSES.items():
            binding = layer[f"{key}_binding"]
            if binding is not None and binding["makespan_s"] > 0.0:
                yield escape(f"{layer['name']} ×{layer['count']}"), name, binding


def _saving_table(layers: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Show what a tenth more of each resource saves of every pass."""
    some = layers[0]["forward_binding"]["saving"]
    resources = [resource for resource in some if resource != "hbm_size"]
    table = _table(
        *(("layer", "left"), ("pass", "left")),
        *((_SAVINGS.get(resource, resource.replace("_", " ")), "right") for resource in resources),
    )
    for layer, name, binding in _passes(layers):
        cells = [100 * binding["saving"][resource] for resource in resources]
        table.add_row(
            layer,
            name,
            *(f"{cell:.1f}" if abs(cell) >= _LEAST_PERCENT else "" for cell in cells),
        )
    return _section("What a tenth more of each resource saves of that time, in %", table)


def _path_tables(layers: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    """Show the critical paths of the layers that matter."""
    shown = heavy_layers(layers)
    tables = [
        _path_table(f"{layer['name']} {name}", layer[f"{name}_binding"])
        for layer in shown
        for name in ("forward", "backward")
        if layer[f"{name}_binding"]["critical_path"]
    ]
    if len(shown) < len(layers):
        tables.append(Text("\nThe other layers take little time; --json has their paths."))
    return tables


def _path_table(title: str, binding: Mapping[str, Any]) -> RenderableType:
    """Show the operators of a critical path in their order."""
    table = _table(
        *(("start", "right"), ("time", "right"), ("%", "right"), ("cores", "left")),
        *(("bound by", "left"), ("operator", "left")),
    )
    for step in binding["critical_path"]:
        seconds = step["end_s"] - step["start_s"]
        table.add_row(
            format_seconds(step["start_s"]),
            format_seconds(seconds),
            _percent(seconds / binding["makespan_s"]),
            "–" if step["collective"] else "all" if step["all_cores"] else "one",
            _SHARES[step["bound_by"]],
            escape(_shortened(step["id"])),
        )
    makespan = format_seconds(binding["makespan_s"])
    return _section(f"Critical path of {title}, {makespan}", table)


def _stage_table(stage: Mapping[str, Any], time_s: float) -> RenderableType:
    """Show where the time of a batch goes."""
    table = _table(("part", "left"), ("time", "right"), ("share", "right"))
    for kind, seconds in sorted(stage["parts_s"].items(), key=lambda item: -item[1]):
        if seconds > _NEGLIGIBLE * time_s:
            table.add_row(kind_words(kind), format_seconds(seconds), f"{seconds / time_s:.1%}")
    return _section(f"Time of a batch on {stage_words(stage)}", table)


def _memory_table(memory: Mapping[str, Any]) -> RenderableType:
    """Show what fills the memory of the fullest stage."""
    table = _table(("kind", "left"), ("size", "right"), ("of usable", "right"))
    usable_bytes = memory["usable_bytes"]
    sizes = {
        **memory["bytes_by_kind"],
        "together": memory["total_bytes"],
        "usable": usable_bytes,
    }
    for kind, size in sizes.items():
        table.add_row(kind_words(kind), format_bytes(size), f"{size / usable_bytes:.1%}")
    where = "that does not fit" if memory["stage"] is None else f"{memory['stage']}, the fullest"
    return _section(f"Memory of stage {where}, per device", table)


def _gains_table(gains: Iterable[Mapping[str, Any]]) -> RenderableType:
    """Show what a tenth more of each resource brings."""
    table = _table(
        *(("change", "left"), ("throughput", "right"), ("same placement", "right")),
        *(("per batch", "right"), ("placement", "left")),
    )
    for gain in gains:
        feasible = gain["feasible"]
        table.add_row(
            gain_words(gain["resource"]),
            f"{gain['throughput_gain']:+.2%}" if feasible else "over power",
            f"{gain['same_placement_gain']:+.2%}",
            format_seconds(gain["time_per_batch_s"]) if feasible else "–",
            gain["placement"] or "–",
        )
    return _section("What a tenth more of each resource would bring", table)


def _fixes_table(fixes: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Show what was tried to make it fit, what fits first."""
    shown = _telling(fixes)[:_MOST_FIXES]
    table = _table(
        *(("options", "left"), ("", "left"), ("per batch", "right"), ("placement", "left")),
    )
    for fix in shown:
        if fix["feasible"]:
            verdict = "fits"
        elif fix["excess_bytes"] is None:
            verdict = "does not fit"
        else:
            verdict = f"still {format_bytes(fix['excess_bytes'])} over"
        time_s = fix["time_per_batch_s"]
        table.add_row(
            "\n".join(map(escape, _lines(" ".join(fix["options"]), _LONGEST_OPTIONS))),
            verdict,
            "–" if time_s is None else format_seconds(time_s),
            fix["placement"] or "–",
        )
    left = len(fixes) - len(shown)
    note = f"Tried and not shown: {left}, which --json lists." if left else ""
    return _section("What was tried to make it fit", table, note)


def _telling(fixes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Leave out combinations that miss by no less than a part of them does."""

    def is_idle(fix: Mapping[str, Any]) -> bool:
        return any(
            set(part["options"]) < set(fix["options"])
            and part["excess_bytes"] == fix["excess_bytes"]
            for part in fixes
            if not part["feasible"]
        )

    return [fix for fix in fixes if fix["feasible"] or not is_idle(fix)]


def _section(title: str, table: Table, note: str = "") -> RenderableType:
    """Put a title over a table and a note under it, each as wide as it needs."""
    parts: list[RenderableType] = [Text(f"\n{title}", style="bold"), table]
    return Group(*parts, *([_wrapped(note)] if note else []))


def _wrapped(sentence: str, style: str = "") -> Text:
    """Break a sentence into lines that a narrow terminal shows whole."""
    return Text("\n".join(_lines(sentence, _LINE)), style=style)


def _lines(text: str, width: int) -> list[str]:
    """Break text at spaces; an option stays whole."""
    return textwrap.wrap(text, width, break_on_hyphens=False)


def _table(*columns: tuple[str, Justify]) -> Table:
    """Make a table without frames that fits 80 columns."""
    table = Table(header_style="bold", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name, justify in columns:
        table.add_column(name, justify=justify, overflow="fold")
    return table


def _percent(share: float) -> str:
    """Write a share without its sign; nothing for none."""
    return f"{100 * share:.0f}" if share >= 0.005 else ""


def _shortened(name: str) -> str:
    """Cut a long name of a fused operator."""
    return name if len(name) <= _LONGEST_ID else f"{name[: _LONGEST_ID - 1]}…"
