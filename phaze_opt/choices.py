"""Names of what a user chooses, as types.

The command line offers them before it imports what they mean, so this file imports nothing.
"""

from typing import Literal

AreaModel = Literal["phaze-22nm", "chip"]
AttentionKind = Literal["eager", "flash"]
CollectiveName = Literal["all_reduce", "reduce_scatter", "all_gather", "all_to_all"]
ContextKind = Literal["ring", "a2a", "gather"]
"""How devices that share a sequence attend to all of it: keys and values go around, an all-to-all
gives every device all tokens of some heads, or keys and values are gathered."""
Dispatcher = Literal["nccl", "deepep", "hybridep", "ideal"]
"""What sends tokens to the devices of their experts: an all-to-all of NCCL, kernels that send one
once to every device and node that needs it (DeepEP, HybridEP), or nothing but the links."""
DispatchPrecision = Literal["bf16", "fp8"]
"""In what tokens go to their experts; results come back in 16 bits."""
EvaluationPlotKind = Literal["time", "memory", "binding"]
FusionMode = Literal["none", "elementwise", "epilogue"]
GradientDtype = Literal["fp32", "bf16"]
IntraOperatorRule = Literal["exclusive", "per-type"]
KernelName = Literal["fa2", "fa3", "cudnn", "cudnn-deterministic", "te", "triton", "serving"]
"""FlashAttention-2 and -3, cuDNN (and with gradients that repeat bit by bit), what Transformer
Engine calls, FlashAttention in Triton, and forwards of inference engines."""
Launch = Literal["graphs", "compiled", "eager"]
"""How the host starts kernels: recorded once, one per fused group, or one per ATen operator."""
Layout = Literal["tn", "nn", "nt"]
"""Forward, data gradient, and weight gradient that adds to an accumulator in fp32."""
MemoryKind = Literal["hbm2", "hbm2e", "hbm3", "hbm3e", "gddr"]
NetworkPricing = Literal["share", "levels"]
"""What a device pays for its network: always the same, or its share of what all levels cost."""
OptimizerName = Literal["sgd", "adam", "adam-bf16", "adam-foreach"]
Overlap = Literal["none", "partial", "data", "experts", "all"]
PipelineScheduleName = Literal[
    "1f1b", "gpipe", "interleaved", "zb-h1", "zb-h2", "zb-1p", "zb-2p", "zb-v"
]
PlotKind = Literal["history", "area", "parallel", "breakdown", "importance"]
ProcessNodeName = Literal["n28", "n16", "n10", "n7", "n5", "n4", "n3"]
"""Classes of manufacturing processes: n16 holds 12FFN, n7 holds N6, n4 holds 4N and 4NP."""
RankOrderChoice = Literal["two", "solve"]
"""Replicas of a stage or stages of a replica are neighbours; or also some replicas inside the
stages and others outside."""
Recompute = Literal["none", "selective", "full", "solve"]
ResidencyChoice = bool | Literal["tiles"]
"""Whether tensors may stay on the chip, each as a whole or also by tiles."""
ResidencyName = Literal["whole", "tiles", "none"]
"""The same as words of the command line."""
SoftwareName = Literal[
    "megatron", "megatron-bridge", "torchtitan-eager", "torchtitan-compiled", "maxtext", "mpt"
]
SolveMethod = Literal["auto", "branch-and-bound", "cp-sat"]
TableFormat = Literal["csv", "json", "parquet"]
ChakraRanks = Literal["all", "stages"]
"""Ranks of which traces are written: all of them, or the first one of every stage."""
ValidationGroup = Literal["operators", "attention", "collectives", "training", "memory"]
ValidationSubject = Literal["operators", "attention", "collectives", "training", "memory", "trace"]
"""A group of measured tables, or a trace of the user."""
