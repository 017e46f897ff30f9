"""Cut a traced model into its layers by the marks of `phaze_opt.workload.capture.discovery`."""

from __future__ import annotations

from collections.abc import Mapping

from torch import fx

from phaze_opt.workload.capture.discovery import is_gradient_sum, segment_of
from phaze_opt.workload.capture.layer import Part, TracedModel

Owners = dict[fx.Node, int]


def cut(model: TracedModel, names: Mapping[int, str]) -> dict[str, Part]:
    """Return the parts of a model by name, in order of execution.

    What runs between layers and reads parameters is a part of its own: the ``first`` before all
    layers, the ``last`` after them. Without parameters it goes with the one layer whose result it
    continues (an activation, a loss), or, where it joins several, with the layer that reads it.

    Parameters
    ----------
    model
        Traced with marks.
    names
        By odd segment: the layer that was called.
    """
    owners = _forward_owners(model)
    owners |= _backward_owners(model, owners)
    forward: dict[int, list[fx.Node]] = {}
    backward: dict[int, list[fx.Node]] = {}
    for nodes, parts in ((model.forward.nodes, forward), (model.backward.nodes, backward)):
        for node in nodes:
            parts.setdefault(owners[node], []).append(node)
    titles = _titles(sorted(forward), names)
    return {titles[n]: Part(forward[n], backward.get(n, [])) for n in sorted(forward)}


def _forward_owners(model: TracedModel) -> Owners:
    """Return the segment that each forward node is counted with."""
    owners: Owners = {}
    undecided: dict[fx.Node, None] = {}
    for node in model.forward.order:
        if node.op != "call_function":
            continue
        segment = segment_of(node)
        sources = {owners[one] for one in node.all_input_nodes if one in owners}
        waits = any(one in undecided for one in node.all_input_nodes)
        if segment % 2 or segment in sources or _reads_parameter(model, node):
            owners[node] = segment
        elif len(sources) == 1 and not waits:
            (owners[node],) = sources
        else:
            undecided[node] = None
    for node in reversed(undecided.keys()):
        readers = [owners[one] for one in node.users if one in owners]
        owners[node] = min(readers) if readers else segment_of(node)
    return owners


def _reads_parameter(model: TracedModel, node: fx.Node) -> bool:
    """Say whether a node reads something that the model holds."""
    return any(base.node in model.traced.held for base in model.forward.operands(node))


def _backward_owners(model: TracedModel, forward: Owners) -> Owners:
    """Return the segment of each backward node: that of the forward node it differentiates.

    A sum of gradients belongs to the layer that made the summands, or, where these are of several
    layers, to the one whose result they are gradients of.
    """
    by_number: dict[int, int] = {}
    for node, owner in forward.items():
        by_number.setdefault(node.meta["seq_nr"], owner)
    owners: Owners = {}
    calls = [node for node in model.backward.order if node.op == "call_function"]
    for node in calls:
        number = node.meta.get("seq_nr")
        if not is_gradient_sum(node) and number in by_number:
            owners[node] = by_number[number]
            continue
        sources = {owners[one] for one in node.all_input_nodes if one in owners}
        if len(sources) == 1:
            (owners[node],) = sources
    for node in reversed(calls):
        if node not in owners:
            owners[node] = max((owners[one] for one in node.users if one in owners), default=0)
    return owners


def _titles(numbers: list[int], names: Mapping[int, str]) -> dict[int, str]:
    """Name the parts: layers as in the module (a repeated call numbered), the others by place."""
    titles: dict[int, str] = {}
    calls: dict[str, int] = {}
    for number in numbers:
        if number in names:
            title = names[number]
        elif number == numbers[0]:
            title = "first"
        else:
            title = "last" if number == numbers[-1] else f"between.{number // 2}"
        calls[title] = calls.get(title, 0) + 1
        titles[number] = title if calls[title] == 1 else f"{title}#{calls[title]}"
    return titles
