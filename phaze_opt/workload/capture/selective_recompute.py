"""Selective recompute: the tensors that a layer keeps, and the operators that run again.

Eager attention keeps its scores, which are most of the stash; then only the attention core runs
again (Korthikanti et al. 2022, section 5). Fused attention keeps no scores; then all operators run
again whose results the backward needs, except attention, sums over the tensor-parallel group and
every second matrix product (PyTorch's per-operator activation checkpointing with torchtitan's
settings for Llama). Products of routed experts are none of these (torchtitan's list of operators
that keep their results has no grouped one): what the backward needs of them runs again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from torch import fx

from phaze_opt.workload.capture.aten_node import name_of
from phaze_opt.workload.capture.tensors import LiveGraph, ResultMemory, ancestors

_BATCHED = ("aten::bmm", "aten::baddbmm")
_PRODUCTS = ("aten::mm", "aten::addmm")
_GROUPED = "phaze::grouped_product"
_FUSED_ATTENTION = (
    "phaze::flash_attention",
    "phaze::sink_attention",
    "phaze::chunked_attention",
    "phaze::sparse_attention",
    "phaze::index_keys",
)
_SUMMED = ("phaze::all_reduce", "phaze::reduce_scatter", "phaze::expert_reduce_scatter")
_KEPT = (*_FUSED_ATTENTION, *_SUMMED)


@dataclass(frozen=True)
class RecomputePlan:
    """Tensors that are kept, and forward nodes that run again, in order of execution."""

    kept: set[ResultMemory]
    nodes: Sequence[fx.Node]


def selective_recompute(
    forward: LiveGraph, nodes: Sequence[fx.Node], stash: set[ResultMemory]
) -> RecomputePlan:
    """Choose the tensors that a layer keeps for its backward, and the nodes that run again.

    Parameters
    ----------
    forward
        The live forward graph.
    nodes
        The working nodes of one layer, in order of execution.
    stash
        Tensors of the forward that the layer's backward reads.

    Returns
    -------
    plan
        ``kept`` may hold parameters and buffers. Without attention it is the whole stash.
    """
    cores = _attention_cores(forward, nodes)
    if cores:
        return _without_cores(forward, nodes, stash, cores)
    if any(name_of(node) in _FUSED_ATTENTION for node in nodes):
        return _per_operator(forward, nodes, stash)
    return RecomputePlan(set(stash), [])


def _without_cores(
    forward: LiveGraph,
    nodes: Sequence[fx.Node],
    stash: set[ResultMemory],
    cores: Sequence[Sequence[fx.Node]],
) -> RecomputePlan:
    """Keep the inputs of attention cores and drop the tensors inside them."""
    kept = set(stash)
    for core in cores:
        kept.update(base for node in core for base in forward.operands(node))
        kept.difference_update(base for node in core[:-1] for base in forward.written(node))
    again = {node for core in cores for node in core}
    return RecomputePlan(kept, [node for node in nodes if node in again])


def _per_operator(
    forward: LiveGraph, nodes: Sequence[fx.Node], stash: set[ResultMemory]
) -> RecomputePlan:
    """Keep the layer's inputs and the results of chosen operators.

    PyTorch's policy chooses by operator: a chosen result is kept even if the backward does not read
    it.
    """
    products = [node for node in nodes if name_of(node) in _PRODUCTS or _is_repeated(node)]
    chosen = {node for node in nodes if name_of(node) in _KEPT} | set(products[::2])
    writers = {base: node for node in nodes for base in forward.written(node)}
    kept = {base for node in chosen for base in forward.written(node)}
    again: set[fx.Node] = set()
    wanted = list(stash - kept)
    while wanted:
        base = wanted.pop()
        writer = writers.get(base)
        if writer is None:
            kept.add(base)
        elif writer not in again:
            again.add(writer)
            wanted.extend(forward.operands(writer) - kept)
    return RecomputePlan(kept, [node for node in nodes if node in again])


def _is_repeated(node: fx.Node) -> bool:
    """Say whether a node is a linear layer that every device of a group computes."""
    if name_of(node) != _GROUPED:
        return False
    *_, devices, _ = node.args
    return cast(int, devices) > 1


def _attention_cores(forward: LiveGraph, nodes: Sequence[fx.Node]) -> list[list[fx.Node]]:
    """Return the attention cores among some nodes, each in order of execution.

    A core starts at a batched product (the scores) and ends at the next batched product that its
    result reaches without another product between (the context).
    """
    cores = []
    for first in nodes:
        if name_of(first) in _BATCHED:
            between, contexts = {first}, []
            for node in forward.order:
                if not between.isdisjoint(node.all_input_nodes):
                    if name_of(node) in _BATCHED:
                        contexts.append(node)
                    elif name_of(node) not in _PRODUCTS:
                        between.add(node)
            wanted = ancestors(contexts) & between | set(contexts)
            if contexts:
                cores.append([node for node in nodes if node in wanted])
    return cores
