"""Optimizers: what they hold of every parameter, what a step moves, and in how many bits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from phaze_opt.choices import GradientDtype, OptimizerName
from phaze_opt.on_demand import hashed_once
from phaze_opt.precision import ELEMENT_BYTES, PRECISIONS, PrecisionName


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
    wide_bytes
        Held more of a weight that stays in 16 bits than of others: below 0, the copies that it has
        not. 0 where replicas share weights out.
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
    wide_bytes: float = 0

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


WEIGHT_BYTES = ELEMENT_BYTES["bf16"]
"""Of a working weight where it is not held in fewer bits."""


@lru_cache(maxsize=64)
def in_fewer_bits(
    name: OptimizerName,
    precision: PrecisionName,
    zero: int,
    copies: int,
    primary_weights: bool,
    param_gather: bool,
    accumulation_dtype: GradientDtype | None,
    offloaded: float,
) -> Optimizer:
    """Return what `phaze_opt.training.Training.state` does, cached."""
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
        whole = all_copies if param_gather else WEIGHT_BYTES + all_copies
        own = replace(own, whole_weight_bytes=whole)
    else:
        own = replace(own, copy_bytes=all_copies)
    if zero < 3:
        own = replace(own, wide_bytes=WEIGHT_BYTES - own.held_bytes[0])
    return replace(own, gathered_bytes=narrow) if param_gather else own
