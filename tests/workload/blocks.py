"""Blocks of a shape, captured without embedding and head, which take as long again."""

from __future__ import annotations

import functools

from phaze_opt.workload.capture.tensor_parallel import TensorGroup
from phaze_opt.workload.capture.transformer import _capture, _parts
from phaze_opt.workload.config import TransformerConfig
from phaze_opt.workload.graph import Layer


@functools.cache
def captured_blocks(
    config: TransformerConfig, tensor_degree: int = 1, *, split: bool = False
) -> dict[str, Layer]:
    """Return the distinct blocks by name, for two samples."""
    parts = _parts(config, TensorGroup(tensor_degree, split and tensor_degree > 1), 2)
    return {name: _capture(name, part, config) for name, part in parts.items() if "block" in name}
