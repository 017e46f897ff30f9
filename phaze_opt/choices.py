"""Names of what a user chooses, as types.

The command line offers them before it imports what they mean, so this file imports nothing.
"""

from typing import Literal

AttentionKind = Literal["eager", "flash"]
FusionMode = Literal["none", "elementwise", "epilogue"]
OptimizerName = Literal["sgd", "adam", "adam-foreach"]
Overlap = Literal["none", "data", "all"]
PipelineScheduleName = Literal["1f1b", "gpipe", "interleaved"]
Recompute = Literal["none", "selective", "full"]
