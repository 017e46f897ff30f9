"""How a model is trained: bytes of optimizers, counted from the framework where it is one's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from phaze_opt.choices import GradientDtype
from phaze_opt.errors import InputError
from phaze_opt.training import OPTIMIZERS, Training

PARAMETERS = 1_000_000
DTYPES: tuple[GradientDtype | None, ...] = (None, "fp32", "bf16")


class CountedBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count what operators over large tensors read and write; a tensor is read once by each."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.moved = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        results = func(*args, **(kwargs or {}))
        read = {one.data_ptr(): one.nbytes for one in large_tensors(args)}
        in_place = func.__name__.partition(".")[0].endswith("_")
        written = large_tensors(args[:1]) if in_place else large_tensors([results])
        self.moved += sum(read.values()) + sum(one.nbytes for one in written)
        return results


def large_tensors(values: Any) -> list[torch.Tensor]:
    """Return the tensors of nested arguments that are no scalars."""
    if isinstance(values, torch.Tensor):
        return [values] if values.numel() > 1 else []
    if isinstance(values, (list, tuple)):
        return [one for value in values for one in large_tensors(value)]
    return []


def test_the_foreach_step_is_what_pytorch_does() -> None:
    """Clipping, AdamW and the cast to the working weight, as the installed framework runs them."""
    master = torch.nn.Parameter(torch.ones(PARAMETERS))
    optimizer = torch.optim.AdamW([master], foreach=True)
    master.grad = torch.ones(PARAMETERS)
    optimizer.step()  # makes the moments
    with torch.no_grad(), CountedBytes() as counted:
        torch.nn.utils.clip_grad_norm_([master], 1.0, foreach=True)
        optimizer.step()
        master.to(torch.bfloat16)
    moved = counted.moved / PARAMETERS
    assert Training(64, optimizer="adam-foreach").step_bytes == pytest.approx(moved, abs=0.01)


def test_a_foreach_step_moves_more_and_holds_the_same() -> None:
    """Whatever is fused elsewhere."""
    adam, foreach = OPTIMIZERS["adam"], OPTIMIZERS["adam-foreach"]
    assert (foreach.weight_bytes, foreach.gradient_bytes, foreach.state_bytes) == (
        adam.weight_bytes,
        adam.gradient_bytes,
        adam.state_bytes,
    )
    assert foreach.fused_step_bytes == foreach.eager_step_bytes > adam.eager_step_bytes


def test_a_step_is_the_sum_of_its_kernels() -> None:
    """Megatron-LM's and PyTorch's, and moments in bf16 move 8 bytes less."""
    adam, half = OPTIMIZERS["adam"], OPTIMIZERS["adam-bf16"]
    steps = [OPTIMIZERS[name].eager_step_bytes for name in ("adam", "adam-bf16", "adam-foreach")]
    assert steps == [68, 60, 98]
    assert [name for name, _ in adam.eager_kernels] == [name for name, _ in half.eager_kernels]
    assert dict(adam.eager_kernels)["step"] - dict(half.eager_kernels)["step"] == 8
    # Read and written in one pass or in several: gradient, moments, master weight and weight.
    assert adam.fused_step_bytes - half.fused_step_bytes == 2 * (
        adam.state_bytes - half.state_bytes
    )
    assert adam.state_bytes - half.state_bytes == 4


def test_gradients_are_reduced_in_the_dtype_that_is_said() -> None:
    """Else in that in which the optimizer holds them; copies before it are as wide."""
    assert [Training(8, optimizer=each.name).reduced_bytes for each in OPTIMIZERS.values()] == [
        2,
        4,
        4,
        4,
    ]
    assert Training(8, gradient_dtype="fp32").reduced_bytes == 4
    assert Training(8, optimizer="adam", gradient_dtype="bf16").reduced_bytes == 2
    copies = [
        Training(8, zero=3, gather_copies=True, gradient_dtype=dtype).copy_bytes[1]
        for dtype in DTYPES
    ]
    assert copies == [10, 10, 8]


def test_optimizers_go_by_their_names() -> None:
    """Another name is refused with the names that there are."""
    assert all(optimizer.name == name for name, optimizer in OPTIMIZERS.items())
    with pytest.raises(
        InputError, match="'lion', but it must be sgd, adam, adam-bf16 or adam-foreach"
    ):
        Training(64, optimizer="lion")  # type: ignore[arg-type]


@given(st.integers(1, 10**6), st.integers(1, 64), st.integers(1, 10**4))
def test_microbatches_hold_the_batch_and_no_fewer_do(
    global_batch: int, microbatch: int, data: int
) -> None:
    """Every replica runs the same number; one less for each would leave samples out."""
    training = Training(global_batch, min(microbatch, global_batch))
    count, of_one = training.microbatches(data), data * training.microbatch
    assert count * of_one >= global_batch > (count - 1) * of_one
