"""The options that the bounds of passes and placements know.

One that is not declared here is refused, because a bound that was not told of it may lie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from phaze_opt.errors import InputError
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.buildable import check_training
from phaze_opt.precision import ATTENTION_PRECISIONS, RECIPES
from phaze_opt.training import ZERO_BUBBLE, Training

_EVERY: tuple[object, ...] = ()
"""Every value of a field is handled."""

HANDLED: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    "Training": {
        # Of the layers.
        "recompute": ("none", "selective", "full"),
        "overlap": ("none", "partial", "data", "experts", "all"),
        "residency": (False, True, "tiles"),
        "recompute_early_stop": (False, True),
        "gather_copies": (False, True),
        "gradient_dtype": (None, "fp32", "bf16"),
        "precision": RECIPES,
        "fp8_primary_weights": (False, True),
        "fp8_param_gather": (False, True),
        "attention_precision": ATTENTION_PRECISIONS,
        "accumulation_dtype": (None, "fp32", "bf16"),
        "launch": ("graphs", "compiled", "eager"),
        "zero": (0, 1, 2, 3),
        "zero_group": (0,),  # others only at given degrees
        "optimizer": _EVERY,  # whose bytes are in `OPTIMIZERS`
        "fused_optimizer": (False, True),
        # Of the variant, which is captured for them.
        "microbatch": _EVERY,
        "sequence_parallel": (False, True),
        # Of the placement.
        "global_batch": _EVERY,
        "pipeline_schedule": ("1f1b", "gpipe", "interleaved", *ZERO_BUBBLE),
        "interleave": _EVERY,
        "rank_order": ("two", "solve"),
        # Of the variant and of the replicas.
        "expert_parallel": _EVERY,
        "dispatch_precision": ("bf16", "fp8"),  # of the variant
        "dispatcher": ("nccl", "deepep", "hybridep", "ideal"),
        "expert_imbalance": _EVERY,
        "expert_tensor_parallel": _EVERY,
        "expert_capacity": _EVERY,  # of the variant, which is captured for it
        # Of the variant, and of the replicas, among which a sequence's devices count.
        "context_parallel": _EVERY,
        "context_kind": ("ring", "a2a", "gather"),
        "recompute_parts": _EVERY,  # of the variant
        "fused_accumulation": (False, True),  # of the variant, and of what is added up beside it
        "bf16_layers_at_start": _EVERY,  # of the variant
        "bf16_layers_at_end": _EVERY,
        "linear_precisions": _EVERY,  # of the layers
        "fp8_scaling": ("current", "delayed"),
        "fp8_transposes": (None, False, True),
        # What is held is less by what waits on the host; that the link may take longer than the
        # work is left out, so that times are bounded from below.
        **dict.fromkeys(("offload_parts", "offload_share", "offload_optimizer"), _EVERY),
    },
    "Accelerator": dict.fromkeys(
        (
            *("num_tc", "pe_x", "pe_y", "l2_tc_bytes"),
            *("num_vc", "pe_vc", "l2_vc_bytes", "l2_bytes_per_cycle"),
            *("glb_bytes", "glb_bytes_per_cycle", "hbm_bytes", "hbm_bytes_per_s"),
            *("clock_hz", "concurrent_operators", "calibration"),
            *("fp8_ratio", "fp4_ratio", "int8_ratio"),
            "fp8_column_copies",  # on which the training depends
            "tdp_w",  # on which nothing depends
            *("process_node", "memory_kind"),  # of the energies
            *("die_mm2", "dies_per_package"),  # of the cost
            "host_link_bytes_per_s",  # however fast, the bounds hold
        ),
        _EVERY,
    ),
    "Calibration": dict.fromkeys(
        (
            *("sustained_clock_hz", "array_efficiency", "usable_hbm_share", "hbm_efficiency"),
            *("vector_core_bytes_per_s", "scan_core_bytes_per_s"),
            *("operator_overhead_s", "tile_overhead_cycles", "collective_core_share"),
            *("attention_overlap", "exponentials_per_cycle", "sustained_peak_share"),
            *("attention_rate", "attention_row_cycles", "attention_tile_queries"),
            *("attention_backward_overlap", "attention_backward_rate", "attention_wide_rate"),
            "attention_backward_row_cycles",
            *("attention_fp8_rate", "attention_fp8_backward_rate"),
            *("attention_mxfp8_rate", "attention_mxfp8_backward_rate"),
            *("fp8_efficiency", "fp8_block_efficiency", "fp4_efficiency", "int8_efficiency"),
            "fp8_block_gradient_efficiency",
            # Of other chips of the name, which are evaluated by themselves.
            *("array_rate_low", "array_rate_high", "hbm_rate_low", "hbm_rate_high"),
            "burst_clock_hz",  # of isolated operators only
        ),
        _EVERY,
    ),
}
"""Fields that the bounds know, with the values that they know; an undeclared one is refused."""


def check_handled(training: Training, accelerators: Sequence[Accelerator] = ()) -> None:
    """Refuse an option that the bounds were not told of.

    Raises
    ------
    InputError
        Names the field, and the value where only some are known.
    """
    _check_fields("Training", training)
    if training.is_narrow or training.offloads:
        for accelerator in accelerators:
            check_training(accelerator, training)
            unsaid = training.precision == "fp8" and training.fp8_transposes is None
            if unsaid and not accelerator.fp8_column_copies:
                raise InputError(
                    "The bounds do not know fp8_transposes = None of Training for a chip whose "
                    "products read fp8 in every layout; phaze_opt.hardware.buildable.training_on "
                    "says it."
                )
    for accelerator in {type(chip): chip for chip in accelerators}.values():
        _check_fields("Accelerator", accelerator)
    for calibration in {type(chip.calibration): chip.calibration for chip in accelerators}.values():
        _check_fields("Calibration", calibration)


def _check_fields(name: str, stated: Any) -> None:
    """Check one dataclass against its entry of `HANDLED`."""
    handled = HANDLED[name]
    for field in fields(stated):
        if field.name not in handled:
            raise InputError(
                f"The bounds do not know {field.name} of {name}; what they must hold for has to be "
                "declared first."
            )
        known, value = handled[field.name], getattr(stated, field.name)
        if known and value not in known:
            choices = ", ".join(map(str, known))
            raise InputError(
                f"The bounds do not know {field.name} = {value} of {name}, only {choices}."
            )
