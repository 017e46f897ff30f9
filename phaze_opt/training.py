"""How a model is trained: the options that are neither the model's nor the machine's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar, cast

from phaze_opt.activation_names import OFFLOAD_PARTS, RECOMPUTE_POLICIES
from phaze_opt.arrays import IntArray
from phaze_opt.checked import check_fields
from phaze_opt.choices import (
    ContextKind,
    Dispatcher,
    DispatchPrecision,
    GradientDtype,
    Launch,
    OptimizerName,
    Overlap,
    PipelineScheduleName,
    RankOrderChoice,
    Recompute,
    ResidencyChoice,
)
from phaze_opt.on_demand import hashed_once
from phaze_opt.optimizers import OPTIMIZERS, WEIGHT_BYTES, Optimizer, in_fewer_bits
from phaze_opt.precision import (
    ELEMENT_BYTES,
    PRECISIONS,
    AttentionPrecision,
    Fp8Scaling,
    PrecisionName,
)
from phaze_opt.printing import short_repr
from phaze_opt.training_options import check_training_options

Replicas = TypeVar("Replicas", int, IntArray)


WEIGHT_COPY_BYTES = 4
"""Read and written per gathered bf16 weight to copy it out of the flat buffer of a layer.

PyTorch's FSDP2 does so on the stream that computes, before the layer's forward and again before its
backward (``foreach_all_gather_copy_out`` in ``torch/distributed/fsdp/_fully_shard/
_fsdp_collectives.py``). What is copied into the buffer is a device's shard only, and not counted.
"""
GRADIENT_COPY_BYTES = {"fp32": 6, "bf16": 4}
"""Read in bf16 and written per gradient to bring a layer's into the flat buffer, by its dtype.

On the same stream after the layer's backward (``foreach_reduce_scatter_copy_in``). Gradients come
back as shards, which is not counted.
"""


def recompute_with(parts: str, recompute: Recompute) -> Recompute:
    """Return the recompute that is meant where parts are named, and perhaps nothing else."""
    return "selective" if parts and recompute == "none" else recompute


ZERO_BUBBLE: tuple[PipelineScheduleName, ...] = ("zb-h1", "zb-h2", "zb-1p", "zb-2p", "zb-v")
"""Schedules that split the backward, see `phaze_opt.placement.zero_bubble`."""


@hashed_once
@dataclass(frozen=True, repr=False)
class Training:
    """Options of a training run.

    Attributes
    ----------
    global_batch
        Samples per optimizer step over all devices.
    microbatch
        Samples per pipeline step on one data-parallel replica.
    recompute
        ``none``, ``selective`` (attention's core; with fused attention every other product and what
        lies between, see `phaze_opt.workload.capture.selective_recompute`) or ``full`` (a
        checkpoint per layer); ``solve`` for the fastest of these and of all sets of parts, which
        `phaze_opt.evaluation.evaluate` finds (`phaze_opt.recompute_search`).
    optimizer
        Key of `OPTIMIZERS`.
    sequence_parallel
        Whether tensor-parallel groups also split the sequence (reduce-scatter and all-gather).
    zero
        Stage of ZeRO (S. Rajbhandari et al., SC 2020): replicas share out nothing (0), the
        optimizer state (1), gradients too (2), or weights too (3).
    pipeline_schedule
        ``1f1b``, ``gpipe`` (all forwards before all backwards), ``interleaved``, or one of
        `ZERO_BUBBLE`, whose stages make weight gradients when nobody waits for anything else.
    interleave
        Chunks of layers per stage of an interleaved pipeline; 1 otherwise.
    overlap
        What communication runs beside compute: ``none`` (Megatron-LM of 2021), ``partial`` (most of
        the gathers of weights, as XLA's programs for TPUs do, see
        `phaze_opt.placement.synchronisation`), ``data`` (what replicas exchange, as frameworks do
        by default today), ``experts`` (also tokens to their experts and back, beside the compute of
        another microbatch, see `phaze_opt.passes.paired`) or ``all`` (also the tensor-parallel
        collectives next to a product, chunk by chunk).
    fused_optimizer
        Whether the optimizer step runs in one pass over its state.
    recompute_early_stop
        Whether what full recompute runs again of a layer ends with the last product, or the last
        kept result, that its backward needs, as ``torch.utils.checkpoint`` does by default
        (``early_stop``): the results of experts that another device has are not sent once more.
        Megatron-LM's own checkpoints run all of it.
    gather_copies
        Whether weights that ZeRO 3 gathers are copied out of the communication buffer, and
        gradients into it, as PyTorch's FSDP does (see `WEIGHT_COPY_BYTES`); other frameworks
        communicate in place.
    residency
        Whether tensors may stay in the global buffer from one operator to the next: where the
        program manages it as the schedule says, where it is a cache as reads find them there. With
        ``"tiles"``, operators may also run tile by tile, so that a tensor between them needs room
        for two tiles only (`phaze_opt.scheduling.tiles`); on a cache that means as much as
        ``True``.
    launch
        How the host starts kernels: ``graphs`` (recorded once and started together, as CUDA graphs
        and XLA's programs), ``compiled`` (one by one after fusion) or ``eager`` (every operator of
        the framework by itself). See `phaze_opt.passes.launches`.
    gradient_dtype
        In which replicas reduce gradients: ``fp32``, ``bf16``, or that of the optimizer's gradients
        where it is not said. What devices hold and accumulate is the optimizer's.
    expert_parallel
        Replicas that share the routed experts of a model out among them, neighbours in the order of
        ranks; each expert is split over the tensor-parallel group as everything else is. It
        divides the experts and the replicas.
    dispatcher
        What sends tokens to their experts and back (`phaze_opt.network.token_exchange`).
    expert_imbalance
        Rows of the device with the most, relative to even routing, where experts are shared out.
        It takes that much longer; what devices hold is that of even routing.
    recompute_parts
        Which parts of a layer selective recompute runs again, of `RECOMPUTE_PARTS` with commas
        between them; ``block.mlp`` is that of layers of this name only. Or one of
        `RECOMPUTE_POLICIES` alone, which says what is kept. What ``recompute`` describes where none
        is named.
    context_parallel
        Devices that share every sequence, see `phaze_opt.workload.context_parallel`: neighbours in
        the order of ranks, next to the tensor-parallel group. They hold the same parameters, so
        they reduce gradients, and share out states, with those of the other sequences.
    context_kind
        How they attend to the whole sequence: ``ring``, ``a2a`` or ``gather``.
    precision
        In what linear layers multiply, see `phaze_opt.workload.recipes`: ``bf16`` or a recipe with
        fewer bits. Loss of accuracy is not modelled: whether the model still trains as well is for
        the user to know.
    fp8_scaling
        Whence the scale of a tensor comes where it has one (precision, or attention, in ``fp8``):
        ``current``, its own largest element, which is looked for before the cast, or ``delayed``,
        those of steps before, so that the cast is part of the kernel that makes the tensor. The
        largest elements are then exchanged by all devices in one message of a few bytes per
        microbatch and direction, which is not counted.
    fp8_transposes
        Whether products in ``fp8`` read operands by columns from a copy of their own, transposed,
        as Hopper needs it; the recipes with scales of rows or blocks always do. As the chip does
        where it is not said (`phaze_opt.hardware.accelerator.Accelerator`).
    fp8_primary_weights
        Whether weights are held in fp8 only, in all their copies, with no copy in 16 bits beside
        the optimizer's master weights in fp32 (``fp8_model_init`` of Transformer Engine,
        ``--fp8-param-gather`` of Megatron-LM).
    fp8_param_gather
        Whether replicas that share the optimizer or the weights out gather weights in fp8; nothing
        changes where nothing is gathered. Below ZeRO 3, only with ``fp8_primary_weights``. Weights
        in mxfp8 are gathered in bf16, since their copies by rows and by columns are cast apart.
    bf16_layers_at_start, bf16_layers_at_end
        How many of the first and of the last layers stay in 16 bits whatever the precisions, see
        `phaze_opt.workload.bf16_layers`; nothing changes where all layers do.
    linear_precisions
        Linear layers that run in another precision than the others, by the names of
        `phaze_opt.workload.linear_precisions`: ``linear_qkv=bf16,out_proj=mxfp8``.
    attention_precision
        In what fused attention multiplies: ``bf16``, or ``fp8`` and ``mxfp8`` where a kernel was
        measured on the chip. Queries, keys and values are cast, and kept so for the backward.
    accumulation_dtype
        In which gradients are held and added up over microbatches, and reduced where
        ``gradient_dtype`` does not say otherwise: ``fp32``, ``bf16`` (Megatron-LM without
        ``--accumulate-allreduce-grads-in-fp32``), or as the optimizer does.
    fused_accumulation
        Whether the products that make weight gradients add them up over microbatches themselves,
        see `phaze_opt.workload.fused_accumulation`. Nothing changes at stages 2 and 3 of ZeRO,
        where each replica adds up its share of what has been reduced.
    expert_tensor_parallel
        Neighbouring devices over which each routed expert is split; 0 for the tensor-parallel
        group, whatever its degree. With another number than that, sequence parallelism must give
        the devices of that group tokens of their own, and groups of ``expert_tensor_parallel`` ×
        ``expert_parallel`` devices hold all experts once: fewer or more than that group has, and a
        divisor of all that hold the same layers.
    expert_capacity
        Rows that every expert has of the tokens of each device, relative to even routing: tokens
        beyond them are dropped, fewer are filled up to them. 0 where each has the tokens that come.
        Shared out, only the dispatcher ``nccl`` sends them.
    dispatch_precision
        In what tokens go to their experts, and gradients of results after them: ``fp8`` with a
        scale per 128 elements (DeepEP), where experts multiply in fp8; see
        `phaze_opt.workload.narrow_dispatch`. Results come back in 16 bits. What devices hold is
        that of 16 bits.
    zero_group
        Among how many neighbouring replicas ZeRO shares out; the groups hold copies of one another
        (hybrid sharding: ``HYBRID_SHARD`` of PyTorch's FSDP; MaxText's ``dcn_data_parallelism``
        beside ``ici_fsdp_parallelism``). 0 for all replicas. Where routed experts are shared
        out, a group holds all of them once or more: its devices with the same ones share these.
    rank_order
        The orders of ranks that a placement may have, tensor parallelism innermost: ``two``, or
        ``solve`` for those with some replicas inside the stages and others outside, too. Replicas
        inside fill units of the network's levels, or share experts and sequences.
    offload_parts
        What of a layer waits on the host from its forward to its backward, of `OFFLOAD_PARTS` with
        commas between them: ``layer`` for all that the layer keeps, or inputs of parts. It goes
        out beside forwards and comes back beside backwards (`phaze_opt.passes.offload`).
    offload_share
        Share of the layers that do so, from above 0 to 1: 20 of 80 is 0.25. It holds for every
        layer alike, as frameworks spread the transfers over all layers; nothing changes where
        nothing is offloaded.
    offload_optimizer
        Share of the optimizer state that waits on the host from step to step, from 0 to 1; it comes
        in for the step and goes out after it.
    """

    global_batch: int
    microbatch: int = 1
    recompute: Recompute = "none"
    optimizer: OptimizerName = "sgd"
    sequence_parallel: bool = False
    zero: int = 0
    pipeline_schedule: PipelineScheduleName = "1f1b"
    interleave: int = 1
    overlap: Overlap = "data"
    fused_optimizer: bool = True
    recompute_early_stop: bool = False
    gather_copies: bool = False
    residency: ResidencyChoice = True
    launch: Launch = "graphs"
    gradient_dtype: GradientDtype | None = None
    expert_parallel: int = 1
    dispatcher: Dispatcher = "nccl"
    expert_imbalance: float = 1.0
    precision: PrecisionName = "bf16"
    fp8_primary_weights: bool = False
    fp8_param_gather: bool = False
    attention_precision: AttentionPrecision = "bf16"
    accumulation_dtype: GradientDtype | None = None
    context_parallel: int = 1
    context_kind: ContextKind = "ring"
    recompute_parts: str = ""
    fused_accumulation: bool = False
    expert_tensor_parallel: int = 0
    expert_capacity: float = 0.0
    dispatch_precision: DispatchPrecision = "bf16"
    bf16_layers_at_start: int = 0
    bf16_layers_at_end: int = 0
    fp8_scaling: Fp8Scaling = "current"
    fp8_transposes: bool | None = None
    zero_group: int = 0
    rank_order: RankOrderChoice = "two"
    offload_parts: str = ""
    offload_share: float = 1.0
    offload_optimizer: float = 0.0
    linear_precisions: str = ""

    def __repr__(self) -> str:
        return short_repr(self)

    def __post_init__(self) -> None:
        check_fields(self)
        check_training_options(self)

    def sharing(self, replicas: int) -> int:
        """Return among how many of some replicas ZeRO shares out."""
        return min(self.zero_group, replicas) if self.zero_group else replicas

    def microbatches(self, data: Replicas) -> Replicas:
        """Return how many microbatches each of some replicas runs per batch.

        Where they do not divide the batch, some samples are trained beyond it.

        Parameters
        ----------
        data
            How many replicas of the parameters there are, devices of a sequence among them: a
            number, or an array of numbers.
        """
        return -(-self.global_batch * self.context_parallel // (data * self.microbatch))

    @property
    def parts_again(self) -> tuple[str, ...]:
        """The parts that selective recompute runs again, sorted."""
        if not self.recompute_parts:
            return ()
        return tuple(sorted({name.strip() for name in self.recompute_parts.split(",")}))

    @property
    def precision_by_linear(self) -> dict[str, PrecisionName]:
        """Precisions of linear layers that have another one than the others, by name."""
        pairs = filter(None, map(str.strip, self.linear_precisions.split(",")))
        named = (pair.partition("=") for pair in pairs)
        return {name.strip(): cast(PrecisionName, own.strip()) for name, _, own in named}

    @property
    def parts_offloaded(self) -> tuple[str, ...]:
        """The parts of a layer that wait on the host, sorted."""
        if not self.offload_parts:
            return ()
        return tuple(sorted({name.strip() for name in self.offload_parts.split(",")}))

    @property
    def offloaded_names(self) -> tuple[str, ...]:
        """Names of the tensors that wait on the host; none where all that a layer keeps does."""
        names = [name for part in self.parts_offloaded for name in OFFLOAD_PARTS[part]]
        policies = [RECOMPUTE_POLICIES[p] for p in self.parts_again if p in RECOMPUTE_POLICIES]
        names += [name for policy in policies for name in policy.offloaded]
        return () if "layer" in self.parts_offloaded else tuple(dict.fromkeys(names))

    @property
    def offloads_activations(self) -> bool:
        """Whether anything that layers keep waits on the host."""
        return bool(self.parts_offloaded or self.offloaded_names)

    @property
    def offloads(self) -> bool:
        """Whether anything waits on the host."""
        return self.offloads_activations or self.offload_optimizer > 0.0

    @property
    def offloaded_state_bytes(self) -> float:
        """Bytes per parameter of the optimizer state on the host, of those a replica steps."""
        return OPTIMIZERS[self.optimizer].state_bytes * self.offload_optimizer

    @property
    def most_replicas(self) -> int:
        """The most replicas that a batch has work for, as `microbatches` counts them."""
        return self.global_batch // self.microbatch * self.context_parallel

    def expert_devices(self, tensor: int) -> int:
        """Return the devices that hold all routed experts once, neighbours of some groups.

        Parameters
        ----------
        tensor
            Devices of a tensor-parallel group.
        """
        return self.expert_parallel * (self.expert_tensor_parallel or tensor)

    def holds_experts_apart(self, tensor: int) -> bool:
        """Whether other devices than a tensor-parallel group hold all routed experts once."""
        return self.expert_devices(tensor) != tensor

    def expert_step(self, tensor: int) -> int:
        """Return of what replicas are a multiple, so that whole groups hold all experts."""
        holding = self.expert_devices(tensor)
        return holding // math.gcd(holding, tensor)

    def with_same_experts(self, data: Replicas, tensor: int, stride: int) -> tuple[Replicas, int]:
        """Return how many devices of some replicas have the same experts, and how far apart.

        Parameters
        ----------
        data, stride
            How many replicas there are, and how far apart.
        tensor
            Devices of each.
        """
        holding = self.expert_devices(tensor)
        return data * tensor // holding, stride * holding // tensor

    def replica_step(self, tensor: int) -> int:
        """Return what the number of replicas of so many devices is a multiple of."""
        return math.lcm(self.expert_step(tensor), self.context_parallel)

    def fewest_replicas(self, tensor: int) -> int:
        """Return the fewest replicas: where one has the same experts twice, it is not alone."""
        step = self.replica_step(tensor)
        return 2 if step == 1 and self.expert_devices(tensor) < tensor else step

    @property
    def has_tensor_groups_only(self) -> bool:
        """Whether layers send nothing beyond the tensor-parallel group."""
        return self.expert_parallel == self.context_parallel == 1 and not (
            self.expert_tensor_parallel
        )

    @property
    def splits_backward(self) -> bool:
        """Whether stages make the weight gradients of a microbatch apart from its backward."""
        return self.pipeline_schedule in ZERO_BUBBLE

    @property
    def schedule_of_chunk(self) -> PipelineScheduleName:
        """How stages alternate forwards and backwards where each is one chunk.

        Of schedules that split the backward, the one that they are never slower than.
        """
        return "gpipe" if self.pipeline_schedule == "gpipe" else "1f1b"

    @property
    def copy_bytes(self) -> tuple[float, float]:
        """Bytes per local parameter that a forward and a backward copy around communication.

        Weights that ZeRO 3 gathers are cast each time too.
        """
        if self.zero < 3:
            return 0, 0
        forward, backward = self._gathered_cast_bytes
        if not self.gather_copies:
            return forward, backward
        gradient_copy_bytes = GRADIENT_COPY_BYTES[self.gradient_dtype or "fp32"]
        weight_copy_bytes = self.state.gathered_bytes / WEIGHT_BYTES * WEIGHT_COPY_BYTES
        return forward + weight_copy_bytes, backward + weight_copy_bytes + gradient_copy_bytes

    @property
    def _gathered_cast_bytes(self) -> tuple[float, float]:
        """Bytes per weight to cast what ZeRO 3 gathered: by rows forward, by columns backward."""
        if self.precision == "bf16":
            return 0, 0
        narrow = PRECISIONS[self.precision].weight_bytes
        if self.fp8_param_gather:
            # A copy by columns is a transpose of the gathered one.
            return 0, 2 * narrow * (self.narrow_copies - 1)
        return WEIGHT_BYTES + narrow, WEIGHT_BYTES + narrow

    @property
    def reduced_bytes(self) -> int:
        """Bytes per gradient that replicas, and stages with tied weights, exchange."""
        if self.gradient_dtype is None:
            return self.state.gradient_bytes
        return ELEMENT_BYTES[self.gradient_dtype]

    @property
    def narrow_copies(self) -> int:
        """How many narrow copies of an operand its three products read: by rows, and by columns."""
        return 1 if self.precision == "fp8" and self.fp8_transposes is False else 2

    @property
    def is_narrow(self) -> bool:
        """Whether linear layers, or fused attention, multiply in fewer bits than 16."""
        return (self.precision, self.attention_precision) != ("bf16", "bf16")

    @property
    def products_accumulate(self) -> bool:
        """Whether products add up the weight gradients that they make."""
        return self.fused_accumulation and self.zero < 2

    @property
    def accumulator_dtype(self) -> GradientDtype:
        """In which gradients are held and added up."""
        return "fp32" if self.state.gradient_bytes == ELEMENT_BYTES["fp32"] else "bf16"

    @property
    def hides_gradients(self) -> bool:
        """Whether the exchange of gradients runs beside compute."""
        return self.overlap in ("data", "experts", "all")

    @property
    def pairs_microbatches(self) -> bool:
        """Whether tokens go to their experts beside the compute of another microbatch."""
        return self.expert_parallel > 1 and self.overlap in ("experts", "all")

    @property
    def step_bytes(self) -> float:
        """Bytes per parameter that one optimizer step reads and writes, of those a replica steps.

        Primary weights that are gathered in fp8 are written so, not in 16 bits. Where products add
        gradients up, those of the first microbatch are not added kernel by kernel, which is left
        out for the few parameters too whose gradients no product writes.
        """
        optimizer = self.state
        own = optimizer.fused_step_bytes if self.fused_optimizer else optimizer.eager_step_bytes
        if self.products_accumulate and not self.fused_optimizer:
            own -= optimizer.first_added_bytes
        if self._gathers_primary_weights:
            return own + PRECISIONS[self.precision].weight_bytes - WEIGHT_BYTES
        return own

    @property
    def state(self) -> Optimizer:
        """What is held and moved per parameter: the optimizer's, and narrow copies of weights.

        A copy by rows and one by columns, where that is another, stand beside the weights in 16
        bits, as Transformer Engine keeps them where nobody asks for narrow primary weights. Those
        whose products stay in 16 bits are held so alone (``wide_bytes``, and ``wide_parameters`` of
        `phaze_opt.passes.layer_cost.LayerCost`); stepped, cast and gathered they are counted as the
        others. Primary weights in fp8 take as many bytes in both copies as one in 16 bits. What
        ZeRO 3 gathers is cast whenever it has been, and not kept.
        """
        return in_fewer_bits(
            self.optimizer,
            self.precision,
            self.zero,
            self.narrow_copies,
            self.fp8_primary_weights,
            self.fp8_param_gather,
            self.accumulation_dtype,
            self.offload_optimizer,
        )

    @property
    def cast_bytes(self) -> float:
        """Bytes per local parameter to cast all weights of a device, once per batch.

        From 16 bits to all copies, after the step and the gather of what replicas stepped: each
        replica casts all of its own. Primary weights that are gathered in fp8 are only transposed,
        where columns have a copy of their own.
        """
        if self.precision == "bf16" or self.zero == 3:
            return 0
        narrow = PRECISIONS[self.precision].weight_bytes
        if self._gathers_primary_weights:
            return 2 * narrow * (self.narrow_copies - 1)
        return WEIGHT_BYTES + self.narrow_copies * narrow

    @property
    def _gathers_primary_weights(self) -> bool:
        """Whether what a step writes is all that there is of a weight, in fp8."""
        return self.fp8_primary_weights and self.fp8_param_gather and self.zero < 3
