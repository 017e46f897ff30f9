"""Training software by name: each a set of options, as a person would give them one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phaze_opt.choices import (
    FusionMode,
    GradientDtype,
    KernelName,
    Launch,
    OptimizerName,
    Overlap,
    SoftwareName,
)
from phaze_opt.precision import PrecisionName


@dataclass(frozen=True)
class Software:
    """What follows from the software that trains a model, and not from the run.

    The attributes are options of `phaze_opt.training.Training`; ``fusion`` is that of
    `phaze_opt.evaluation.evaluate`, and ``attention_kernel`` a kernel of fused attention
    (`phaze_opt.hardware.kernels`). ``None`` stands for what the chip does by default. The last two
    are the precisions in which weights are held, and gathered, in fp8.
    """

    optimizer: OptimizerName
    overlap: Overlap
    launch: Launch
    fusion: FusionMode | None = None
    gather_copies: bool = False
    gradient_dtype: GradientDtype | None = None
    accumulation_dtype: GradientDtype | None = None
    fused_accumulation: bool = False
    attention_kernel: KernelName | None = None
    fp8_primary_weights_of: tuple[PrecisionName, ...] = ()
    fp8_param_gather_of: tuple[PrecisionName, ...] = ()

    def fp8_weights(self, precision: PrecisionName) -> dict[str, Any]:
        """Return in what weights are held and gathered, as options of the training run."""
        return {
            "fp8_primary_weights": precision in self.fp8_primary_weights_of,
            "fp8_param_gather": precision in self.fp8_param_gather_of,
        }

    def training_options(self, precision: PrecisionName) -> dict[str, Any]:
        """Return what follows for the options of a training run."""
        return {name: getattr(self, name) for name in _TRAINING} | self.fp8_weights(precision)

    @property
    def keeps_freed_memory(self) -> bool:
        """Whether its framework allocates tensor by tensor and keeps what is freed: PyTorch."""
        return self.launch != "graphs"


_TRAINING = (
    *("optimizer", "overlap", "gather_copies", "launch"),
    *("gradient_dtype", "accumulation_dtype", "fused_accumulation"),
)
"""Options of the training run that software sets, whatever the precision."""

SOFTWARE: Mapping[SoftwareName, Software] = {
    # NVIDIA/Megatron-LM: kernels fused by hand, each launched by PyTorch; gradients beside the
    # backward (its own data parallelism of 2021 and 2022, which does not, is overlap none), and
    # products that add weight gradients up: --no-gradient-accumulation-fusion turns it off since
    # early 2022 (megatron/arguments.py of 0012901), and so do fp16 gradients there.
    "megatron": Software("adam", "data", "compiled", fused_accumulation=True),
    # NVIDIA-NeMo/Megatron-Bridge: the same with gradients in bf16 (grad_reduce_in_fp32 is off in
    # scripts/performance/configs/llama), and weights in fp8 only (fp8_param_gather of the recipes
    # in src/megatron/bridge/training/mixed_precision.py: on but for scales per block and nvfp4).
    # What is gathered in mxfp8 goes as bf16 through the buffer of gradients
    # (reuse_grad_buf_for_mxfp8_param_ag). Products add weight gradients up wherever Transformer
    # Engine or apex can (gradient_accumulation_fusion of the models in
    # src/megatron/bridge/models/gpt_provider.py).
    "megatron-bridge": Software(
        "adam",
        "data",
        "compiled",
        accumulation_dtype="bf16",
        fused_accumulation=True,
        fp8_primary_weights_of=("fp8", "mxfp8"),
        fp8_param_gather_of=("fp8",),
    ),
    # pytorch/torchtitan 9dec370 without compile: every operator by itself, FSDP2's copies,
    # gradients reduced in fp32 (mixed_precision_reduce), AdamW with foreach kernels (fused is off),
    # torch's scaled_dot_product_attention, which is FlashAttention-2, and torchao's gathers in fp8
    # where the scale is one per tensor (enable_fsdp_float8_all_gather).
    "torchtitan-eager": Software(
        "adam-foreach",
        "data",
        "eager",
        "none",
        gather_copies=True,
        attention_kernel="fa2",
        fp8_param_gather_of=("fp8",),
    ),
    # The same with compiled blocks; around them nothing changes.
    "torchtitan-compiled": Software(
        "adam-foreach",
        "data",
        "compiled",
        gather_copies=True,
        attention_kernel="fa2",
        fp8_param_gather_of=("fp8",),
    ),
    # AI-Hypercomputer/maxtext: one program of XLA per step, with asynchronous all-gathers.
    "maxtext": Software("adam", "partial", "graphs"),
    # mosaicml/llm-foundry v0.0.4 on Composer: eager, FSDP that gathers weights and reduces
    # gradients in bf16 (mixed_precision DEFAULT sets param_dtype, which reduce_dtype follows, in
    # composer/trainer/mosaic_fsdp_utils.py), decoupled AdamW operator by operator, and attention
    # in Triton (attn_impl).
    "mpt": Software(
        "adam-foreach",
        "data",
        "eager",
        "none",
        gather_copies=True,
        gradient_dtype="bf16",
        attention_kernel="triton",
    ),
}
"""Options by the name of the software."""
