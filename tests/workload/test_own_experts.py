"""Experts of the user's own modules, declared in a plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from phaze_opt.errors import InputError
from phaze_opt.evaluation import evaluate
from phaze_opt.training import Training
from phaze_opt.workload.capture.user_module import capture
from phaze_opt.workload.expert_parallel import with_experts_shared_out
from phaze_opt.workload.graph import Layer, Workload
from phaze_opt.workload.zoo import load_workload
from tests.workload.kept import kept

HIDDEN, INNER, EXPERTS, TOP_K, HEADS, WORDS, ROWS = 64, 32, 8, 2, 4, 96, 128
NAMED = (
    f"moe:layers=2,hidden={HIDDEN},heads={HEADS},sequence={ROWS},vocab={WORDS},experts={EXPERTS},"
    f"top_k={TOP_K},expert_ffn={INNER}"
)
LIST, STACKED = {"blocks.*.mixture.experts": "experts"}, {"blocks.*.experts": "experts"}


class Expert(nn.Module):
    """Three matrices with a gate."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(HIDDEN, INNER, bias=bias) for _ in range(2))
        self.w2 = nn.Linear(INNER, HIDDEN, bias=bias)

    def forward(self, x: Tensor) -> Any:
        """Return the network's result."""
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Mixture(nn.Module):
    """A loop over experts, as in early code of Mixtral."""

    def __init__(self, bias: bool = False, beside: bool = False) -> None:
        super().__init__()
        self.top_k = TOP_K
        self.gate = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert(bias) for _ in range(EXPERTS))
        self.shared = nn.Linear(HIDDEN, HIDDEN) if beside else None

    def forward(self, x: Tensor) -> Any:
        """Select the rows of every expert by value."""
        flat = x.flatten(0, 1)
        weights, chosen = torch.topk(functional.softmax(self.gate(flat), -1), self.top_k)
        out = torch.zeros_like(flat)
        for index, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == index)
            out[rows] += weights[rows, place].unsqueeze(-1) * expert(flat[rows])
        return out.view(x.shape)


class Stacked(nn.Module):
    """Weights with a dimension more, called as Hugging Face's experts are."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.zeros(EXPERTS, 2 * INNER, HIDDEN))
        self.down = nn.Parameter(torch.zeros(EXPERTS, HIDDEN, INNER))
        if bias:
            self.gate_up_bias = nn.Parameter(torch.zeros(EXPERTS, 2 * INNER))
            self.down_bias = nn.Parameter(torch.zeros(EXPERTS, HIDDEN))

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Any:
        """Loop over the experts that any token has."""
        out = torch.zeros_like(x)
        for index in torch.unique(chosen):
            rows, place = torch.where(chosen == index)
            gate, value = (x[rows] @ self.gate_up[index].T).chunk(2, -1)
            part = (functional.silu(gate) * value) @ self.down[index].T
            out[rows] += weights[rows, place].unsqueeze(-1) * part
        return out


class Block(nn.Module):
    """A block as the named models have it, but for the experts."""

    def __init__(self, form: str, bias: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(HIDDEN) for _ in range(2))
        self.joint = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)
        if form == "stacked":
            self.gate, self.experts = nn.Linear(HIDDEN, EXPERTS, bias=False), Stacked(bias)
        else:
            self.mixture = Mixture(bias, form == "beside")
        self.form = form

    def forward(self, x: Tensor) -> Any:
        """Attend, and ask the experts."""
        batch, rows, _ = x.shape
        q, k, v = (
            part.view(batch, rows, HEADS, -1).transpose(1, 2)
            for part in self.joint(self.norms[0](x)).split(HIDDEN, -1)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).contiguous().view(batch, rows, HIDDEN))
        tokens = self.norms[1](x)
        if self.form != "stacked":
            return x + self.mixture(tokens)
        flat = tokens.flatten(0, 1)
        weights, chosen = torch.topk(functional.softmax(self.gate(flat), -1), TOP_K)
        return x + self.experts(flat, chosen, weights).view(x.shape)


class Model(nn.Module):
    """Embedding, blocks and loss."""

    def __init__(self, form: str, bias: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, HIDDEN)
        self.blocks = nn.ModuleList(Block(form, bias) for _ in range(2))
        self.norm = nn.RMSNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Any:
        """Return the loss."""
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.view(-1, WORDS), tokens.view(-1))


def capture_model(
    form: str, plan: dict[str, str] | None, bias: bool = False, tensor: tuple[int, ...] = (1,)
) -> Workload:
    """Capture the model."""

    def make(microbatch: int) -> Any:
        inputs = torch.zeros(microbatch, ROWS, dtype=torch.int64)
        made = Model(form, bias), inputs
        return made if plan is None else (*made, plan)

    return capture(make, tensor_parallel=tensor)


captured = kept(capture_model)
"""As `capture_model`, but kept: not where the model is another one than that of this file."""


def block_of(workload: Workload, name: str) -> Layer:
    """Return the layer of the first block."""
    variant = workload.variants[0]
    return variant.layers[dict(variant.nodes)[name]]


def test_a_loop_over_experts_is_the_named_model() -> None:
    """In parameters, FLOPs of both directions, stash, and products of experts."""
    own, named = captured("list", LIST), load_workload(NAMED)
    assert own.parameters == named.parameters
    assert own.active_parameters == named.active_parameters
    mine, theirs = block_of(own, "blocks.0"), block_of(named, "block.0")
    assert mine.parameters == theirs.parameters
    assert mine.routed_parameters == theirs.routed_parameters
    assert mine.stash_bytes.none == theirs.stash_bytes.none
    for graph, other in ((mine.forward, theirs.forward), (mine.backward, theirs.backward)):
        assert graph.flops == other.flops
        products = [
            [(op.gemms, op.surplus_flops) for op in each.operators if op.id.startswith("grouped_")]
            for each in (graph, other)
        ]
        assert products[0] == products[1] and products[0]
    training = Training(16, 1, optimizer="adam", zero=1, expert_parallel=4)
    sent = [
        [
            operator.collective
            for layer in with_experts_shared_out(each.variants[0], training).layers
            for operator in (*layer.forward.operators, *layer.backward.operators)
            if operator.is_exchange
        ]
        for each in (own, named)
    ]
    assert sent[0] == sent[1] and len(sent[0]) == 4
    assert evaluate(own, "h100", "dgx-h100", training, (1, 8, 1), devices=8).feasible


@pytest.mark.parametrize("bias", [False, True])
def test_stacked_weights_are_the_same_experts(bias: bool) -> None:
    """With the user's own choice of experts, whose operators stand beside them."""
    stacked, listed = captured("stacked", STACKED, bias), captured("list", LIST, bias)
    assert stacked.parameters == listed.parameters
    assert stacked.active_parameters == listed.active_parameters
    one, other = block_of(stacked, "blocks.0"), block_of(listed, "blocks.0")
    assert one.routed_parameters == other.routed_parameters
    assert one.forward.flops == other.forward.flops
    assert one.backward.flops == other.backward.flops


@pytest.mark.parametrize("form", ["list", "stacked"])
def test_shares_of_experts_add_up(form: str) -> None:
    """Two devices hold half of every expert each, and sum what they compute."""
    plan = (LIST if form == "list" else STACKED) | {
        "blocks.*.joint": "replicate",
    }
    whole = captured(form, plan, bias=True)
    share = captured(form, plan, bias=True, tensor=(2,))
    mine, all_of_it = block_of(share, "blocks.0"), block_of(whole, "blocks.0")
    down_bias = EXPERTS * HIDDEN  # which each device has
    assert 2 * ((mine.routed_parameters or 0) - down_bias) == (
        (all_of_it.routed_parameters or 0) - down_bias
    )
    rows = ROWS * TOP_K
    less = 2 * rows * 3 * HIDDEN * INNER // 2
    assert all_of_it.forward.flops - mine.forward.flops == less
    sent = [op.collective.kind for op in mine.forward.operators if op.collective]
    assert sent == ["all_reduce"]


@pytest.mark.parametrize(
    ("form", "plan", "words"),
    [
        ("list", None, r'plan of a mixture of experts .*"blocks\.\*\.experts": "experts"'),
        ("beside", LIST, "blocks.0.mixture holds more than them and a router"),
        ("list", {"blocks.*.mixture.gate": "experts"}, "no ModuleList of equal experts"),
        ("list", {"blocks.*.experts": "experts"}, "layer in the plan"),
        ("list", {"blocks.*.mixture.experts": "expert"}, "style of"),
        ("stacked", {"blocks.*": "experts"}, "more than them and a router|no ModuleList"),
    ],
)
def test_what_is_no_mixture_is_refused(form: str, plan: dict[str, str] | None, words: str) -> None:
    """In a sentence that says what to write."""
    with pytest.raises(InputError, match=words):
        captured(form, plan)


def test_the_style_may_say_how_many_experts_a_token_has() -> None:
    """Instead of the attribute."""
    more = captured("list", {"blocks.*.mixture.experts": "experts:4"})
    few = captured("list", LIST)
    of_rows = 2 * ROWS * 3 * HIDDEN * INNER
    one, other = block_of(more, "blocks.0"), block_of(few, "blocks.0")
    assert one.forward.flops - other.forward.flops == (4 - TOP_K) * of_rows
    assert one.parameters == other.parameters


def test_a_module_stays_as_it_is() -> None:
    """Its copy is changed, and a second capture gives the same."""
    module = Model("list", False)
    inputs = torch.zeros(1, ROWS, dtype=torch.int64)
    first, second = (capture(module, inputs, microbatch=(1,), plan=LIST) for _ in range(2))
    assert first == second
    assert isinstance(module.get_submodule("blocks.0.mixture"), Mixture)
    assert replace(first, model="") == replace(captured("list", LIST), model="")


class Grouped(nn.Module):
    """A router and stacked weights in grouped products, called with tokens alone."""

    def __init__(self) -> None:
        super().__init__()
        self.num_experts_per_tok = TOP_K
        self.gate = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.gate_up = nn.Parameter(torch.zeros(EXPERTS, HIDDEN, 2 * INNER))
        self.down = nn.Parameter(torch.zeros(EXPERTS, INNER, HIDDEN))

    def forward(self, x: Tensor) -> Any:
        """Multiply sorted rows by the weights of their experts."""
        flat = x.flatten(0, 1)
        weights, chosen = torch.topk(functional.softmax(self.gate(flat), -1), TOP_K)
        order = chosen.flatten().argsort()
        ends = torch.bincount(chosen.flatten(), minlength=EXPERTS).cumsum(0, dtype=torch.int32)
        rows = flat[order // TOP_K]
        gate, value = torch._grouped_mm(rows, self.gate_up, ends).chunk(2, -1)
        rows = torch._grouped_mm(functional.silu(gate) * value, self.down, ends)
        rows = rows * weights.flatten()[order].unsqueeze(-1)
        return torch.zeros_like(flat).index_add(0, order // TOP_K, rows).view(x.shape)


@pytest.mark.parametrize("bias", [False, True])
def test_stacked_weights_are_found_without_a_plan(bias: bool) -> None:
    """As if the plan had named them, for a tensor-parallel share too."""
    assert captured("stacked", None, bias) == captured("stacked", STACKED, bias)
    others = {"blocks.*.joint": "replicate"}
    found, stated = (
        captured("stacked", plan, bias, tensor=(1, 2)) for plan in (others, STACKED | others)
    )
    assert found == stated


def test_grouped_products_are_found_without_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """With their router, which holds nothing beside."""
    monkeypatch.setattr(f"{__name__}.Mixture", lambda *_: Grouped())
    found = capture_model("list", None)
    assert found == capture_model("list", {"blocks.*.mixture": "experts"})
    training = Training(16, 1, optimizer="adam", zero=1, expert_parallel=4)
    assert evaluate(found, "h100", "dgx-h100", training, (1, 8, 1), devices=8).feasible
