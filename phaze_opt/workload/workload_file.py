"""A captured workload as a JSON file: written, read and checked, never executed."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from phaze_opt.codec import from_builtins, from_json, read_file, to_json
from phaze_opt.errors import InputError
from phaze_opt.limits import MOST_WORK
from phaze_opt.user_files import write_file
from phaze_opt.workload.graph import (
    SCHEMA_VERSION,
    VECTOR_KINDS,
    Operator,
    OperatorGraph,
    Workload,
    WorkloadVariant,
    expert_tensor_of,
)

_KINDS = frozenset(VECTOR_KINDS)
_BYTES = "read_bytes", "write_bytes", "outliving_bytes"
"""What operators of schema 4 and older say."""
_log = logging.getLogger(__name__)


def write_workload(workload: Workload, path: Path) -> None:
    """Write a workload as JSON, whole or not at all.

    Raises
    ------
    PhazeError
        If the file cannot be written.
    """
    write_file(path, to_json(workload))


def read_workload(path: Path) -> Workload:
    """Read a captured workload.

    Raises
    ------
    NotFoundError
        If there is no file.
    InputError
        If it is not a workload, is of a newer schema version, or contradicts itself.
    """
    what = f"workload file {path}"
    return parse_workload(read_file(path, "workload file"), what)


def parse_workload(data: bytes, what: str) -> Workload:
    """Read a captured workload from its JSON; an older schema is brought up to date.

    Parameters
    ----------
    data
        The JSON.
    what
        What the JSON is (for example ``"workload file a.json"``), for the error's sentence.

    Raises
    ------
    InputError
        If it is not a workload, is of a newer schema version, or contradicts itself.
    """
    plain = from_json(data, dict[str, Any], what)
    version = plain.get("schema_version")
    if version in (1, 2, 3, 4):
        plain = _with_working_sets(plain, what) if version == 1 else plain
        plain = _with_attention_scores(plain, what) if version <= 2 else plain
        plain = _with_tensors(plain, what)
    elif version is None:
        raise InputError(
            f"The {what} is neither a captured workload nor a Hugging Face configuration: it has "
            "neither schema_version nor model_type; `phaze-opt workload capture MODEL --output "
            "FILE.json` writes a captured workload."
        )
    elif version != SCHEMA_VERSION:
        raise InputError(
            f"The {what} has schema version {version}, "
            f"but this program reads version {SCHEMA_VERSION}."
        )
    workload = from_builtins(plain, Workload, what)
    problem = _problem(workload)
    if problem is not None:
        raise InputError(f"The {what} is broken: {problem}.")
    return workload


def _with_working_sets(plain: dict[str, Any], what: str) -> dict[str, Any]:
    """Bring schema 1 up to date, which had one ``transient_bytes`` per layer.

    The stash that recompute restores was added to it whole, and fusion was not counted.
    """
    try:
        for variant in plain["variants"]:
            for layer in variant["layers"]:
                stash, transient = layer["stash_bytes"], layer["transient_bytes"]
                sizes = {mode: transient + stash["none"] - kept for mode, kept in stash.items()}
                sizes["full"] = transient + stash["none"]
                layer["transient_bytes"] = layer["fused_transient_bytes"] = sizes
    except (AttributeError, KeyError, TypeError):
        raise InputError(f"The {what} is broken: a layer has no sizes.") from None
    return plain


def _with_attention_scores(plain: dict[str, Any], what: str) -> dict[str, Any]:
    """Bring schema 2 up to date, which did not describe the scores of fused attention.

    It did not say whether a mask was causal either; attention is counted in full, as it was then.
    """
    has_attention = False
    try:
        for variant in plain["variants"]:
            for layer in variant["layers"]:
                for graph in ("forward", "backward", "selective_recompute"):
                    for operator in layer[graph]["operators"]:
                        if len(operator["gemms"]) > 1:
                            operator["attention"], has_attention = _unmasked_scores(operator), True
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        raise InputError(f"The {what} is broken: an operator has no sizes.") from None
    if has_attention:
        _log.warning(
            "The %s does not say whether its attention is causal: it is counted in full. "
            "Capture the model again.",
            what,
        )
    return plain


def _with_tensors(plain: dict[str, Any], what: str) -> dict[str, Any]:
    """Bring schema 4 up to date, which had bytes instead of the elements of most tensors.

    Schema 3 did not say which operators use the same memory either.
    """
    try:
        for variant in plain["variants"]:
            for layer in variant["layers"]:
                for graph in ("forward", "backward", "selective_recompute"):
                    layer[graph] = _graph_of_bytes(layer[graph])
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        raise InputError(f"The {what} is broken: an operator has no sizes.") from None
    return {**plain, "schema_version": SCHEMA_VERSION}


def _graph_of_bytes(plain: dict[str, Any]) -> dict[str, Any]:
    """Return a graph of schema 4 or older with all of its tensors, whose elements are bytes.

    What operators hand over keeps its size; all else that one reads or writes is one tensor each.
    """
    operators = plain["operators"]
    left = {name: [operator.pop(name, 0) for operator in operators] for name in _BYTES}
    tensors = [_shared_bytes(tensor) for tensor in plain.get("tensors", ())]
    tensors = tensors or _handed_over(plain["edges"], left["write_bytes"], left["outliving_bytes"])
    for tensor in tensors:
        for index, size in tensor["writers"]:
            left["write_bytes"][index] -= size
            left["outliving_bytes"][index] -= size if tensor["outlives"] else 0
        for read in tensor["readers"]:
            left["read_bytes"][read["operator"]] -= read["elements"]
    for index, (read_bytes, written, outliving) in enumerate(zip(*left.values(), strict=True)):
        outliving = max(outliving, 0)
        tensors += [
            _bytes(read_bytes, (), [{"operator": index, "elements": read_bytes}]),
            _bytes(outliving, [(index, outliving)], (), outlives=True),
            _bytes(written - outliving, [(index, written - outliving)]),
        ]
    return {"operators": operators, "tensors": [tensor for tensor in tensors if tensor["elements"]]}


def _shared_bytes(plain: dict[str, Any]) -> dict[str, Any]:
    """Return a tensor of schema 4."""
    readers = [{**reader, "elements": reader["bytes"]} for reader in plain["readers"]]
    for reader in readers:
        del reader["bytes"]
    return _bytes(plain["size_bytes"], plain["writers"], readers, plain.get("outlives", False))


def _handed_over(
    edges: Sequence[tuple[int, int, int]], written: Sequence[int], outliving: Sequence[int]
) -> list[dict[str, Any]]:
    """Return what each operator of schema 3 or older hands to others as one tensor."""
    readers: dict[int, list[dict[str, int]]] = {}
    for source, destination, size in edges:
        readers.setdefault(source, []).append({"operator": destination, "elements": size})
    return [
        _bytes(written[source], [(source, written[source])], own, outliving[source] > 0)
        for source, own in readers.items()
    ]


def _bytes(
    size: int,
    writers: Sequence[tuple[int, int]] = (),
    readers: Sequence[dict[str, Any]] = (),
    outlives: bool = False,
) -> dict[str, Any]:
    """Return a tensor of bytes as it stands in a file."""
    return {
        "elements": size,
        "dtype": "uint8",
        "writers": writers,
        "readers": readers,
        "outlives": outlives,
    }


def _unmasked_scores(operator: dict[str, Any]) -> dict[str, Any]:
    """Return the scores of a fused attention core with as many queries as keys."""
    first = operator["gemms"][0]
    rows, keys = first["m"] * first["batch"], first["n"]
    return {"heads": max(1, rows // keys), "queries": keys, "keys": keys, "causal": False}


def select_variants(
    workload: Workload,
    tensor_parallel: Sequence[tuple[int, int]],
    microbatch: Sequence[int],
    sequence_parallel: bool,
    context_parallel: Sequence[int] = (1,),
    expert_capacity: Sequence[float] = (0.0,),
) -> tuple[WorkloadVariant, ...]:
    """Return the captured variants of every combination, by rising tensor degree and microbatch.

    Raises
    ------
    InputError
        If one was not captured; the message names those that were.
    """
    captured = {variant.options: variant for variant in workload.variants}
    chosen = []
    for tensor_degree, expert_tensor in sorted(set(tensor_parallel)):
        of_expert = expert_tensor_of(tensor_degree, expert_tensor)
        for samples, devices, capacity in itertools.product(
            sorted(set(microbatch)), sorted(set(context_parallel)), sorted(set(expert_capacity))
        ):
            in_sequence = sequence_parallel and tensor_degree > 1
            key = tensor_degree, samples, in_sequence, devices, of_expert, capacity
            if key not in captured:
                there = ", ".join(f"{t} and {b}" for t, b, *_ in sorted(captured))
                shared = f" with context_parallel {devices}" if devices > 1 else ""
                shared += f" with expert_tensor_parallel {of_expert}" if of_expert else ""
                shared += f" with expert_capacity {capacity:g}" if capacity else ""
                raise InputError(
                    f"{workload.model} was not captured at tensor degree {tensor_degree} and "
                    f"microbatch {samples}{' with sequence parallelism' if key[2] else ''}{shared};"
                    f" it was at {there}."
                )
            chosen.append(captured[key])
    return tuple(chosen)


def _problem(workload: Workload) -> str | None:
    """Return what is wrong with a workload as a clause of a sentence, or None."""
    for variant in workload.variants:
        if any(index >= len(variant.layers) for _, index in variant.nodes):
            return "a node refers to a layer that is not there"
        if len({name for name, _ in variant.nodes}) < len(variant.nodes):
            return "two nodes have the same name"
        problem = _edge_problem(variant.edges, len(variant.nodes))
        for layer in variant.layers:
            for graph in (layer.forward, layer.backward, layer.selective_recompute):
                if problem is None and (broken := _graph_problem(graph)):
                    problem = f"layer {layer.name!r}: {broken}"
        if problem is not None:
            return problem
    return None


def _graph_problem(graph: OperatorGraph) -> str | None:
    """Return what is wrong with an operator graph."""
    if len({operator.id for operator in graph.operators}) < len(graph.operators):
        return "two operators have the same id"
    for operator in graph.operators:
        problem = _operator_problem(operator)
        if problem is not None:
            return f"operator {operator.id!r} has {problem}"
    for tensor in graph.tensors:
        writers = [writer for writer, _ in tensor.writers]
        readers = [read.operator for read in tensor.readers]
        if max([*writers, *readers], default=-1) >= len(graph.operators):
            return "a tensor belongs to an operator that does not exist"
        if writers and readers and max(writers) >= min(readers):
            return "a tensor is read before it is written"
    return None


def _operator_problem(operator: Operator) -> str | None:
    """Return what is wrong with an operator."""
    unknown = [work.kind for work in operator.vector if work.kind not in _KINDS]
    if unknown:
        return f"vector work of the unknown kind {unknown[0]!r}"
    work = [math.prod((gemm.m, gemm.n, gemm.k, gemm.batch)) for gemm in operator.gemms]
    work += [part.rows * part.columns for part in operator.vector]
    if max(work, default=0) > MOST_WORK:
        return f"work above {MOST_WORK:,} operations"
    if operator.attention is not None and not operator.gemms:
        return "attention scores without a product that takes them"
    return None


def _edge_problem(edges: Sequence[tuple[int, int, int]], count: int) -> str | None:
    """Return what is wrong with edges that must follow the topological order of so many nodes."""
    if len({(source, destination) for source, destination, _ in edges}) < len(edges):
        return "two edges join the same nodes"
    if any(not source < destination < count for source, destination, _ in edges):
        return "an edge does not follow the order of the nodes"
    return None
