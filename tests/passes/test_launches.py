"""Launches: as many as a framework really starts, and never a gain from more of them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from phaze_opt.choices import FusionMode, Launch
from phaze_opt.evaluation import evaluate_one
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.passes.launches import host_range, host_s, launch_seconds, launches
from phaze_opt.point import Point
from phaze_opt.training import Training
from phaze_opt.workload.capture.aten_kinds import VIEWS
from phaze_opt.workload.capture.user_module import capture
from phaze_opt.workload.graph import Workload
from phaze_opt.workload.zoo import load_workload

WIDTH, WORDS, BLOCKS = 32, 64, 2
LAUNCHES: tuple[Launch, ...] = ("graphs", "compiled", "eager")
FUSIONS: tuple[FusionMode, ...] = ("none", "elementwise", "epilogue")


class Block(nn.Module):
    """A transformer block as people write it, with attention in single operators."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Attend, and feed forward."""
        parts = self.qkv(self.first(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in parts)
        attended = torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        fed: Tensor = self.down(functional.gelu(self.up(self.second(x))))
        return x + fed


class Model(nn.Module):
    """Two blocks between an embedding and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(BLOCKS)])
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the loss."""
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(x).flatten(0, 1).float(), tokens.flatten())


class Dispatched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Names of the ATen operators that PyTorch really dispatches, without views."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note an operator and run it."""
        if func._schema.name not in VIEWS:
            self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def captured() -> Workload:
    """Return the captured model."""

    def build(microbatch: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
        return Model().bfloat16(), (torch.zeros((microbatch, 8), dtype=torch.long),)

    return capture(build, microbatch=(2,), tensor_parallel=(1,))


def test_eager_launches_are_those_of_pytorch() -> None:
    """A real forward and backward dispatches as many operators as are counted in the graphs."""
    model, tokens = Model().bfloat16(), torch.randint(0, WORDS, (2, 8))
    with Dispatched() as forward:
        loss = model(tokens)
    with Dispatched() as backward:
        loss.backward()
    (variant,) = captured().variants
    counted = {
        name: sum(
            count * launches(getattr(layer, name), "none", "eager")
            for layer, count in zip(variant.layers, variant.counts, strict=True)
        )
        for name in ("forward", "backward")
    }
    # The gradient of the loss itself is filled before the backward.
    assert backward.names[0] == "aten::ones_like"
    assert counted == {"forward": len(forward.names), "backward": len(backward.names) - 1}


def test_compiled_launches_are_near_those_of_inductor() -> None:
    """Inductor fuses into norms but not into products: between two of the modes, near one."""
    from torch._inductor.utils import run_fw_bw_and_get_code

    block = Block().bfloat16()
    x = torch.randn(2, 8, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    torch._dynamo.reset()
    _, codes = run_fw_bw_and_get_code(lambda: torch.compile(block)(x))
    calls = re.compile(r"^\s+(?:cpp_fused\w+|extern_kernels\.\w+)\(", re.MULTILINE)
    real = [len(calls.findall(code.partition("def call(")[2])) for code in codes]
    layer = captured().variants[0].layers[1]
    for graph, generated in zip((layer.forward, layer.backward), real, strict=True):
        products = sum(bool(operator.gemms) for operator in graph.operators)
        elementwise = launches(graph, "elementwise", "compiled")
        epilogue = launches(graph, "epilogue", "compiled")
        assert products < generated <= elementwise <= launches(graph, "none", "eager")
        assert abs(epilogue - generated) <= 0.2 * generated


SMALL = "gpt:layers=2,hidden=128,heads=4,sequence=64,vocab=512,attention=eager"
CLUSTER = load_cluster("dgx-a100", 8)


def point(launch: Launch, fusion: FusionMode | None = None, **options: Any) -> Point:
    """Return a run whose kernels are short."""
    given = {"optimizer": "adam", "global_batch": 16, **options}
    training = Training(**given, launch=launch)
    chip = load_accelerator("a100-80")
    return Point(load_workload(SMALL), chip, CLUSTER, training, (1, 8, 1), fusion)


@settings(max_examples=12, deadline=None)
@given(
    fusion=st.sampled_from(FUSIONS),
    recompute=st.sampled_from(["none", "selective", "full"]),
    overlap=st.sampled_from(["none", "data", "all"]),
    zero=st.integers(0, 3),
)
def test_more_launches_are_never_faster(
    fusion: FusionMode, recompute: str, overlap: str, zero: int
) -> None:
    """Graphs take no longer than compiled kernels, and these no longer than single operators."""
    options = {"recompute": recompute, "overlap": overlap, "zero": zero}
    runs = [evaluate_one(point(launch, fusion, **options)) for launch in LAUNCHES]
    times_s = [run.time_per_batch_s or 0.0 for run in runs]
    assert 0.0 < times_s[0] < times_s[1] <= times_s[2]
    # A host without end is one that launches nothing, bit for bit.
    endless = [replace(point(launch, fusion, **options), host_rate=1e12) for launch in LAUNCHES]
    assert {evaluate_one(each).time_per_batch_s for each in endless} == {times_s[0]}
    slower = replace(point("eager", fusion, **options), host_rate=0.5)
    assert (evaluate_one(slower).time_per_batch_s or 0.0) > times_s[2]


def test_a_pass_takes_at_least_its_launches() -> None:
    """And a long one no more than without them."""
    run = evaluate_one(point("eager", "none"))
    (block,) = (layer for layer in run.layers if layer.name == "block")
    assert (block.forward_s, block.backward_s) == (
        block.host_s["forward"],
        block.host_s["backward"],
    )
    free = evaluate_one(point("graphs", "none"))
    assert all(layer.host_s == {} for layer in free.layers)
    long = replace(
        point("eager"),
        workload=load_workload("gpt:layers=2,hidden=4096,heads=32,sequence=2048,vocab=512"),
    )
    device = replace(long, training=replace(long.training, launch="graphs"))
    (block,) = (layer for layer in evaluate_one(long).layers if layer.name == "block")
    (same,) = (layer for layer in evaluate_one(device).layers if layer.name == "block")
    assert (block.forward_s, block.backward_s) == (same.forward_s, same.backward_s)


def test_the_range_of_a_host_is_that_of_its_launches() -> None:
    """In the order low, central, high; without launches there is none."""
    each = launch_seconds()
    assert 0.0 < each.low_s < each.central_s < each.high_s
    span = host_range(Training(8, launch="eager"))
    assert span is not None and span.low < 1.0 < span.high
    assert host_range(Training(8)) is None
    layer = captured().variants[0].layers[1]
    count = launches(layer.forward, "none", "eager")
    slow = host_s(layer, Training(8, launch="eager"), "none", span.low)
    assert slow["forward"] == pytest.approx(count * each.high_s)
