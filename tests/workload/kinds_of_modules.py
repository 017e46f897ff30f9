"""Modules of very different kinds, each as a factory makes it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

SIZE = 16
Forward = Callable[..., Any]


class Written(nn.Module):
    """A module whose forward is a function of it and its inputs."""

    def __init__(self, forward: Forward, **layers: nn.Module) -> None:
        super().__init__()
        self.written = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *inputs: Tensor) -> Any:
        """Run the function."""
        return self.written(self, *inputs)


def _linear(outputs: int = SIZE) -> nn.Linear:
    return nn.Linear(SIZE, outputs)


def _rows(samples: int) -> Tensor:
    return torch.zeros(samples, 8, SIZE)


class Bottleneck(nn.Module):
    """A block of ResNet-50 (He et al. 2016)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.inner = nn.Sequential(
            *(nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            *(nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, outputs, 1, bias=False)),
            nn.BatchNorm2d(outputs),
        )
        self.skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Any:
        """Add the block's result to its skip."""
        return torch.relu(self.inner(x) + self.skip(x))


def residual_network(samples: int) -> Any:
    """Make the first stages of ResNet-50."""
    module = nn.Sequential(
        *(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.MaxPool2d(3, 2, 1), Bottleneck(64, 64, 1), Bottleneck(256, 128, 2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)),
    )
    return Written(lambda self, x: self.all(x).mean(), all=module), torch.zeros(samples, 3, 32, 32)


def u_net(samples: int) -> Any:
    """Make a U-Net with a skip across its lower level."""

    def forward(self: Any, x: Tensor) -> Any:
        upper = torch.relu(self.down(x))
        lower = self.up(torch.relu(self.middle(upper)))
        lower = functional.interpolate(functional.avg_pool2d(lower, 2), scale_factor=2.0)
        return self.out(torch.cat([upper, lower], 1)).square().mean()

    return (
        Written(
            forward,
            down=nn.Conv2d(3, 8, 3, padding=1),
            middle=nn.Conv2d(8, 16, 3, 2, 1),
            up=nn.ConvTranspose2d(16, 8, 2, 2),
            out=nn.Conv2d(16, 1, 1),
        ),
        torch.zeros(samples, 3, 16, 16),
    )


def gated_recurrent(samples: int) -> Any:
    """Make a GRU."""
    recurrent = nn.GRU(SIZE, 32, batch_first=True)
    forward: Forward = lambda self, x: self.out(self.steps(x)[0]).mean()  # noqa: E731
    return Written(forward, steps=recurrent, out=nn.Linear(32, 4)), _rows(samples)


def long_short_term(samples: int) -> Any:
    """Make an LSTM of two layers."""
    recurrent = nn.LSTM(SIZE, 32, 2, batch_first=True)
    forward: Forward = lambda self, x: self.out(self.steps(x)[0]).mean()  # noqa: E731
    return Written(forward, steps=recurrent, out=nn.Linear(32, 4)), _rows(samples)


def scan(samples: int) -> Any:
    """Make a linear recurrence over time, step by step."""

    def forward(self: Any, x: Tensor) -> Any:
        inputs, state, states = self.into(x), torch.zeros(len(x), SIZE), []
        for step in range(inputs.shape[1]):
            state = torch.sigmoid(inputs[:, step]) * state + inputs[:, step]
            states.append(state)
        return self.out(torch.stack(states, 1)).mean()

    return Written(forward, into=_linear(), out=_linear()), _rows(samples)


def graph_network(samples: int) -> Any:
    """Make one round of messages along the edges of a graph."""

    def forward(self: Any, x: Tensor, edges: Tensor) -> Any:
        sent = self.into(x)
        received = torch.zeros_like(sent).index_add(0, edges[1], sent[edges[0]])
        return self.out(torch.relu(received)).mean()

    edges = torch.zeros(2, 32 * samples, dtype=torch.int64)
    return Written(forward, into=_linear(), out=_linear()), (
        torch.zeros(8 * samples, SIZE),
        edges,
    )


def dense_mixture(samples: int) -> Any:
    """Make a mixture whose experts all see every row."""

    def forward(self: Any, x: Tensor) -> Any:
        weights = self.gate(x).softmax(-1)
        return sum(weights[..., k : k + 1] * one(x) for k, one in enumerate(self.experts)).mean()

    experts = nn.ModuleList(_linear() for _ in range(4))
    return Written(forward, gate=_linear(4), experts=experts), _rows(samples)


def grouped_convolutions(samples: int) -> Any:
    """Make grouped, depthwise and transposed convolutions in one and more dimensions."""

    def forward(self: Any, x: Tensor) -> Any:
        return self.up(self.depthwise(torch.relu(self.norm(self.grouped(x))))).mean()

    return Written(
        forward,
        grouped=nn.Conv2d(SIZE, 32, 3, 2, 1, groups=4),
        norm=nn.GroupNorm(4, 32),
        depthwise=nn.Conv2d(32, 32, 3, groups=32),
        up=nn.ConvTranspose2d(32, 8, 2, 2, groups=2),
    ), torch.zeros(samples, SIZE, 16, 16)


def einsum_attention(samples: int) -> Any:
    """Make products that are written as sums over indices."""

    def forward(self: Any, x: Tensor) -> Any:
        scores = torch.einsum("bsd,btd->bst", self.into(x), x).softmax(-1)
        return torch.einsum("bst,btd->bsd", scores, x).mean()

    return Written(forward, into=_linear()), _rows(samples)


def fourier(samples: int) -> Any:
    """Make a module that mixes tokens by a Fourier transform."""
    forward: Forward = lambda self, x: torch.fft.fft(self.into(x), dim=1).real.mean()  # noqa: E731
    return Written(forward, into=_linear()), _rows(samples)


def deciding(samples: int) -> Any:
    """Make a module that branches on a value."""

    def forward(self: Any, x: Tensor) -> Any:
        if x.sum() > 0:
            x = self.into(x)
        return self.into(x).mean()

    return Written(forward, into=_linear()), _rows(samples)


def routed_mixture(samples: int) -> Any:
    """Make a mixture in a loop whose experts see the rows that chose them."""

    def forward(self: Any, x: Tensor) -> Any:
        chosen, out = self.gate(x).topk(2).indices, torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            rows = (chosen == k).any(-1)
            out[rows] += expert(x[rows])
        return out.mean()

    experts = nn.ModuleList(_linear() for _ in range(4))
    return Written(forward, gate=_linear(4), experts=experts), _rows(samples)


def repeated_rows(samples: int) -> Any:
    """Make a result whose size is a sum of values."""

    def forward(self: Any, x: Tensor, counts: Tensor) -> Any:
        return torch.repeat_interleave(self.into(x), counts, 0).mean()

    return Written(forward, into=_linear()), (
        _rows(samples),
        torch.ones(samples, dtype=torch.int64),
    )


def distances(samples: int) -> Any:
    """Make products inside an operator that capture does not know."""

    def forward(self: Any, x: Tensor) -> Any:
        inner = self.into(x)
        return torch.cdist(inner, inner).mean()

    return Written(forward, into=_linear()), _rows(samples)


def inverse(samples: int) -> Any:
    """Make an operator that has no bf16."""
    forward: Forward = lambda self, x: torch.linalg.inv(self.into(x)).mean()  # noqa: E731
    return Written(forward, into=_linear()), torch.zeros(samples, SIZE, SIZE)


def as_numpy(samples: int) -> Any:
    """Make a module that leaves torch."""

    def forward(self: Any, x: Tensor) -> Any:
        return self.into(x).mean() * float(x.numpy().mean())

    return Written(forward, into=_linear()), _rows(samples)


def wrong_sizes(samples: int) -> Any:
    """Make a module with a mistake of its own."""

    def forward(self: Any, x: Tensor) -> Any:
        return self.second(self.first(x)).mean()

    return Written(forward, first=_linear(8), second=_linear()), _rows(samples)
