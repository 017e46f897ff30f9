"""How a model is trained: the options that are neither the model's nor the machine's."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

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
from phaze_opt.precision import PRECISIONS, PrecisionName
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
    """

    name: OptimizerName
    weight_bytes: int
    gradient_bytes: int
    state_bytes: int
    fused_step_bytes: int
    eager_kernels: tuple[tuple[str, int], ...]
    step_cycles: int
    copy_bytes: int = 0

    @property
    def eager_step_bytes(self) -> int:
        """Read and written by one optimizer step, kernel by kernel."""
        return sum(moved for _, moved in self.eager_kernels)

    @property
    def held_bytes(self) -> tuple[int, int, int]:
        """Held per parameter, by kind."""
        return self.weight_bytes + self.copy_bytes, self.gradient_bytes, self.state_bytes

    @property
    def accumulation_bytes(self) -> int:
        """Read and written per parameter to add one microbatch's gradients to the accumulator."""
        return 2 * self.gradient_bytes


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
        ("first gradient added", 10),
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


@lru_cache(maxsize=64)
def _with_copies(name: OptimizerName, copy_bytes: int) -> Optimizer:
    """Return an optimizer beside narrow copies of the weights, cached."""
    own = OPTIMIZERS[name]
    return replace(own, copy_bytes=copy_bytes) if copy_bytes else own


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
"""Largest `Training.expert_imbalance`."""
_REDUCED_BYTES = {"fp32": 4, "bf16": 2}


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
        ``1f1b``, ``gpipe`` (all forwards before all backwards) or ``interleaved``.
    interleave
        Chunks of layers per stage of an interleaved pipeline; 1 otherwise.
    overlap
        What communication runs beside compute: ``none`` (Megatron-LM of 2021), ``partial`` (most of
        the gathers of weights, as XLA's programs for TPUs do, see
        `phaze_opt.placement.synchronisation`), ``data`` (what replicas exchange, as frameworks do
        by default today) or ``all`` (also the tensor-parallel collectives next to a product, chunk
        by chunk).
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
        between them; ``block.mlp`` is that of layers of this name only. Those that ``recompute``
        describes where none is named.
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
    context_parallel: int = 1
    context_kind: ContextKind = "ring"
    recompute_parts: str = ""

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
            raise InputError(
                f"interleave is {self.interleave}, but the pipeline schedule "
                f"{self.pipeline_schedule} has 1 chunk per stage."
            )

        check_size("expert_parallel", self.expert_parallel, MOST_SAMPLES)
        check_size("context_parallel", self.context_parallel, MOST_SAMPLES)
        for part in self.parts_again:
            if part.rpartition(".")[2] not in RECOMPUTE_PARTS:
                raise unknown_name("part in recompute_parts:", part, RECOMPUTE_PARTS)
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
        if self.expert_parallel > 1 and self.zero > 1:
            raise InputError(
                f"zero is {self.zero}, but with an expert_parallel of {self.expert_parallel} it "
                "must be 0 or 1: shards of gradients and weights over two groups are not modelled."
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
    def most_replicas(self) -> int:
        """The most replicas that a batch has work for, as `microbatches` counts them."""
        return self.global_batch // self.microbatch * self.context_parallel

    @property
    def replica_step(self) -> int:
        """What the number of replicas is a multiple of."""
        return math.lcm(self.expert_parallel, self.context_parallel)

    @property
    def schedule_of_chunk(self) -> PipelineScheduleName:
        """How stages alternate forwards and backwards where each is one chunk."""
        return "gpipe" if self.pipeline_schedule == "gpipe" else "1f1b"

    @property
    def copy_bytes(self) -> tuple[int, int]:
        """Bytes per local parameter that a forward and a backward copy around communication."""
        if self.zero < 3 or not self.gather_copies:
            return 0, 0
        gradient_copy_bytes = GRADIENT_COPY_BYTES[self.gradient_dtype or "fp32"]
        return WEIGHT_COPY_BYTES, WEIGHT_COPY_BYTES + gradient_copy_bytes

    @property
    def reduced_bytes(self) -> int:
        """Bytes per gradient that replicas, and stages with tied weights, exchange."""
        if self.gradient_dtype is None:
            return OPTIMIZERS[self.optimizer].gradient_bytes
        return _REDUCED_BYTES[self.gradient_dtype]

    @property
    def hides_gradients(self) -> bool:
        """Whether the exchange of gradients runs beside compute."""
        return self.overlap in ("data", "all")

    @property
    def step_bytes(self) -> int:
        """Bytes per local parameter that one optimizer step reads and writes."""
        optimizer = OPTIMIZERS[self.optimizer]
        own = optimizer.fused_step_bytes if self.fused_optimizer else optimizer.eager_step_bytes
        return own + self._cast_bytes

    @property
    def state(self) -> Optimizer:
        """What is held and moved per parameter: the optimizer's, and narrow copies of weights.

        A copy by rows and one by columns stand beside the weights in 16 bits, as Transformer
        Engine keeps them where nobody asks for narrow primary weights. All parameters count, though
        those that stay in 16 bits have no copies.
        """
        return _with_copies(self.optimizer, self._copied_bytes)

    @property
    def _copied_bytes(self) -> int:
        """Bytes of the narrow copies of a weight, rounded up."""
        if self.precision == "bf16":
            return 0
        return math.ceil(2 * PRECISIONS[self.precision].operand_bytes)

    @property
    def _cast_bytes(self) -> int:
        """Bytes per parameter to cast a weight in 16 bits, once per batch."""
        return 2 + self._copied_bytes if self._copied_bytes else 0
