"""How a model is trained: bytes of optimizers, counted from the framework where it is one's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from phaze_opt.choices import GradientDtype, OptimizerName
from phaze_opt.errors import InputError
from phaze_opt.optimizers import OPTIMIZERS
from phaze_opt.training import Training
from tests.strategies import fp8_weights

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


@given(fp8_weights, st.integers(0, 3))
def test_weights_in_fewer_bits_take_no_more(options: dict[str, Any], zero: int) -> None:
    """Than copies beside bf16, and gathers in fp8 send half.

    Where ZeRO 3 keeps no copies, weights in mxfp8 take their scales more than in bf16.
    """
    training = Training(64, zero=zero, **{"optimizer": "adam", **options})
    copied = replace(training, fp8_primary_weights=False, fp8_param_gather=False)
    own, beside = training.state, copied.state
    if zero == 3:
        assert own.whole_weight_bytes <= beside.whole_weight_bytes
        assert own.weight_bytes <= 2 + 2 / 32
    else:
        assert sum(own.held_bytes) <= sum(beside.held_bytes)
    assert own.gathered_bytes <= beside.gathered_bytes == 2
    assert training.step_bytes <= copied.step_bytes
    assert training.cast_bytes <= copied.cast_bytes
    for narrow, wide in zip(training.copy_bytes, copied.copy_bytes, strict=True):
        assert narrow <= wide
    assert training.reduced_bytes <= 4


@pytest.mark.parametrize("zero", range(4))
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_sixteen_bits_are_as_the_optimizer_says(optimizer: OptimizerName, zero: int) -> None:
    """Without any of the options, to the byte."""
    training = Training(64, optimizer=optimizer, zero=zero)
    assert training.state == OPTIMIZERS[optimizer]
    assert training.copy_bytes == (0, 0)


def test_bytes_of_a_parameter_in_fp8() -> None:
    """A worked example: Adam with gradients in bf16, per parameter."""
    options: dict[str, Any] = {"optimizer": "adam", "accumulation_dtype": "bf16", "zero": 1}
    copied = Training(64, precision="fp8", **options)
    # bf16 weight 2 and two copies 2; gradient 2; master weight and moments 12.
    assert copied.state.held_bytes == (4, 2, 12)
    # The step reads 2 + 12 and writes 14, the casts read 2 and write 2.
    assert (copied.step_bytes, copied.cast_bytes) == (28, 4)
    primary = replace(copied, fp8_primary_weights=True, fp8_param_gather=True)
    assert primary.state.held_bytes == (2, 2, 12)
    assert primary.state.gathered_bytes == 1
    # It writes 13; the copy by columns reads 1 and writes 1.
    assert (primary.step_bytes, primary.cast_bytes) == (27, 2)
    mx = Training(64, precision="mxfp8", fp8_primary_weights=True, **options)
    assert mx.state.held_bytes == (2 + 2 / 32, 2, 12)
    assert mx.state.gathered_bytes == 2
    assert (mx.step_bytes, mx.cast_bytes) == (28, 4 + 2 / 32)
    # Shared out, a layer is whole in bf16 and both copies, which are cast for every pass.
    shared = replace(copied, zero=3)
    assert (shared.state.held_bytes, shared.state.whole_weight_bytes) == ((2, 2, 12), 4)
    assert (shared.copy_bytes, shared.step_bytes, shared.cast_bytes) == ((3, 3), 28, 0)
    gathered = replace(shared, fp8_param_gather=True)
    assert (gathered.state.whole_weight_bytes, gathered.copy_bytes) == (2, (0, 2))
    assert replace(gathered, gather_copies=True).copy_bytes == (2, 10)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"precision": "nvfp4", "fp8_primary_weights": True}, "precision is nvfp4; it must be fp8"),
        ({"precision": "mxfp8", "fp8_param_gather": True}, "fp8, fp8-row or fp8-block"),
        ({"fp8_param_gather": True}, "precision is bf16"),
        (
            {"precision": "fp8", "optimizer": "sgd", "fp8_primary_weights": True},
            "sgd holds no master",
        ),
        ({"precision": "fp8", "fp8_param_gather": True, "zero": 1}, "without fp8_primary_weights"),
    ],
)
def test_weights_that_no_software_has_are_refused(options: dict[str, Any], why: str) -> None:
    """With what is allowed."""
    with pytest.raises(InputError, match=why):
        Training(64, **{"optimizer": "adam", **options})


def test_products_that_add_up_leave_no_kernel_for_the_first_gradient() -> None:
    """Megatron-LM's step kernel by kernel is 10 B shorter; one in a single pass had none."""
    for name, each in OPTIMIZERS.items():
        own = Training(8, optimizer=each.name, fused_optimizer=False)
        less = 10 if name in ("adam", "adam-bf16") else 0
        assert own.step_bytes - replace(own, fused_accumulation=True).step_bytes == less
        for other in (replace(own, fused_optimizer=True), replace(own, zero=2)):
            assert replace(other, fused_accumulation=True).step_bytes == other.step_bytes
