"""PyTorch's scans in modules of users are loops of their body."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from phaze_opt.errors import InputError
from phaze_opt.workload.capture import loops
from phaze_opt.workload.capture.user_module import capture
from phaze_opt.workload.graph import Layer

_SCANS: Any = importlib.import_module("torch._higher_order_ops.scan")
_TREES: Any = importlib.import_module("torch._higher_order_ops.associative_scan")
SAMPLES, TOKENS, SIZE = 2, 24, 16


class Recurrent(nn.Module):
    """A recurrence with a product in every step, as a scan or written as a loop."""

    def __init__(self, *, scanned: bool, reverse: bool = False) -> None:
        super().__init__()
        self.scanned, self.reverse = scanned, reverse
        self.weight = nn.Parameter(torch.zeros(SIZE, SIZE))

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean of all states."""

        def step(state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
            state = torch.tanh(state @ self.weight + token)
            return state, state.clone()

        first = torch.zeros_like(x[:, 0])
        if self.scanned:
            _, states = _SCANS.scan(step, first, x, dim=1, reverse=self.reverse)
        else:
            made = []
            for token in x.unbind(1):
                first, state = step(first, token)
                made.append(state)
            states = torch.stack(made, 1)
        return torch.as_tensor(states).square().mean()


class Decaying(nn.Module):
    """A recurrence of elements, as an associative scan."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options
        self.inner = nn.Parameter(torch.zeros(SIZE, 2 * SIZE))

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean of all states."""
        decay, added = (x @ self.inner).chunk(2, -1)

        def joined(left: Any, right: Any) -> Any:
            return left[0] * right[0], right[0] * left[1] + right[1]

        pair = torch.sigmoid(decay), added
        states: Tensor = _TREES.associative_scan(joined, pair, dim=1, **self.options)[1]
        return states.square().mean()


def _captured(module: nn.Module, tokens: int = TOKENS) -> Layer:
    inputs = torch.zeros(SAMPLES, tokens, SIZE)
    (variant,) = capture(module, inputs, microbatch=(SAMPLES,)).variants
    (layer,) = variant.layers
    return layer


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_is_a_loop_of_its_body(reverse: bool) -> None:
    """Products, parameters and stash are those of the same recurrence, written as a loop."""
    scanned = _captured(Recurrent(scanned=True, reverse=reverse))
    looped = _captured(Recurrent(scanned=False))
    assert scanned.forward.flops == TOKENS * 2 * SAMPLES * SIZE**2
    assert scanned.forward.flops == looped.forward.flops
    assert scanned.backward.flops == looped.backward.flops
    assert scanned.parameters == looped.parameters == SIZE**2
    # A product waits for the one before: each step hands its state on.
    products = [i for i, each in enumerate(scanned.forward.operators) if each.gemms]
    assert len(products) == TOKENS
    # Beside what the loop keeps: the tokens in the order of the scan.
    kept = SAMPLES * TOKENS * SIZE * 2
    assert 0 <= scanned.stash_bytes.none - looped.stash_bytes.none <= 2 * kept


def test_an_associative_scan_is_the_tree_of_its_combinations() -> None:
    """About two combinations for every element, each of three operators."""
    layer = _captured(Decaying())
    combined = sum(
        work.elements
        for operator in layer.forward.operators
        for work in operator.vector
        if work.kind in ("multiply", "add")
    )
    elements = SAMPLES * TOKENS * SIZE
    assert 3 * elements <= combined <= 6.2 * elements + elements


def test_torch_is_as_it_was_after_a_capture() -> None:
    """Even where the capture fails."""
    before = _SCANS._maybe_compile_and_run_fn, _TREES.associative_scan.__defaults__
    _captured(Recurrent(scanned=True))
    with pytest.raises(InputError):
        _captured(Decaying(combine_mode="pointwise"))
    assert before == (_SCANS._maybe_compile_and_run_fn, _TREES.associative_scan.__defaults__)


def test_what_cannot_be_a_loop_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan of too many steps, and the mode of compiled kernels, with a way on."""
    monkeypatch.setattr(loops, "MOST_STEPS", TOKENS - 1)
    with pytest.raises(InputError, match=f"{TOKENS} steps, but at most {TOKENS - 1}"):
        _captured(Recurrent(scanned=True))
    with pytest.raises(InputError, match='say combine_mode="generic"'):
        _captured(Decaying(combine_mode="pointwise"))
