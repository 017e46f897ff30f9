"""What options of a training run cannot go together, each refused with one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phaze_opt.activation_names import OFFLOAD_PARTS, RECOMPUTE_POLICIES
from phaze_opt.checked import shown
from phaze_opt.errors import InputError, unknown_name
from phaze_opt.limits import MOST_SAMPLES, check_size
from phaze_opt.optimizers import OPTIMIZERS
from phaze_opt.precision import PARAM_GATHER, PRIMARY_WEIGHTS, RECIPES

if TYPE_CHECKING:
    from phaze_opt.training import Training

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
LINEAR_LAYERS = (
    *("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
    *("experts", "latent_proj", "in_proj", "out_proj"),
)
"""What `Training.linear_precisions` may name; see `phaze_opt.workload.linear_precisions`."""
MOST_IMBALANCE = 64.0
"""Largest `Training.expert_imbalance`, and `Training.expert_capacity`."""


def check_training_options(training: Training) -> None:
    """Refuse values that no option has, and options that contradict each other.

    Raises
    ------
    InputError
        Names the option, its value and what is allowed.
    """
    check_size("global_batch", training.global_batch, MOST_SAMPLES)
    if not 1 <= training.microbatch <= training.global_batch:
        raise InputError(
            f"microbatch is {shown(training.microbatch)}, but it must be between 1 and the global "
            f"batch of {training.global_batch}."
        )
    if training.zero not in (0, 1, 2, 3):
        raise InputError(f"zero is {shown(training.zero)}, but it must be 0, 1, 2 or 3.")
    check_size("interleave", training.interleave, MOST_SAMPLES)
    if training.interleave > 1 and training.pipeline_schedule != "interleaved":
        own = "2 chunks" if training.pipeline_schedule == "zb-v" else "1 chunk"
        raise InputError(
            f"interleave is {training.interleave}, but the pipeline schedule "
            f"{training.pipeline_schedule} has {own} per stage."
        )
    _split_backward(training)
    check_size("expert_parallel", training.expert_parallel, MOST_SAMPLES)
    check_size("context_parallel", training.context_parallel, MOST_SAMPLES)
    if training.expert_tensor_parallel != 0:
        check_size("expert_tensor_parallel", training.expert_tensor_parallel, MOST_SAMPLES)
    _parts(training)
    if training.recompute_parts and training.recompute != "selective":
        raise InputError(
            f"recompute is {training.recompute}, but with recompute_parts "
            f"{training.recompute_parts} it must be selective."
        )
    if not 1.0 <= training.expert_imbalance <= MOST_IMBALANCE:
        raise InputError(
            f"expert_imbalance is {training.expert_imbalance}, but it must be between 1 and "
            f"{MOST_IMBALANCE:g}."
        )
    _capacity(training)
    _dispatch(training)
    for name in ("bf16_layers_at_start", "bf16_layers_at_end"):
        check_size(name, getattr(training, name), MOST_SAMPLES, least=0)
    _linear_precisions(training)
    if training.fp8_scaling == "delayed":
        _delayed_scaling(training)
    _zero_group(training)
    _offload(training)
    _fp8_weights(training)


def check_expert_capacity(capacity: float) -> None:
    """Refuse rows of an expert, relative to even routing, that it cannot have.

    Raises
    ------
    InputError
        If they are neither 0, which stands for the tokens that come, nor within the limits.
    """
    if not 0.0 <= capacity <= MOST_IMBALANCE:
        raise InputError(
            f"expert_capacity is {capacity}, but it must be 0, or above it and at most "
            f"{MOST_IMBALANCE:g}."
        )


def _capacity(training: Training) -> None:
    """Refuse a capacity that is none, or contradicts another option."""
    capacity = training.expert_capacity
    check_expert_capacity(capacity)
    if capacity == 0.0:
        return
    if training.expert_imbalance != 1.0:
        raise InputError(
            f"expert_imbalance is {training.expert_imbalance}, but with an expert_capacity of "
            f"{capacity} every expert has the same rows; it must be 1."
        )
    if training.expert_parallel > 1 and training.dispatcher != "nccl":
        raise InputError(
            f"dispatcher is {training.dispatcher}, but with an expert_capacity of {capacity} it "
            "must be nccl: the others send the tokens that come."
        )


def _dispatch(training: Training) -> None:
    """Refuse tokens in fp8 where experts do not multiply in it."""
    if training.dispatch_precision == "bf16" or "fp8" in training.precision:
        return
    raise InputError(
        f"dispatch_precision is {training.dispatch_precision}, but precision is "
        f"{training.precision}; tokens are cast to fp8 for experts that multiply in fp8, fp8-row, "
        "fp8-block or mxfp8."
    )


def _linear_precisions(training: Training) -> None:
    """Refuse linear layers and precisions that there are not, and what is not counted beside."""
    stated = training.precision_by_linear
    for name, own in stated.items():
        if name not in LINEAR_LAYERS:
            raise unknown_name("linear layer in linear_precisions:", name, LINEAR_LAYERS)
        if own not in RECIPES:
            raise unknown_name(f"precision of {name} in linear_precisions:", own, RECIPES)
    if stated and training.precision == "bf16":
        raise InputError(
            f"linear_precisions is {training.linear_precisions}, but precision is bf16; it must "
            "be that of the other linear layers, in fewer bits."
        )
    if stated and training.offloaded_names:
        raise InputError(
            f"linear_precisions is {training.linear_precisions}, but the size of what waits on the "
            "host by name is known in one precision only; leave it out, or offload layers."
        )


def _delayed_scaling(training: Training) -> None:
    """Refuse scales of steps before where no software has them."""
    if "fp8" not in (training.precision, training.attention_precision):
        raise InputError(
            f"fp8_scaling is delayed, but precision is {training.precision} and "
            f"attention_precision {training.attention_precision}; one of them must be fp8."
        )
    if training.bf16_layers_at_start or training.bf16_layers_at_end:
        raise InputError(
            "fp8_scaling is delayed, but some layers stay in bf16, which Megatron-LM has with "
            "current scaling only."
        )


def _parts(training: Training) -> None:
    """Refuse parts that there are not, and a policy beside parts."""
    parts = training.parts_again
    policies = [part for part in parts if part in RECOMPUTE_POLICIES]
    if policies and len(parts) > 1:
        raise InputError(
            f"recompute_parts is {training.recompute_parts}, but the policy {policies[0]} must "
            "stand alone: it says of every tensor whether it is kept."
        )
    for part in () if policies else parts:
        if part.rpartition(".")[2] not in RECOMPUTE_PARTS:
            allowed = (*RECOMPUTE_PARTS, *RECOMPUTE_POLICIES)
            raise unknown_name("part in recompute_parts:", part, allowed)


def _zero_group(training: Training) -> None:
    """Refuse a group in which nothing is shared out, or that is of none that stand together."""
    group = training.zero_group
    if group == 0:
        return
    if training.rank_order == "solve":
        raise InputError(
            f"zero_group is {group} and rank_order is solve, but groups are known of replicas that "
            "stand together only; leave one out."
        )
    check_size("zero_group", group, MOST_SAMPLES)
    if group == 1 or training.zero == 0:
        raise InputError(
            f"zero_group is {group} and zero is {training.zero}, but where nothing is shared out "
            "there is no group; zero_group must be 0, or at least 2 with zero 1, 2 or 3."
        )


def _offload(training: Training) -> None:
    """Refuse parts that cannot wait on the host, and shares that are none."""
    for part in training.parts_offloaded:
        if part not in OFFLOAD_PARTS:
            raise unknown_name("part in offload_parts:", part, tuple(OFFLOAD_PARTS))
    if "layer" in training.parts_offloaded and len(training.parts_offloaded) > 1:
        raise InputError(
            f"offload_parts is {training.offload_parts}, but layer must stand alone: it is all "
            "that a layer keeps."
        )
    if not 0.0 < training.offload_share <= 1.0:
        raise InputError(
            f"offload_share is {training.offload_share}, but it must be above 0 and at most 1."
        )
    if not 0.0 <= training.offload_optimizer <= 1.0:
        raise InputError(
            f"offload_optimizer is {training.offload_optimizer}, but it must be between 0 and 1."
        )
    if training.offload_optimizer and OPTIMIZERS[training.optimizer].state_bytes == 0:
        raise InputError(
            f"offload_optimizer is {training.offload_optimizer}, but the optimizer "
            f"{training.optimizer} has no state; it must be 0, or the optimizer another one."
        )
    named = training.offloaded_names
    if named and training.recompute in ("selective", "solve") and not training.recompute_parts:
        raise InputError(
            f"offload_parts is {training.offload_parts} and recompute {training.recompute}, which "
            "does not say by name what is kept; name recompute_parts, or take layer, or recompute "
            "none or full."
        )


def _split_backward(training: Training) -> None:
    """Refuse what cannot be done with a backward in two parts."""
    if training.splits_backward and training.zero > 1:
        raise InputError(
            f"pipeline_schedule is {training.pipeline_schedule} and zero is {training.zero}, but "
            "stages that put off weight gradients cannot exchange them in every microbatch; "
            "zero must be 0 or 1."
        )
    if training.splits_backward and training.pairs_microbatches:
        raise InputError(
            f"pipeline_schedule is {training.pipeline_schedule} and overlap is {training.overlap}, "
            "but exchanges of tokens run beside another microbatch only where backwards are whole; "
            "overlap must be none, partial or data with expert_parallel."
        )
    if training.splits_backward and training.offloads:
        raise InputError(
            f"pipeline_schedule is {training.pipeline_schedule}, but what waits on the host comes "
            "back for whole backwards only; leave offload_parts and offload_optimizer out."
        )


def _fp8_weights(training: Training) -> None:
    """Refuse weights in fp8 where no software has them, or nothing keeps their precision."""
    switches = (("fp8_primary_weights", PRIMARY_WEIGHTS), ("fp8_param_gather", PARAM_GATHER))
    for name, allowed in switches:
        if getattr(training, name) and training.precision not in allowed:
            raise InputError(
                f"{name} is on, but precision is {training.precision}; it must be "
                f"{', '.join(allowed[:-1])} or {allowed[-1]}."
            )
    if training.fp8_primary_weights and OPTIMIZERS[training.optimizer].state_bytes == 0:
        raise InputError(
            f"fp8_primary_weights is on, but the optimizer {training.optimizer} holds no master "
            "weights in fp32; take adam, adam-bf16 or adam-foreach."
        )
    if training.fp8_param_gather and not training.fp8_primary_weights and training.zero in (1, 2):
        raise InputError(
            f"fp8_param_gather is on and zero is {training.zero}, but without fp8_primary_weights "
            "every replica holds weights in bf16, which must be gathered."
        )
