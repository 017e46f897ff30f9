"""A deep module is captured as if every layer had been traced."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from phaze_opt.workload.capture import module_trace
from phaze_opt.workload.capture.module_trace import capture_module
from phaze_opt.workload.capture.parallel_plan import SplitModule
from phaze_opt.workload.capture.repeated_layers import Repeats, find_kinds
from phaze_opt.workload.capture.user_module import capture
from tests.workload.user_modules import ROWS, WIDTH

DEPTH = 10


class Deep(nn.Module):
    """A chain of layers, whose forward is a function of it and its inputs."""

    def __init__(self, layers: Any, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.layers, self.out = nn.ModuleList(layers), nn.Linear(WIDTH, 4)
        self.written = forward

    def forward(self, *inputs: Tensor) -> Any:
        """Run the function, then the last layer."""
        return self.out(self.written(self, *inputs)).mean()


def _inputs() -> Tensor:
    return torch.zeros(2, ROWS, WIDTH)


def _chain(self: Any, x: Tensor) -> Any:
    for layer in self.layers:
        x = layer(x)
    return x


def residual() -> Any:
    """Make layers whose sums are outside of them."""

    def forward(self: Any, x: Tensor) -> Any:
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return x

    return Deep((nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)), forward), _inputs()


def skips() -> Any:
    """Make layers whose results are read far away, as in a U-Net."""

    def forward(self: Any, x: Tensor) -> Any:
        results = []
        for layer in self.layers[: DEPTH // 2]:
            x = functional.silu(layer(x))
            results.append(x)
        for layer in self.layers[DEPTH // 2 :]:
            x = functional.silu(layer(x + results.pop()))
        return x

    return Deep((nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)), forward), _inputs()


def alike_outside() -> Any:
    """Make layers of two kinds that have as many parameters, and inputs and results alike."""
    kinds = (nn.Tanh, nn.GELU)
    layers = (nn.Sequential(nn.Linear(WIDTH, WIDTH), kinds[i % 2]()) for i in range(DEPTH))
    return Deep(layers, _chain), _inputs()


def one_is_different() -> Any:
    """Make a chain whose code does more beside one layer in the middle."""

    def forward(self: Any, x: Tensor) -> Any:
        for index, layer in enumerate(self.layers):
            x = layer(x)
            if index == 6:
                x = torch.tanh(x) * 2
        return x

    return Deep((nn.Linear(WIDTH, WIDTH) for _ in range(14)), forward), _inputs()


class Scaled(nn.Module):
    """A layer with a number of its own."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.inner, self.times = nn.Linear(WIDTH, WIDTH), times

    def forward(self, x: Tensor) -> Any:
        """Apply the layer several times."""
        for _ in range(self.times):
            x = self.inner(x)
        return x


def numbered() -> Any:
    """Make layers that differ in a plain attribute only."""
    return Deep((Scaled(1 + (i == 6)) for i in range(14)), _chain), _inputs()


def shared() -> Any:
    """Make one layer that is called many times."""
    layer = nn.Linear(WIDTH, WIDTH)
    return Deep([layer] * DEPTH, _chain), _inputs()


def normalised() -> Any:
    """Make layers that change a buffer when they run."""
    layers = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(ROWS)) for _ in range(DEPTH))
    return Deep(layers, _chain), _inputs()


class Passing(nn.Module):
    """A layer that hands an input through."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, bias: Tensor) -> Any:
        """Return the result and the input."""
        return self.inner(x) + bias, bias


class FeedForward(nn.Module):
    """A layer that a plan can split."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Any:
        """Return the network's result."""
        return self.down(torch.relu(self.up(x)))


def passing() -> Any:
    """Make layers that hand an input on from one to the next."""

    def forward(self: Any, x: Tensor) -> Any:
        bias = torch.tanh(x)
        for layer in self.layers:
            x, bias = layer(x, bias)
        return x

    return Deep((Passing() for _ in range(DEPTH)), forward), _inputs()


@pytest.fixture
def closings(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Close layers of shallow modules too; return whether it came to that, by capture."""
    found: list[bool] = []
    cut_deep = module_trace._cut_deep

    def remembered(tracer: Any) -> Any:
        cut = cut_deep(tracer)
        found.append(cut is not None)
        return cut

    monkeypatch.setattr(module_trace, "_cut_deep", remembered)
    monkeypatch.setattr(module_trace, "FEWEST_CALLS", 4)
    monkeypatch.setattr(module_trace, "MOST_OPENED", 1.0)
    return found


@pytest.mark.parametrize(
    ("make", "closes"),
    [
        *((make, True) for make in (residual, skips, one_is_different, numbered, alike_outside)),
        *((make, False) for make in (shared, normalised, passing)),
    ],
)
def test_a_deep_module_is_captured_as_if_all_was_traced(
    make: Callable[[], Any],
    closes: bool,
    closings: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Closing layers changes nothing: neither operators, bytes, names nor edges."""
    module, inputs = make()
    fast = capture(module, inputs, microbatch=(2,))
    monkeypatch.setattr(module_trace, "FEWEST_CALLS", 10**9)
    assert capture(module, inputs, microbatch=(2,)) == fast
    assert closings == [closes, False]


def test_a_split_module_is_too(closings: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares of layers are alike where their plans are."""

    def share() -> Any:
        with torch.device("meta"):
            module = Deep((FeedForward() for _ in range(DEPTH)), _chain)
            split = SplitModule(module, {"layers.*.up": "colwise", "layers.*.down": "rowwise"}, 4)
            return capture_module(module, _inputs(), 2, split)

    fast = share()
    monkeypatch.setattr(module_trace, "FEWEST_CALLS", 10**9)
    assert share() == fast
    assert closings == [True, False]


def test_most_layers_of_a_deep_module_are_not_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a chain only the ends, one layer between them, and their neighbours are."""
    runs: list[Repeats] = []

    class Remembered(Repeats):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            runs.append(self)

    monkeypatch.setattr(module_trace, "Repeats", Remembered)
    module, inputs = residual()
    module.layers.extend(nn.Linear(WIDTH, WIDTH) for _ in range(14))
    capture(module, inputs, microbatch=(2,))
    first, second = runs
    assert len(first.closed) == 22  # the first has other inputs; the second is the first of a kind
    assert len(second.traced) <= 10


def test_parts_of_a_kind_have_the_same_neighbours() -> None:
    """Ends of a chain are kinds of their own; the examples and their neighbours are opened."""
    edges = [(i, i + 1, 8) for i in range(7)]
    example, opened = find_kinds(["a", *"bbbbbb", "c"], edges)
    assert example == (0, 1, 2, 2, 2, 2, 6, 7)
    assert opened == {0, 1, 2, 3, 5, 6, 7}
    example, _ = find_kinds(["a", *"bbbbbb", "c"], [*edges, (1, 5, 8)])
    assert example == (0, 1, 2, 2, 2, 5, 6, 7)
