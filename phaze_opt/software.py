"""Training software by name: each a set of options, as a person would give them one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from phaze_opt.choices import (
    FusionMode,
    GradientDtype,
    KernelName,
    Launch,
    OptimizerName,
    Overlap,
    SoftwareName,
)


@dataclass(frozen=True)
class Software:
    """What follows from the software that trains a model, and not from the run.

    The attributes are options of `phaze_opt.training.Training`; ``fusion`` is that of
    `phaze_opt.evaluation.evaluate`, and ``attention_kernel`` a kernel of fused attention
    (`phaze_opt.hardware.kernels`). ``None`` stands for what the chip does by default.
    """

    optimizer: OptimizerName
    overlap: Overlap
    launch: Launch
    fusion: FusionMode | None = None
    gather_copies: bool = False
    gradient_dtype: GradientDtype | None = None
    attention_kernel: KernelName | None = None

    @property
    def keeps_freed_memory(self) -> bool:
        """Whether its framework allocates tensor by tensor and keeps what is freed: PyTorch."""
        return self.launch != "graphs"


SOFTWARE: Mapping[SoftwareName, Software] = {
    # NVIDIA/Megatron-LM: kernels fused by hand, each launched by PyTorch; gradients beside the
    # backward (its own data parallelism of 2021 and 2022, which does not, is overlap none).
    "megatron": Software("adam", "data", "compiled"),
    # pytorch/torchtitan 9dec370 without compile: every operator by itself, FSDP2's copies,
    # gradients reduced in fp32 (mixed_precision_reduce), AdamW with foreach kernels (fused is off),
    # and torch's scaled_dot_product_attention, which is FlashAttention-2.
    "torchtitan-eager": Software(
        "adam-foreach", "data", "eager", "none", gather_copies=True, attention_kernel="fa2"
    ),
    # The same with compiled blocks; around them nothing changes.
    "torchtitan-compiled": Software(
        "adam-foreach", "data", "compiled", gather_copies=True, attention_kernel="fa2"
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
