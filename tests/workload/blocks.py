"""Blocks of a shape, captured without embedding and head, which take as long again."""

from __future__ import annotations

from unittest.mock import patch

from phaze_opt.workload.capture import transformer
from phaze_opt.workload.capture.assembly import DistinctLayer
from phaze_opt.workload.capture.tensor_parallel import TensorGroup
from phaze_opt.workload.capture.transformer import _assembly, _capture, capture_transformer
from phaze_opt.workload.config import TransformerConfig
from phaze_opt.workload.graph import Layer, WorkloadVariant
from tests.workload.kept import kept


def blocks_of(
    config: TransformerConfig, tensor_degree: int = 1, *, split: bool = False, samples: int = 2
) -> dict[str, Layer]:
    """Capture the distinct blocks, by name."""
    group = TensorGroup(tensor_degree, split and tensor_degree > 1)
    parts = _assembly(config, group, samples).parts
    return {name: _capture(name, part, config) for name, part in parts.items() if "block" in name}


captured_blocks = kept(blocks_of)
"""As `blocks_of`, but kept: not for random shapes, of which there is no end."""


@kept
def captured_whole(config: TransformerConfig) -> WorkloadVariant:
    """Return the whole model on one device, for two samples, with `captured_blocks` in it."""
    blocks = captured_blocks(config)

    def ends(name: str, part: DistinctLayer, config: TransformerConfig) -> Layer:
        return blocks[name] if name in blocks else _capture(name, part, config)

    with patch.object(transformer, "_capture", ends):
        return capture_transformer(config, tensor_parallel=1, microbatch=2, sequence_parallel=False)


@kept
def captured_variant(
    config: TransformerConfig, tensor_degree: int = 1, *, split: bool = False, samples: int = 2
) -> WorkloadVariant:
    """Return the whole model on one device of a group."""
    return capture_transformer(
        config, tensor_parallel=tensor_degree, microbatch=samples, sequence_parallel=split
    )
