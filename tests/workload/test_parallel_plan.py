"""A user's own module split by a plan: shards add up, and wrong plans are refused."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from phaze_opt.errors import InputError
from phaze_opt.evaluation import evaluate
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.training import Training
from phaze_opt.workload.capture.user_module import capture
from phaze_opt.workload.graph import Layer, Workload, WorkloadVariant
from phaze_opt.workload.summary import collective_bytes
from phaze_opt.workload.zoo import load_workload
from tests.workload import own_llama
from tests.workload.kept import kept

WIDTH, HEAD, WORDS, ROWS, SAMPLES = 32, 4, 64, 8, 2

PLAN = {
    "words": "rowwise",
    "blocks.*.joint": "colwise",
    "blocks.*.out": "rowwise",
    "blocks.*.up": "colwise",
    "blocks.*.down": "rowwise",
    "head": "loss_parallel",
}


class Block(nn.Module):
    """A block whose heads are counted by -1, or by their number."""

    def __init__(self, fused: bool, counted: bool) -> None:
        super().__init__()
        self.norm, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.joint, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.shape = (WIDTH // HEAD, -1) if counted else (-1, HEAD)
        self.fused = fused

    def forward(self, x: Tensor) -> Any:
        """Add attention and the feed-forward network."""
        batch, rows, _ = x.shape
        q, k, v = (
            part.reshape(batch, rows, *self.shape).transpose(1, 2)
            for part in self.joint(self.norm(x)).chunk(3, -1)
        )
        if self.fused:
            y = functional.scaled_dot_product_attention(q, k, v)
        else:
            y = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
        x = x + self.out(y.transpose(1, 2).reshape(batch, rows, -1))
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Model(nn.Module):
    """Embedding, blocks, tied head and loss."""

    def __init__(self, fused: bool = True, counted: bool = False, blocks: int = 1) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block(fused, counted) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Any:
        """Return the loss."""
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.float().flatten(0, 1), tokens.flatten())


def _capture(
    plan: Any = PLAN,
    *,
    tensor_degree: int = 4,
    fused: bool = True,
    counted: bool = False,
    blocks: int = 1,
) -> Workload:
    def make(samples: int) -> Any:
        return Model(fused, counted, blocks), torch.zeros(samples, ROWS, dtype=torch.int64), plan

    return capture(
        make, microbatch=(SAMPLES,), tensor_parallel=(1, tensor_degree), tokens_per_sample=ROWS
    )


_captured = kept(_capture)


def _planned() -> Workload:
    return _captured()


def _layers(variant: WorkloadVariant) -> dict[str, Layer]:
    return {name: variant.layers[index] for name, index in variant.nodes}


@pytest.mark.parametrize(("fused", "tensor_degree", "blocks"), [(True, 8, 2), (False, 2, 1)])
def test_shards_add_up(fused: bool, tensor_degree: int, blocks: int) -> None:
    """Shards hold the model once and what is replicated once each, and split every product."""
    workload = _captured(fused=fused, tensor_degree=tensor_degree, blocks=blocks)
    whole, share = map(_layers, workload.variants)
    assert [v.tensor_parallel for v in workload.variants] == [1, tensor_degree]
    assert whole.keys() == share.keys()
    replicated = {"first": 0, "last": 2 * WIDTH}  # the norms and the biases after a sum
    for name, layer in whole.items():
        copied = replicated.get(name, 4 * WIDTH + 2 * WIDTH)
        assert tensor_degree * (share[name].parameters - copied) == layer.parameters - copied
        assert tensor_degree * share[name].forward.flops == layer.forward.flops
        assert tensor_degree * share[name].backward.flops == layer.backward.flops
        assert tensor_degree * share[name].tied_parameters == layer.tied_parameters
    assert workload.parameters == sum(p.numel() for p in Model(blocks=blocks).parameters())


def test_a_block_communicates_as_megatrons() -> None:
    """Each pass of a block sums the stream twice over the group, the head once in its backward."""
    share = _layers(_planned().variants[1])
    stream = 2 * SAMPLES * ROWS * WIDTH
    for graph in (share["blocks.0"].forward, share["blocks.0"].backward):
        assert collective_bytes(graph) == {"all_reduce": 2 * stream}
    assert collective_bytes(share["first"].forward) == {"all_reduce": stream}
    statistics = 3 * 4 * SAMPLES * ROWS
    assert collective_bytes(share["last"].forward) == {"all_reduce": statistics}
    assert collective_bytes(share["last"].backward) == {"all_reduce": stream}


def test_gathered_columns_are_whole_again() -> None:
    """The loss of gathered logits is computed whole on every device."""
    workload = _captured({**PLAN, "head": "colwise_rep"})
    whole, share = (_layers(variant)["last"] for variant in workload.variants)
    assert collective_bytes(share.forward) == {"all_gather": 2 * SAMPLES * ROWS * WORDS}
    assert 4 * share.forward.flops == whole.forward.flops
    assert share.stash_bytes == whole.stash_bytes


def test_layers_that_are_not_planned_are_whole() -> None:
    """Without a plan for the attention, only the feed-forward network is split."""
    plan = {key: style for key, style in PLAN.items() if key.endswith(("up", "down"))}
    whole, share = (_layers(variant)["blocks.0"] for variant in _captured(plan).variants)
    inner = 2 * 2 * SAMPLES * ROWS * WIDTH * 4 * WIDTH
    assert whole.forward.flops - share.forward.flops == 3 * inner // 4


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"blocks.*.joint": "columnwise"}, "Did you mean 'colwise'"),  # a typo
        ({"blocks.*.joint": 1}, "Unknown style of blocks.*.joint"),
        ({"block.*.joint": "colwise"}, "Did you mean 'blocks."),  # no such layer
        ({"blocks.*.norm": "colwise"}, "is a LayerNorm; only nn.Linear and nn.Embedding"),
        ({"blocks.0": "colwise"}, "is a Block"),
        ({"words": "rowwise"}, "splits words but not head, which has the same weight of shape"),
        ({"words": "colwise", "head": "loss_parallel"}, "along two dimensions"),
        ({**PLAN, "head": "colwise"}, "log_softmax works on 16 of 64 columns"),
        ({"blocks.*.joint": "colwise"}, "cannot be traced at tensor degree 4"),  # no out
        ([("words", "rowwise")], "must return a plan as a dict"),
    ],
)
def test_wrong_plans_are_refused(plan: Any, words: str) -> None:
    """What a plan gets wrong is named in one sentence."""
    with pytest.raises(InputError) as caught:
        _capture(plan)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_tensor_degree_that_does_not_divide_is_refused_with_the_shape() -> None:
    """The weight, its shape and what does not divide are named."""
    with pytest.raises(InputError) as caught:
        _capture({"blocks.*.joint": "colwise", "blocks.*.out": "rowwise"}, tensor_degree=5)
    assert "blocks.0.joint over 5 devices" in str(caught.value)
    assert "shape 96 × 32 has 96 outputs, which is not a multiple of 5" in str(caught.value)


@pytest.mark.parametrize("fused", [True, False])
def test_heads_that_are_cut_are_refused(fused: bool) -> None:
    """A view that counts heads keeps their number and cuts each; the products would sum wrongly."""
    with pytest.raises(InputError, match="heads are cut; a view names the size of a head"):
        _capture(fused=fused, counted=True)


def test_other_tensor_degrees_need_a_plan() -> None:
    """Without a plan nothing is known about how to split a module."""
    with pytest.raises(InputError, match="let the factory return a plan"):
        capture(
            own_llama.FeedForward(), torch.zeros(1, 4096), microbatch=(1,), tensor_parallel=(2,)
        )


def test_a_module_takes_its_plan_as_an_argument() -> None:
    """A module is captured as its factory's, and stays as it is."""
    module = Model()
    workload = capture(
        module, torch.zeros(SAMPLES, ROWS, dtype=torch.int64), microbatch=(SAMPLES,),
        tensor_parallel=(1, 4), plan=PLAN, tokens_per_sample=ROWS,
    )  # fmt: skip
    assert workload.variants == _planned().variants
    assert module.head.weight is module.words.weight
    assert module.head.weight.shape == (WORDS, WIDTH)


def test_llama_agrees_whatever_it_is_captured_from() -> None:
    """Llama in plain PyTorch with a plan has the family's products, and its time within 2 %."""
    shape = own_llama
    family = load_workload(
        f"llama:layers={shape.LAYERS},hidden={shape.HIDDEN},heads={shape.HEADS},"
        f"kv_heads={shape.KV_HEADS},ffn={shape.INNER},sequence={shape.TOKENS},vocab={shape.WORDS}",
        tensor_parallel=(1, 8),
    )
    own = capture(own_llama.llama, tensor_parallel=(1, 8), tokens_per_sample=shape.TOKENS)
    assert own.parameters == family.parameters
    for mine, theirs in zip(own.variants, family.variants, strict=True):
        pairs = zip(mine.nodes, theirs.nodes, strict=True)
        for one, other in ((mine.layers[a], theirs.layers[b]) for (_, a), (_, b) in pairs):
            assert one.parameters == other.parameters
            assert one.forward.flops == other.forward.flops
            assert one.backward.flops == other.backward.flops
            assert collective_bytes(one.backward) == collective_bytes(other.backward)
    accelerator, cluster = load_accelerator("a100-80"), load_cluster("dgx-a100", 8)
    training = Training(global_batch=8, microbatch=1)
    for degrees in ((1, 8, 1), (1, 1, 8)):
        mine_s, family_s = (
            evaluate(workload, accelerator, cluster, training, placement=degrees).time_per_batch_s
            for workload in (own, family)
        )
        assert mine_s == pytest.approx(family_s, rel=0.02)
