"""The graphs of a layer that run, by the names of its passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from phaze_opt.choices import FusionMode
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.precision import AttentionPrecision, PrecisionName
from phaze_opt.training import Training
from phaze_opt.workload.fusion import fuse
from phaze_opt.workload.graph import Layer, OperatorGraph
from phaze_opt.workload.linear_precisions import weight_precisions
from phaze_opt.workload.recipes import has_loss, narrow_attention, quantised

Pass = TypeVar("Pass")

fuse_once = lru_cache(maxsize=1024)(fuse)


def default_fusion(accelerator: Accelerator) -> FusionMode:
    """Return how operators are fused where nobody says: as an eager framework on a GPU's stream."""
    return "epilogue" if accelerator.concurrent_operators else "elementwise"


def as_estimated(training: Training) -> Training:
    """Return how a model is trained without what none of its passes depends on.

    Runs that differ in nothing else, as in their stage of ZeRO, share their estimates.
    """
    if training.zero == 0 and training.launch == "graphs":
        return training
    return replace(training, zero=0, zero_group=0, launch="graphs")


def precisions_of(layer: Layer, training: Training) -> tuple[PrecisionName, AttentionPrecision]:
    """Return in what a layer's linear layers multiply, and its fused attention.

    The linear layers of the layer with the loss stay in 16 bits, whatever the training says, and
    all of a layer that is marked so (`phaze_opt.workload.bf16_layers`).
    """
    if layer.in_bf16:
        return "bf16", "bf16"
    return "bf16" if has_loss(layer) else training.precision, training.attention_precision


@lru_cache(maxsize=256)
def until_needed(forward: OperatorGraph, output_bytes: int) -> OperatorGraph:
    """Return a forward up to what its backward needs: see `Training.recompute_early_stop`.

    Parameters
    ----------
    forward
        Of a layer.
    output_bytes
        Of its result, which the next layer keeps.
    """
    kept = [
        tensor
        for tensor in forward.tensors
        if tensor.outlives
        and tensor.kind == "activation"
        and (tensor.readers or tensor.elements * tensor.element_bytes != output_bytes)
    ]
    needed = [writer for tensor in kept for writer, _ in tensor.writers]
    readers = {read.operator for tensor in kept for read in tensor.readers}
    needed += [index for index in readers if forward.operators[index].gemms]
    end = max(needed, default=-1) + 1
    tensors = []
    for tensor in forward.tensors:
        writers = tuple([(writer, count) for writer, count in tensor.writers if writer < end])
        own = tuple([read for read in tensor.readers if read.operator < end])
        if writers or own:
            # What nobody reads any more is written all the same.
            outlives = tensor.outlives or not own
            tensors.append(replace(tensor, writers=writers, readers=own, outlives=outlives))
    return OperatorGraph(forward.operators[:end], tuple(tensors))


def again_of(training: Training) -> str | None:
    """Name the pass that runs again before the backward of layers; ``None`` for none."""
    if training.recompute == "full" and not training.recompute_early_stop:
        return "forward"
    return None if training.recompute == "none" else "recompute"


def graphs_of(layer: Layer, training: Training) -> dict[str, OperatorGraph]:
    """Name the graphs that run, in their precisions: see `again_of` for the recompute."""
    precision, attention_precision = precisions_of(layer, training)
    graphs = {"forward": layer.forward, "backward": layer.backward}
    if training.recompute == "selective":
        graphs["recompute"] = layer.selective_recompute
    elif again_of(training) == "recompute":
        graphs["recompute"] = until_needed(layer.forward, layer.output_bytes)
    if attention_precision != "bf16":
        graphs = {
            name: narrow_attention(
                graph,
                attention_precision,
                stashed=name == "backward",
                scaling=training.fp8_scaling,
            )
            for name, graph in graphs.items()
        }
    if precision == "bf16":
        return graphs
    others = weight_precisions(layer, training)
    return {
        name: quantised(
            graph,
            precision,
            stashed=name == "backward",
            scaling=training.fp8_scaling,
            column_copies=training.narrow_copies > 1,
            others=others,
        )
        for name, graph in graphs.items()
    }


def again_in(layer: Layer, training: Training) -> str | None:
    """Name the pass that runs again before the backward of a layer; ``None`` for none.

    Nothing does where the layer has no backward, since neither it nor what is before it is trained.
    """
    return again_of(training) if layer.has_backward else None


def runs_again(layer: Layer, passes: Mapping[str, Pass], training: Training) -> Pass | None:
    """Return what runs again before the backward, of passes by the names of `graphs_of`."""
    again = again_in(layer, training)
    return None if again is None else passes[again]
