"""Experts of the user's own modules that stacked weights and a top-k show, without a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from phaze_opt.errors import InputError
from phaze_opt.evaluation import evaluate
from phaze_opt.training import Training
from phaze_opt.workload.capture.user_module import capture
from phaze_opt.workload.graph import Workload
from tests.workload.test_own_experts import EXPERTS, HIDDEN, INNER, ROWS, TOP_K, Grouped

CAPACITY = ROWS * TOP_K // EXPERTS
PLAN = {"blocks.*.mixture": f"experts:{TOP_K}"}


class Batched(nn.Module):
    """A router and stacked weights; every token is multiplied as ``multiply`` says."""

    def __init__(self, multiply: Callable[..., Tensor], top_k: int | None = TOP_K) -> None:
        super().__init__()
        self.multiply, self.chosen = multiply, top_k
        self.gate = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.zeros(EXPERTS, HIDDEN, INNER))
        self.down = nn.Parameter(torch.zeros(EXPERTS, INNER, HIDDEN))

    def forward(self, x: Tensor) -> Any:
        """Weigh the results of all experts, where some weights are zero."""
        scores = functional.softmax(self.gate(x), -1)
        if self.chosen is not None:
            least = torch.topk(scores, self.chosen).values[..., -1:]
            scores = torch.where(scores >= least, scores, 0)
        return self.multiply(self, x, scores)


def by_bmm(self: Any, x: Tensor, scores: Tensor) -> Tensor:
    """Multiply all tokens by all experts."""
    rows = x.flatten(0, 1).expand(EXPERTS, -1, -1)
    results = torch.bmm(functional.gelu(torch.bmm(rows, self.up)), self.down)
    return (results * scores.flatten(0, 1).T.unsqueeze(-1)).sum(0).view(x.shape)


def by_einsum(self: Any, x: Tensor, scores: Tensor) -> Tensor:
    """Send a fixed number of rows to each expert, as GShard does."""
    places = scores.flatten(0, 1).unsqueeze(-1).expand(-1, -1, CAPACITY)
    rows = torch.einsum("tec,th->ech", places, x.flatten(0, 1))
    inner = functional.gelu(torch.einsum("ech,ehf->ecf", rows, self.up))
    results = torch.einsum("ecf,efh->ech", inner, self.down)
    return torch.einsum("tec,ech->th", places, results).view(x.shape)


def by_loop(self: Any, x: Tensor, scores: Tensor) -> Tensor:
    """Multiply by one expert after the other."""
    return torch.stack(
        [
            scores[..., i : i + 1]
            * functional.linear(functional.gelu(functional.linear(x, up.T)), down.T)
            for i, (up, down) in enumerate(zip(self.up, self.down, strict=True))
        ]
    ).sum(0)


class Block(nn.Module):
    """A residual block of some mixture."""

    def __init__(self, mixture: nn.Module) -> None:
        super().__init__()
        self.norm, self.mixture = nn.RMSNorm(HIDDEN), mixture

    def forward(self, x: Tensor) -> Any:
        """Add what the mixture makes."""
        return x + self.mixture(self.norm(x))


class Model(nn.Module):
    """Two blocks."""

    def __init__(self, mixture: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(mixture()) for _ in range(2))

    def forward(self, x: Tensor) -> Any:
        """Return a loss."""
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def captured(mixture: Callable[[], nn.Module], plan: dict[str, str] | None = None) -> Workload:
    """Capture a model of some mixture."""

    def make(microbatch: int) -> Any:
        made = Model(mixture), torch.zeros(microbatch, ROWS, HIDDEN)
        return made if plan is None else (*made, plan)

    return capture(make)


@pytest.mark.parametrize("multiply", [by_bmm, by_einsum, by_loop])
def test_a_top_k_beside_stacked_weights_is_a_plan(
    multiply: Callable[..., Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    """To the bit, with a warning; experts are shared out as others are."""
    found = captured(lambda: Batched(multiply))
    assert "has experts with stacked weights: blocks.0.mixture, blocks.1.mixture" in caplog.text
    assert found == captured(lambda: Batched(multiply), PLAN)
    assert found.active_parameters != found.parameters
    training = Training(16, 1, optimizer="adam", zero=1, expert_parallel=4)
    assert evaluate(found, "h100", "dgx-h100", training, (1, 8, 1), devices=8).feasible


def test_a_plan_that_leaves_them_as_they_are_holds() -> None:
    """All experts then multiply all tokens, as written."""
    kept = captured(lambda: Batched(by_bmm), {"blocks.*.mixture": "replicate"})
    (layer,) = {kept.variants[0].layers[kind] for _, kind in kept.variants[0].nodes[:1]}
    products = [gemm.batch for op in layer.forward.operators for gemm in op.gemms]
    assert products.count(EXPERTS) == 2 and layer.routed_parameters in (
        None,
        layer.frozen_parameters,
    )


@pytest.mark.parametrize("multiply", [by_bmm, by_einsum, by_loop])
def test_batched_weights_without_a_top_k_are_no_experts(
    multiply: Callable[..., Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    """All of them work on every token; a sentence names the plan."""
    dense = captured(lambda: Batched(multiply, None))
    assert not any(layer.routed_parameters for layer in dense.variants[0].layers)
    assert dense == captured(lambda: Batched(multiply, None), {"blocks.*.mixture": "replicate"})
    assert '{"blocks.*.mixture": "experts:2"}' in caplog.text


class Heads(nn.Module):
    """Stacked weights of heads, whose results a top-k of another size thins out; no router."""

    def __init__(self, heads: int, scores: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.zeros(heads, HIDDEN, INNER))
        self.down = nn.Parameter(torch.zeros(heads, INNER, HIDDEN))
        self.scores = nn.Parameter(torch.zeros(scores))

    def forward(self, x: Tensor) -> Any:
        """Keep the largest scores, whatever they belong to."""
        inner = torch.einsum("bth,ehf->btef", x, self.up)
        kept = torch.topk(self.scores, 2).values.sum()
        return kept * torch.einsum("btef,efh->bth", inner, self.down)


@pytest.mark.parametrize(("heads", "scores"), [(4, 4), (4, 3)])
def test_a_dense_batched_parameter_is_never_taken(heads: int, scores: int) -> None:
    """Whatever is chosen beside it: no router scores its tokens."""
    dense = captured(lambda: Heads(heads, scores))
    assert not any(layer.routed_parameters for layer in dense.variants[0].layers)


def _two_choices(self: Any, x: Tensor, scores: Tensor) -> Tensor:
    """Choose twice, so that nothing says how many experts a token has."""
    return by_bmm(self, x, scores) * torch.topk(scores, TOP_K + 1).values.sum()


def test_two_numbers_of_experts_are_none(caplog: pytest.LogCaptureFixture) -> None:
    """Nor is one that contradicts an attribute; with an attribute, one of two is."""

    def contradicting(attribute: int, multiply: Callable[..., Tensor]) -> nn.Module:
        mixture = Batched(multiply)
        mixture.top_k = attribute  # type: ignore[assignment]
        return mixture

    unclear = captured(lambda: Batched(_two_choices))
    assert not any(layer.routed_parameters for layer in unclear.variants[0].layers)
    assert "does not follow from its torch.topk" in caplog.text
    other = captured(lambda: contradicting(TOP_K + 2, by_bmm))
    assert not any(layer.routed_parameters for layer in other.variants[0].layers)
    clear = captured(lambda: contradicting(TOP_K, _two_choices))
    assert clear == captured(lambda: Batched(by_bmm), PLAN)


def _largest_elements(self: Any, x: Tensor, scores: Tensor) -> Tensor:
    """Choose elements of every token, which are as many as no expert scores."""
    return by_bmm(self, x, scores) * torch.topk(x, TOP_K).values.sum()


def test_other_scores_choose_no_experts() -> None:
    """A top-k of another number of scores says nothing of experts."""
    dense = captured(lambda: Batched(_largest_elements, None))
    assert not any(layer.routed_parameters for layer in dense.variants[0].layers)


def _unsaid() -> nn.Module:
    """Return grouped experts without an attribute that says how many a token has."""
    grouped = Grouped()
    del grouped.num_experts_per_tok
    return grouped


def test_a_top_k_counts_where_the_trace_ends() -> None:
    """What the first block chose before it selects rows by value holds for equal blocks."""
    assert captured(_unsaid) == captured(_unsaid, PLAN)


class Unsorted(Grouped):
    """Grouped experts whose choice is no ``torch.topk``."""

    def forward(self, x: Tensor) -> Any:
        """Sort all scores."""
        chosen = torch.sort(self.gate(x.flatten(0, 1))).indices[:, :TOP_K]
        rows = torch.where(chosen == 0)[0]
        return x + rows.sum() * self.gate_up.sum() * self.down.sum()


def test_a_choice_that_is_not_known_is_refused() -> None:
    """Where the module cannot be traced and says no number; with an attribute it is found."""

    def unsaid() -> nn.Module:
        unsorted = Unsorted()
        del unsorted.num_experts_per_tok
        return unsorted

    with pytest.raises(InputError, match="plan of a mixture of experts"):
        captured(unsaid)
    assert captured(Unsorted) == captured(Unsorted, {"blocks.*.mixture": "experts"})
