"""How a model is trained: the options that are neither the model's nor the machine's."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

from phaze_opt.activation_names import OFFLOAD_PARTS, RECOMPUTE_POLICIES
from phaze_opt.arrays import IntArray
from phaze_opt.checked import check_fields, shown
from phaze_opt.choices import (
    ContextKind,
    Dispatcher,
    GradientDtype,
    Launch,
    OptimizerName,
    Overlap,
    PipelineScheduleName,
    Recompute,
)
from phaze_opt.errors import InputError, unknown_name
from phaze_opt.limits import MOST_SAMPLES, check_size
from phaze_opt.on_demand import hashed_once
from phaze_opt.precision import (
    ELEMENT_BYTES,
    PARAM_GATHER,
    PRECISIONS,
    PRIMARY_WEIGHTS,
    AttentionPrecision,
    Fp8Scaling,
    PrecisionName,
)
from phaze_opt.printing import short_repr

Replicas = TypeVar("Replicas", int, IntArray)


@hashed_once
@dataclass(frozen=True)
class Optimizer:
    """Bytes per local parameter that an optimizer holds and moves (as Megatron-LM trains).

    Attributes
    ----------
    weight_bytes, gradient_bytes, state_bytes
        Held: working weights, gradient accumulator, master copy and moments.
    fused_step_bytes
        Read and written by one optimizer step in one pass.
    eager_kernels
        The kernels of a step as an eager framework runs it, with what each reads and writes.
    step_cycles
        Lane cycles of one optimizer step.
    copy_bytes
        Held: narrow copies of the working weights.
    gathered_bytes
        Of a weight, as replicas gather it.
    whole_weight_bytes
        Of a weight of the layer that runs, where replicas share weights out.
    """

    name: OptimizerName
    weight_bytes: float
    gradient_bytes: int
    state_bytes: float
    fused_step_bytes: int
    eager_kernels: tuple[tuple[str, int], ...]
    step_cycles: int
    copy_bytes: float = 0
    gathered_bytes: float = 2
    whole_weight_bytes: float = 2

    @property
    def eager_step_bytes(self) -> int:
        """Read and written by one optimizer step, kernel by kernel."""
        return sum(moved for _, moved in self.eager_kernels)

    @property
    def first_added_bytes(self) -> int:
        """What it has of these to add the first microbatch's gradients to the accumulator."""
        return sum(moved for name, moved in self.eager_kernels if name == _FIRST_ADDED)

    @property
    def held_bytes(self) -> tuple[float, int, float]:
        """Held per parameter, by kind."""
        return self.weight_bytes + self.copy_bytes, self.gradient_bytes, self.state_bytes

    @property
    def accumulation_bytes(self) -> int:
        """Read and written per parameter to add one microbatch's gradients to the accumulator."""
        return 2 * self.gradient_bytes


_FIRST_ADDED = "first gradient added"


def _megatron_kernels(adam: int) -> tuple[tuple[str, int], ...]:
    """Return the kernels of a step of Megatron-LM's mixed-precision optimizer.

    As in ``megatron/optimizer/optimizer.py`` (``step``) and ``clip_grads.py`` of 2021 and 2022,
    with apex' fused Adam, and ``megatron/model/distributed.py``. The first two are not of the step,
    but happen once per batch for it: the buffer of gradients is filled with zeros, and the first
    microbatch's are added to it (read in 16 bits, read and written in fp32); what later ones add
    is counted with them.

    Parameters
    ----------
    adam
        Bytes that the fused Adam reads and writes.
    """
    return (
        ("gradients to zero", 4),
        (_FIRST_ADDED, 10),
        ("unscaling", 8),
        ("norm of the gradient", 4),
        ("clipping", 8),
        ("step", adam),
        ("copy to the weights", 6),
    )


OPTIMIZERS = {
    # bf16 weights and gradients; a step reads both and writes the weight.
    "sgd": Optimizer(
        "sgd",
        weight_bytes=2,
        gradient_bytes=2,
        state_bytes=0,
        fused_step_bytes=6,
        eager_kernels=(("step", 6),),
        step_cycles=2,  # scale the gradient, subtract
    ),
    # Mixed precision: bf16 weights, fp32 gradients, fp32 master weight and two moments. A fused
    # step reads gradient, master and moments (16) and writes master, moments and weight (14).
    "adam": Optimizer(
        "adam",
        weight_bytes=2,
        gradient_bytes=4,
        state_bytes=12,
        fused_step_bytes=30,
        eager_kernels=_megatron_kernels(adam=28),
        # First moment 2, second moment 3, square root 4, add, divide 4, scale and subtract 2.
        step_cycles=16,
    ),
    # The same with moments in bf16, as Transformer Engine's FusedAdam holds them for the
    # precision-aware optimizer of Megatron-Core (``exp_avg_dtype``, ``exp_avg_sq_dtype``). A fused
    # step reads gradient, master and moments (12) and writes master, moments and weight (10).
    "adam-bf16": Optimizer(
        "adam-bf16",
        weight_bytes=2,
        gradient_bytes=4,
        state_bytes=8,
        fused_step_bytes=22,
        eager_kernels=_megatron_kernels(adam=20),
        # As adam, and both moments converted on the way in and out.
        step_cycles=20,
    ),
    # The same state, stepped by PyTorch's own AdamW as it runs by default (``foreach``): one kernel
    # per operation over all parameters, in fp32, whatever is fused elsewhere.
    "adam-foreach": Optimizer(
        "adam-foreach",
        weight_bytes=2,
        gradient_bytes=4,
        state_bytes=12,
        fused_step_bytes=98,
        eager_kernels=(
            ("norm of the gradient", 4),
            ("clipping", 8),
            ("weight decay", 8),
            ("first moment towards the gradient", 12),
            ("second moment scaled", 8),
            ("squared gradient added to it", 12),
            ("its root", 8),
            ("divided", 8),
            ("plus epsilon", 8),
            ("quotient added to the master weight", 16),
            ("cast to the weight", 6),
        ),
        # Norm 2, clipping, weight decay, first moment 3, second moment 4, square root 4, divide 4,
        # add, divide 4, scale and add 2, convert.
        step_cycles=27,
    ),
}


_WEIGHT_BYTES = ELEMENT_BYTES["bf16"]
"""Of a working weight where it is not held in fewer bits."""


@lru_cache(maxsize=64)
def _in_fewer_bits(
    name: OptimizerName,
    precision: PrecisionName,
    zero: int,
    copies: int,
    primary_weights: bool,
    param_gather: bool,
    accumulation_dtype: GradientDtype | None,
    offloaded: float,
) -> Optimizer:
    """Return what `Training.state` does, cached."""
    own = OPTIMIZERS[name]
    if offloaded:
        own = replace(own, state_bytes=own.state_bytes * (1.0 - offloaded))
    if accumulation_dtype is not None:
        gradient_bytes = ELEMENT_BYTES[accumulation_dtype]
        less = own.gradient_bytes - gradient_bytes
        own = replace(
            own,
            gradient_bytes=gradient_bytes,
            fused_step_bytes=own.fused_step_bytes - less,
        )
    if precision == "bf16":
        return own
    narrow = PRECISIONS[precision].weight_bytes
    all_copies = copies * narrow
    if primary_weights:
        own = replace(own, weight_bytes=all_copies, whole_weight_bytes=all_copies)
    elif zero == 3:
        # Weights are cast when they have been gathered, or just before that.
        whole = all_copies if param_gather else _WEIGHT_BYTES + all_copies
        own = replace(own, whole_weight_bytes=whole)
    else:
        own = replace(own, copy_bytes=all_copies)
    return replace(own, gathered_bytes=narrow) if param_gather else own


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
RECOMPUTE_PARTS = (
    "core_attn",
    "layernorm",
    "mlp",
    "moe",
    "moe_act",
    "mla_up_proj",
    "shared_experts",
)
"""What `Training.recompute_parts` may name; see `phaze_opt.workload.recompute_parts`."""
MOST_IMBALANCE = 64.0
"""Largest `Training.expert_imbalance`, and `Training.expert_capacity`."""


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
    gather_copies
        Whether weights that ZeRO 3 gathers are copied out of the communication buffer, and
        gradients into it, as PyTorch's FSDP does (see `WEIGHT_COPY_BYTES`); other frameworks
        communicate in place.
    residency
        Whether tensors may stay in the global buffer from one operator to the next: where the
        program manages it as the schedule says, where it is a cache as reads find them there.
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
        ``expert_parallel`` devices hold all experts once: a multiple of the tensor-parallel group.
    expert_capacity
        Rows that every expert has of the tokens of each device, relative to even routing: tokens
        beyond them are dropped, fewer are filled up to them. 0 where each has the tokens that come.
        Shared out, only the dispatcher ``nccl`` sends them.
    zero_group
        Among how many neighbouring replicas ZeRO shares out; the groups hold copies of one another
        (hybrid sharding: ``HYBRID_SHARD`` of PyTorch's FSDP; MaxText's ``dcn_data_parallelism``
        beside ``ici_fsdp_parallelism``). 0 for all replicas.
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
    gather_copies: bool = False
    residency: bool = True
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
    bf16_layers_at_start: int = 0
    bf16_layers_at_end: int = 0
    fp8_scaling: Fp8Scaling = "current"
    fp8_transposes: bool | None = None
    zero_group: int = 0
    offload_parts: str = ""
    offload_share: float = 1.0
    offload_optimizer: float = 0.0

    def __repr__(self) -> str:
        return short_repr(self)

    def __post_init__(self) -> None:
        check_fields(self)
        check_size("global_batch", self.global_batch, MOST_SAMPLES)
        if not 1 <= self.microbatch <= self.global_batch:
            raise InputError(
                f"microbatch is {shown(self.microbatch)}, but it must be between 1 and the global "
                f"batch of {self.global_batch}."
            )
        if self.zero not in (0, 1, 2, 3):
            raise InputError(f"zero is {shown(self.zero)}, but it must be 0, 1, 2 or 3.")
        check_size("interleave", self.interleave, MOST_SAMPLES)
        if self.interleave > 1 and self.pipeline_schedule != "interleaved":
            own = "2 chunks" if self.pipeline_schedule == "zb-v" else "1 chunk"
            raise InputError(
                f"interleave is {self.interleave}, but the pipeline schedule "
                f"{self.pipeline_schedule} has {own} per stage."
            )
        self._check_split_backward()

        check_size("expert_parallel", self.expert_parallel, MOST_SAMPLES)
        check_size("context_parallel", self.context_parallel, MOST_SAMPLES)
        if self.expert_tensor_parallel != 0:
            check_size("expert_tensor_parallel", self.expert_tensor_parallel, MOST_SAMPLES)
        self._check_parts()
        if self.recompute_parts and self.recompute != "selective":
            raise InputError(
                f"recompute is {self.recompute}, but with recompute_parts "
                f"{self.recompute_parts} it must be selective."
            )
        if not 1.0 <= self.expert_imbalance <= MOST_IMBALANCE:
            raise InputError(
                f"expert_imbalance is {self.expert_imbalance}, but it must be between 1 and "
                f"{MOST_IMBALANCE:g}."
            )
        self._check_capacity()
        for name in ("bf16_layers_at_start", "bf16_layers_at_end"):
            check_size(name, getattr(self, name), MOST_SAMPLES, least=0)
        if self.fp8_scaling == "delayed":
            self._check_delayed_scaling()
        self._check_zero_group()
        self._check_offload()
        self._check_fp8_weights()

    def _check_capacity(self) -> None:
        """Refuse a capacity that is none, or contradicts another option."""
        capacity = self.expert_capacity
        if capacity == 0.0:
            return
        if not 0.0 < capacity <= MOST_IMBALANCE:
            raise InputError(
                f"expert_capacity is {capacity}, but it must be 0, or above it and at most "
                f"{MOST_IMBALANCE:g}."
            )
        if self.expert_imbalance != 1.0:
            raise InputError(
                f"expert_imbalance is {self.expert_imbalance}, but with an expert_capacity of "
                f"{capacity} every expert has the same rows; it must be 1."
            )
        if self.expert_parallel > 1 and self.dispatcher != "nccl":
            raise InputError(
                f"dispatcher is {self.dispatcher}, but with an expert_capacity of {capacity} it "
                "must be nccl: the others send the tokens that come."
            )

    def _check_delayed_scaling(self) -> None:
        """Refuse scales of steps before where no software has them."""
        if "fp8" not in (self.precision, self.attention_precision):
            raise InputError(
                f"fp8_scaling is delayed, but precision is {self.precision} and "
                f"attention_precision {self.attention_precision}; one of them must be fp8."
            )
        if self.bf16_layers_at_start or self.bf16_layers_at_end:
            raise InputError(
                "fp8_scaling is delayed, but some layers stay in bf16, which Megatron-LM has with "
                "current scaling only."
            )

    def _check_parts(self) -> None:
        """Refuse parts that there are not, and a policy beside parts."""
        parts = self.parts_again
        policies = [part for part in parts if part in RECOMPUTE_POLICIES]
        if policies and len(parts) > 1:
            raise InputError(
                f"recompute_parts is {self.recompute_parts}, but the policy {policies[0]} must "
                "stand alone: it says of every tensor whether it is kept."
            )
        for part in () if policies else parts:
            if part.rpartition(".")[2] not in RECOMPUTE_PARTS:
                allowed = (*RECOMPUTE_PARTS, *RECOMPUTE_POLICIES)
                raise unknown_name("part in recompute_parts:", part, allowed)

    def _check_zero_group(self) -> None:
        """Refuse a group in which nothing is shared out, or experts are."""
        group = self.zero_group
        if group == 0:
            return
        check_size("zero_group", group, MOST_SAMPLES)
        if group == 1 or self.zero == 0:
            raise InputError(
                f"zero_group is {group} and zero is {self.zero}, but where nothing is shared out "
                "there is no group; zero_group must be 0, or at least 2 with zero 1, 2 or 3."
            )
        if self.expert_parallel > 1 or self.expert_tensor_parallel:
            raise InputError(
                f"zero_group is {group}, but expert_parallel is {self.expert_parallel}; routed "
                "experts are shared out among all replicas only."
            )

    def sharing(self, replicas: int) -> int:
        """Return among how many of some replicas ZeRO shares out."""
        return min(self.zero_group, replicas) if self.zero_group else replicas

    def _check_offload(self) -> None:
        """Refuse parts that cannot wait on the host, and shares that are none."""
        for part in self.parts_offloaded:
            if part not in OFFLOAD_PARTS:
                raise unknown_name("part in offload_parts:", part, tuple(OFFLOAD_PARTS))
        if "layer" in self.parts_offloaded and len(self.parts_offloaded) > 1:
            raise InputError(
                f"offload_parts is {self.offload_parts}, but layer must stand alone: it is all "
                "that a layer keeps."
            )
        if not 0.0 < self.offload_share <= 1.0:
            raise InputError(
                f"offload_share is {self.offload_share}, but it must be above 0 and at most 1."
            )
        if not 0.0 <= self.offload_optimizer <= 1.0:
            raise InputError(
                f"offload_optimizer is {self.offload_optimizer}, but it must be between 0 and 1."
            )
        if self.offload_optimizer and OPTIMIZERS[self.optimizer].state_bytes == 0:
            raise InputError(
                f"offload_optimizer is {self.offload_optimizer}, but the optimizer "
                f"{self.optimizer} has no state; it must be 0, or the optimizer another one."
            )
        named = self.offloaded_names
        if named and self.recompute in ("selective", "solve") and not self.recompute_parts:
            raise InputError(
                f"offload_parts is {self.offload_parts} and recompute {self.recompute}, which does "
                "not say by name what is kept; name recompute_parts, or take layer, or recompute "
                "none or full."
            )

    def _check_split_backward(self) -> None:
        """Refuse what cannot be done with a backward in two parts."""
        if self.splits_backward and self.zero > 1:
            raise InputError(
                f"pipeline_schedule is {self.pipeline_schedule} and zero is {self.zero}, but "
                "stages that put off weight gradients cannot exchange them in every microbatch; "
                "zero must be 0 or 1."
            )
        if self.splits_backward and self.pairs_microbatches:
            raise InputError(
                f"pipeline_schedule is {self.pipeline_schedule} and overlap is {self.overlap}, but "
                "exchanges of tokens run beside another microbatch only where backwards are whole; "
                "overlap must be none, partial or data with expert_parallel."
            )
        if self.splits_backward and self.offloads:
            raise InputError(
                f"pipeline_schedule is {self.pipeline_schedule}, but what waits on the host comes "
                "back for whole backwards only; leave offload_parts and offload_optimizer out."
            )

    def _check_fp8_weights(self) -> None:
        """Refuse weights in fp8 where no software has them, or nothing keeps their precision."""
        switches = (("fp8_primary_weights", PRIMARY_WEIGHTS), ("fp8_param_gather", PARAM_GATHER))
        for name, allowed in switches:
            if getattr(self, name) and self.precision not in allowed:
                raise InputError(
                    f"{name} is on, but precision is {self.precision}; it must be "
                    f"{', '.join(allowed[:-1])} or {allowed[-1]}."
                )
        if self.fp8_primary_weights and OPTIMIZERS[self.optimizer].state_bytes == 0:
            raise InputError(
                f"fp8_primary_weights is on, but the optimizer {self.optimizer} holds no master "
                "weights in fp32; take adam, adam-bf16 or adam-foreach."
            )
        if self.fp8_param_gather and not self.fp8_primary_weights and self.zero in (1, 2):
            raise InputError(
                f"fp8_param_gather is on and zero is {self.zero}, but without fp8_primary_weights "
                "every replica holds weights in bf16, which must be gathered."
            )

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

    def expert_replicas(self, tensor: int) -> int:
        """Return the replicas of all else that hold the routed experts once, see above."""
        return self.expert_devices(tensor) // tensor

    def replica_step(self, tensor: int) -> int:
        """Return what the number of replicas of so many devices is a multiple of."""
        return math.lcm(self.expert_replicas(tensor), self.context_parallel)

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
        weight_copy_bytes = self.state.gathered_bytes / _WEIGHT_BYTES * WEIGHT_COPY_BYTES
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
        return _WEIGHT_BYTES + narrow, _WEIGHT_BYTES + narrow

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
            return own + PRECISIONS[self.precision].weight_bytes - _WEIGHT_BYTES
        return own

    @property
    def state(self) -> Optimizer:
        """What is held and moved per parameter: the optimizer's, and narrow copies of weights.

        A copy by rows and one by columns, where that is another, stand beside the weights in 16
        bits, as Transformer Engine keeps them where nobody asks for narrow primary weights. All
        parameters count, though those that stay in 16 bits have no copies; primary weights in fp8
        take as many bytes in both copies as one in 16 bits. What ZeRO 3 gathers is cast whenever it
        has been, and not kept.
        """
        return _in_fewer_bits(
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
        return _WEIGHT_BYTES + self.narrow_copies * narrow

    @property
    def _gathers_primary_weights(self) -> bool:
        """Whether what a step writes is all that there is of a weight, in fp8."""
        return self.fp8_primary_weights and self.fp8_param_gather and self.zero < 3
