"""Selective recompute of chosen parts of a layer: which operators run again, and what is kept.

The parts are those of Megatron-Core (``--recompute-modules``), found in the captured forward of
layers that attend or have routed experts; nothing of a state-space mixer or a delta net is one:

* ``core_attn``: attention from queries, keys and values to its result.
* ``mlp``: both linear layers and what lies between, where a layer has no routed experts;
  ``shared_experts``: the same beside routed experts; ``moe``: router, routed and shared experts.
* ``layernorm``: norms of the residual stream; ``moe_act``: the activation of routed experts;
  ``mla_up_proj``: queries, keys and values out of their short vectors.

A part that runs again needs its inputs and gives again what the backward reads of its inside. The
last three also drop their results ("output discarding"), the others keep those that are read
elsewhere. So with ``S`` the tensors that a layer keeps for its backward,

    kept = S − (tensors of the parts) + (inputs of the parts that are not in S)

and all operators of the parts run again before the backward, with their communication. While it
runs, what they give again is alive: the working set is at most that without recompute and these
tensors, and at most that of full recompute.

Instead of parts a policy may be named (`phaze_opt.activation_names`), which says what is kept:
`phaze_opt.workload.named_tensors`. What of all that is kept waits on the host is found here too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from phaze_opt.activation_names import RECOMPUTE_POLICIES
from phaze_opt.choices import Recompute
from phaze_opt.errors import InputError
from phaze_opt.on_demand import cached_property
from phaze_opt.precision import AttentionPrecision, PrecisionName
from phaze_opt.training import Training
from phaze_opt.training_options import RECOMPUTE_PARTS
from phaze_opt.workload.graph import Layer, WorkloadVariant
from phaze_opt.workload.layer_forward import EXPERT_ACTIVATION, LATENT, LayerForward
from phaze_opt.workload.named_tensors import NOTHING_AGAIN, NamedTensors, RunAgain

_DISCARDING = ("layernorm", "moe_act", "mla_up_proj")
"""Parts whose results are dropped too."""


def with_parts_run_again(
    variants: Sequence[WorkloadVariant], training: Training
) -> list[WorkloadVariant]:
    """Return a model whose selective recompute runs the parts of a training again.

    Parameters
    ----------
    variants
        As captured.
    training
        Names the parts or the policy, and tensors that wait on the host; with none of these the
        variants are as they were.

    Raises
    ------
    InputError
        If no layer has one of the parts, or none of the tensors.
    """
    parts, offloaded = training.parts_again, training.offloaded_names
    changed = list(variants)
    if parts:
        changed = [_with_parts(variant, parts) for variant in changed]
    if offloaded:
        precisions = training.precision, training.attention_precision
        own = parts, offloaded, training.recompute, precisions
        changed = [
            _with_offloaded(after, before, *own)
            for after, before in zip(changed, variants, strict=True)
        ]
    return changed


@lru_cache(maxsize=64)
def parts_by_layer(variant: WorkloadVariant) -> Mapping[str, tuple[str, ...]]:
    """Return the parts of every layer that has any, by its name and in their order, cached."""
    found = {layer.name: _Parts(layer).operators for layer in variant.layers}
    return {name: tuple(parts) for name, parts in found.items() if parts}


def memory_with_parts(variant: WorkloadVariant, layer: str, parts: Iterable[str]) -> list[int]:
    """Return what a layer keeps and holds where parts run again: stash and both working sets."""
    (own,) = (each for each in variant.layers if each.name == layer)
    changed = _Parts(own).with_run_again(parts)
    sizes = changed.stash_bytes, changed.transient_bytes, changed.fused_transient_bytes
    return [each.selective for each in sizes]


@lru_cache(maxsize=256)
def _with_parts(variant: WorkloadVariant, names: tuple[str, ...]) -> WorkloadVariant:
    """Let the parts of a variant run again, or what a policy does not keep."""
    there = parts_by_layer(variant)
    known = {part for parts in there.values() for part in parts}
    known |= {f"{layer}.{part}" for layer, parts in there.items() for part in parts}
    known |= set(RECOMPUTE_POLICIES) if there else set()
    missing = [name for name in names if name not in known]
    if missing:
        plain = [name for name in RECOMPUTE_PARTS if name in known]
        has = f"they have {', '.join(plain)}" if plain else "they have none of them"
        raise InputError(
            f"recompute_parts names {missing[0]}, which no layer of the model has; {has}."
        )
    layers = [_Parts(layer).with_run_again(names) for layer in variant.layers]
    return replace(variant, layers=tuple(layers))


@lru_cache(maxsize=256)
def _with_offloaded(
    variant: WorkloadVariant,
    captured: WorkloadVariant,
    parts: tuple[str, ...],
    offloaded: tuple[str, ...],
    recompute: Recompute,
    precisions: tuple[PrecisionName, AttentionPrecision],
) -> WorkloadVariant:
    """Say of the layers of a variant how much of what they keep is in named tensors.

    Parameters
    ----------
    variant, captured
        With the parts that run again, and as captured.
    parts, offloaded, recompute, precisions
        Of the training.
    """
    layers = []
    for layer, own in zip(variant.layers, captured.layers, strict=True):
        chosen = _Parts(own)
        again = None if recompute == "full" else chosen.again(parts)
        sent = chosen.tensors.offloaded_bytes(offloaded, again, *precisions)
        layers.append(replace(layer, offloaded_bytes=sent))
    if not any(layer.offloaded_bytes for layer in layers):
        raise InputError(
            f"Nothing of {', '.join(offloaded)} is kept by any layer of the model, so that nothing "
            "can wait on the host; offload_parts must name something that is."
        )
    return replace(variant, layers=tuple(layers))


@dataclass(frozen=True)
class _Parts:
    """A layer, and its parts."""

    layer: Layer

    @cached_property
    def forward(self) -> LayerForward:
        """Its forward."""
        return LayerForward(self.layer)

    @cached_property
    def tensors(self) -> NamedTensors:
        """Its activations by name."""
        return NamedTensors(self.forward)

    def with_run_again(self, names: Iterable[str]) -> Layer:
        """Return the layer with parts that selective recompute runs again, before a backward."""
        if not self.layer.has_backward:
            return self.layer
        again = self.again(names)
        more = sum(map(self.forward.bytes_of, again.more))
        return self.forward.with_run_again(again.runs, again.dropped, more)

    def again(self, names: Iterable[str]) -> RunAgain:
        """Return what runs again where parts, or a policy, are named."""
        own = {name.removeprefix(f"{self.layer.name}.") for name in names}
        for name in own & set(RECOMPUTE_POLICIES):
            return self.tensors.under(RECOMPUTE_POLICIES[name])
        chosen = {name: operators for name, operators in self.operators.items() if name in own}
        if not chosen:
            return NOTHING_AGAIN
        forward, runs = self.forward, frozenset[int]().union(*chosen.values())
        needed = {place for place in forward.inputs_of(runs) if not forward.is_kept(place)}
        return RunAgain(runs, self._dropped(chosen), frozenset(needed))

    def _dropped(self, chosen: Mapping[str, frozenset[int]]) -> frozenset[int]:
        """Return the tensors that are kept without recompute, and given again by parts."""
        dropped: set[int] = set()
        for place in self.forward.stash:
            writers = self.forward.writers_of(place)
            readers = {read.operator for read in self.layer.forward.tensors[place].readers}
            for name, runs in chosen.items():
                if writers <= runs and (readers <= runs or name in _DISCARDING):
                    dropped.add(place)
        return frozenset(dropped)

    @cached_property
    def operators(self) -> Mapping[str, frozenset[int]]:
        """The operators of every part that the layer has, by its name."""
        forward = self.forward
        attention, routed = forward.attention, forward.routed
        if not (attention or routed):
            return {}
        linear = frozenset().union(*map(forward.feed_forward, forward.activations))
        norms = filter(forward.is_of_stream, range(len(forward.reads)))
        found = {
            "core_attn": attention,
            "layernorm": frozenset(norms),
            "mlp": frozenset() if routed else linear,
            "moe": routed | linear if routed else frozenset(),
            "moe_act": frozenset(forward.named(EXPERT_ACTIVATION)),
            "mla_up_proj": forward.up_projections if forward.named(*LATENT) else frozenset(),
            "shared_experts": linear if routed else frozenset(),
        }
        return {name: operators for name, operators in found.items() if operators}
