"""Own modules of very different kinds are captured exactly, or refused so that a user can act."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from phaze_opt.errors import InputError
from phaze_opt.workload.capture.user_module import capture
from phaze_opt.workload.graph import WorkloadVariant
from tests.workload import kinds_of_modules as kinds
from tests.workload.kept import kept

Make = Callable[[int], Any]


@kept
def _captured(name: str) -> WorkloadVariant:
    return capture(getattr(kinds, name), microbatch=(2,)).variants[0]


@pytest.mark.parametrize(
    "make",
    [
        kinds.residual_network,
        kinds.u_net,
        kinds.gated_recurrent,
        kinds.long_short_term,
        kinds.scan,
        kinds.graph_network,
        kinds.dense_mixture,
        kinds.grouped_convolutions,
        kinds.einsum_attention,
    ],
)
def test_flops_are_those_that_pytorch_counts(make: Make) -> None:
    """Forward FLOPs equal PyTorch's own counter; the backward has once or twice as many."""
    variant = _captured(make.__name__)
    layers = [variant.layers[index] for _, index in variant.nodes]
    module, inputs = make(2)
    given = inputs if isinstance(inputs, tuple) else (inputs,)
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # a fused recurrent kernel is not counted
    try:
        with FlopCounterMode(display=False) as counter:
            module(*given)
    finally:
        torch._C._set_mkldnn_enabled(before)
    forward = sum(layer.forward.flops for layer in layers)
    assert forward == counter.get_total_flops()
    assert forward <= sum(layer.backward.flops for layer in layers) <= 2 * forward


@pytest.mark.parametrize(
    ("make", "line", "reason", "instead"),
    [
        (kinds.fourier, "torch.fft.fft", "Fourier transform has no bf16", "sines and cosines"),
        (kinds.deciding, "if x.sum() > 0:", "no values", "torch.where"),
        (
            kinds.routed_mixture,
            "out[rows] += expert(x[rows])",
            "fixed sizes",
            "the plan of a mixture",
        ),
        (kinds.repeated_rows, "torch.repeat_interleave", "fixed sizes", "torch.topk"),
        (kinds.distances, "torch.cdist", "sizes that capture does not know", "torch.matmul"),
        (kinds.inverse, "torch.linalg.inv", "captured in bf16", "elementwise operators"),
        (kinds.as_numpy, "x.numpy()", "no values", "torch.where"),
        (kinds.wrong_sizes, "self.second(self.first(x))", "same reduction dim", ""),
    ],
)
def test_refusals_name_the_users_line(
    make: Make, line: str, reason: str, instead: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A refusal has the file and line of the user's own code, why it fails, and what to write."""
    with pytest.raises(InputError) as caught:
        capture(make, microbatch=(2,))
    sentence = str(caught.value)
    place = re.search(r"kinds_of_modules\.py:(\d+) \(`(.*?)`\): ", sentence)
    assert place is not None, sentence
    assert line in place[2] and reason in sentence and instead in sentence
    lines, first = inspect.getsourcelines(make)
    assert first <= int(place[1]) < first + len(lines)
    assert "\n" not in sentence
    assert "Traceback" not in capfd.readouterr().err  # PyTorch's own log


def test_a_module_without_a_loss_is_captured_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A result that is not a scalar gets a gradient, and the user is told."""
    capture(lambda samples: (torch.nn.Linear(4, 4), torch.zeros(samples, 4)))
    (warning,) = [record.getMessage() for record in caplog.records if "loss" in record.message]
    assert "returns no scalar" in warning
    caplog.clear()
    capture(kinds.scan)
    assert not [record for record in caplog.records if record.name.startswith("phaze_opt")]
