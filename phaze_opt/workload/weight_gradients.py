"""The part of a backward that only weight gradients need, which may run later than the rest.

An operator belongs to it if all that it writes is weight gradients, or is read only by operators
that do: the products that make weight gradients, the sums that make those of biases, and the casts
and gathers of their operands that nothing else reads. An operator that makes the gradient of an
activation too, as those of norms do, belongs to the rest. So does everything in a file of an older
program, which does not say what tensors hold.

Source: P. Qi et al., "Zero bubble pipeline parallelism" (ICLR 2024, arXiv 2401.10241), which calls
the rest B and this part W.
"""

from __future__ import annotations

from functools import lru_cache

from phaze_opt.workload.graph import OperatorGraph


@lru_cache(maxsize=1024)
def weight_gradient_operators(backward: OperatorGraph) -> tuple[bool, ...]:
    """Say of every operator of a backward whether only weight gradients need it."""
    count = len(backward.operators)
    written: list[list[int]] = [[] for _ in range(count)]
    for index, tensor in enumerate(backward.tensors):
        for writer, _ in tensor.writers:
            written[writer].append(index)
    only = [False] * count
    # Readers stand after the writers.
    for operator in reversed(range(count)):
        only[operator] = bool(written[operator]) and all(
            _is_for_weights(backward, index, only) for index in written[operator]
        )
    return tuple(only)


def _is_for_weights(backward: OperatorGraph, index: int, only: list[bool]) -> bool:
    """Say whether a tensor is a weight gradient, or read only by operators that make some."""
    tensor = backward.tensors[index]
    if not all(only[read.operator] for read in tensor.readers):
        return False
    return tensor.kind == "weight_gradient" or (bool(tensor.readers) and not tensor.outlives)


@lru_cache(maxsize=1024)
def weight_operand_bytes(backward: OperatorGraph) -> int:
    """Return what those operators read of a microbatch: inputs of products, output gradients.

    Weights and accumulators, which are not a microbatch's, do not count.
    """
    only = weight_gradient_operators(backward)
    return sum(
        tensor.elements * tensor.element_bytes
        for tensor in backward.tensors
        if tensor.kind not in ("weight", "weight_gradient")
        and any(only[read.operator] for read in tensor.readers)
        and not any(only[writer] for writer, _ in tensor.writers)
    )
