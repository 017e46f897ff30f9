"""Laws of models of which not all is trained: frozen parts, and low-rank adapters."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from phaze_opt.codec import to_json
from phaze_opt.errors import InputError
from phaze_opt.workload.cache import CaptureKey, file_name
from phaze_opt.workload.capture.transformer import count_parameters
from phaze_opt.workload.capture.user_module import capture
from phaze_opt.workload.casts import linear_products
from phaze_opt.workload.graph import Layer, OperatorGraph, WorkloadVariant
from phaze_opt.workload.trained import ALL_TARGETS, Trained, matches, trained_parts
from phaze_opt.workload.zoo import load_workload, model_config
from phaze_opt.workload.zoo import tensor_degrees as degrees_of
from tests.workload.blocks import captured_variant

LAYERS, HIDDEN, KV, INNER, TOKENS, WORDS, RANK = 3, 256, 128, 512, 128, 512, 16
LLAMA = (
    f"llama:layers={LAYERS},hidden={HIDDEN},heads=8,kv_heads=4,ffn={INNER},sequence={TOKENS},"
    f"vocab={WORDS}"
)
GPT = "gpt:layers=2,hidden=64,heads=4,sequence=32,vocab=256"
EDGES = {
    "linear_qkv": HIDDEN + HIDDEN + 2 * KV,
    "linear_proj": HIDDEN + HIDDEN,
    "linear_fc1": HIDDEN + 2 * INNER,
    "linear_fc2": INNER + HIDDEN,
}
"""Inputs and outputs of the linear layers of a block, together."""
PARTS = (
    *("embedding", "block.0", "block.*.attention", "block.*.feed_forward.down", "block.*.*_norm"),
    *("block.[12]", "block", "head.vocabulary", "head.norm"),
)

targets = st.sets(st.sampled_from(ALL_TARGETS), min_size=1).map(tuple)
splits = st.sampled_from([(1, False), (2, False), (2, True), (4, True)])


def _variant(model: str, trained: Trained | None, tensor: int, split: bool) -> WorkloadVariant:
    config = model_config(model)
    if trained is not None:
        config = replace(config, trained=trained)
    return captured_variant(config, tensor, split=split, samples=1)


def _of(model: str, tensor: int = 1, split: bool = False, **options: Any) -> WorkloadVariant:
    return _variant(model, trained_parts(**options), tensor, split)


def _trained(layer: Layer) -> int:
    return layer.parameters - (layer.frozen_parameters or 0)


def _gradients(layer: Layer) -> int:
    """Count the elements of the weight gradients that a backward makes."""
    return sum(t.elements for t in layer.backward.tensors if t.kind == "weight_gradient")


def _places(variant: WorkloadVariant) -> list[Layer]:
    return [variant.layers[index] for index in variant.kinds]


@settings(max_examples=6, deadline=None)
@given(st.sets(st.sampled_from(PARTS), min_size=1, max_size=3), splits)
def test_weight_gradients_are_those_of_what_is_trained(
    parts: set[str], split: tuple[int, bool]
) -> None:
    """Layer by layer; what is before all of it has no backward, and keeps nothing for one."""
    variant = _of(LLAMA, *split, frozen=tuple(parts))
    whole = _of(LLAMA, *split)
    is_reached = False
    for own, before in zip(_places(variant), _places(whole), strict=True):
        assert own.parameters == before.parameters
        assert _gradients(own) == _trained(own)
        assert Counter(own.forward.operators) == Counter(before.forward.operators)
        is_reached = is_reached or _trained(own) > 0
        assert own.has_backward == is_reached
        for name in ("none", "selective", "full"):
            kept, kept_before = (getattr(each.stash_bytes, name) for each in (own, before))
            assert kept <= kept_before and (is_reached or kept == 0)
        assert own.backward.flops <= before.backward.flops
    assert sum(map(_trained, _places(variant))) > 0


def _without_weight_gradients(graph: OperatorGraph) -> Counter[object]:
    """Drop weight gradients, and what nothing reads any more, in the plainest way."""
    wanted = {
        i
        for i, tensor in enumerate(graph.tensors)
        if tensor.outlives and tensor.kind != "weight_gradient"
    }
    runs: set[int] = set()
    for index in reversed(range(len(graph.operators))):
        made = {i for i, t in enumerate(graph.tensors) if index in [w for w, _ in t.writers]}
        if made & wanted:
            runs.add(index)
            wanted |= {
                i
                for i, tensor in enumerate(graph.tensors)
                if any(read.operator == index for read in tensor.readers)
            }
    kept = [graph.operators[i] for i in sorted(runs)]
    return Counter((each.gemms, each.vector, each.collective) for each in kept)


@pytest.mark.parametrize("split", [(1, False), (2, False), (2, True)])
def test_a_frozen_block_runs_what_data_gradients_need(split: tuple[int, bool]) -> None:
    """Its backward is that of a trained one without weight gradients and what only they need."""
    frozen, whole = _of(LLAMA, *split, frozen=("block",)), _of(LLAMA, *split)
    own, before = (variant.layers[variant.kinds[1]] for variant in (frozen, whole))
    backward = own.backward.operators
    runs = Counter((each.gemms, each.vector, each.collective) for each in backward)
    assert runs == _without_weight_gradients(before.backward)
    # Linear layers do not keep their inputs; norms and attention do.
    assert own.stash_bytes.none < before.stash_bytes.none


@settings(max_examples=5, deadline=None)
@given(targets, splits, st.sampled_from([4, 16]))
def test_adapters_have_rank_times_inputs_and_outputs(
    chosen: tuple[str, ...], split: tuple[int, bool], rank: int
) -> None:
    """Each device has its share of every factor, and gradients of nothing else."""
    tensor, sequence_parallel = split
    variant = _of(LLAMA, tensor, sequence_parallel, lora_rank=rank, lora_targets=chosen)
    whole = _of(LLAMA, tensor, sequence_parallel)
    expected = rank * sum(EDGES[name] for name in chosen)
    names = [name for name, _ in variant.nodes]
    for name, own, before in zip(names, _places(variant), _places(whole), strict=True):
        adapters = expected if name.startswith("block") else 0
        assert _trained(own) * tensor == adapters
        assert own.frozen_parameters == before.parameters
        assert _gradients(own) == _trained(own)
        rows = TOKENS
        assert own.forward.flops - before.forward.flops == 2 * rows * _trained(own)
    config = replace(model_config(LLAMA), trained=Trained((), rank, chosen))
    more = count_parameters(config) - count_parameters(model_config(LLAMA))
    assert more == LAYERS * expected


@pytest.mark.parametrize("split", [(1, False), (2, True)])
def test_flops_of_adapters_in_closed_form(split: tuple[int, bool]) -> None:
    """Frozen products count twice, those of adapters and attention three times.

    The first block's inputs need no gradient: neither through its queries, keys and values nor
    through the first factor beside them.
    """
    tensor, _ = split
    variant = _of(LLAMA, *split, lora_rank=RANK)
    frozen = LAYERS * (EDGES["linear_qkv"] - HIDDEN) * HIDDEN + LAYERS * HIDDEN**2
    frozen += LAYERS * 3 * HIDDEN * INNER + HIDDEN * WORDS
    adapters = LAYERS * RANK * sum(EDGES.values())
    attention = LAYERS * 2 * 2 * TOKENS * TOKENS * HIDDEN
    idle = 2 * TOKENS * HIDDEN * (EDGES["linear_qkv"] - HIDDEN + RANK)
    expected = 4 * TOKENS * frozen + 6 * TOKENS * adapters + 3 * attention - idle
    assert variant.training_flops * tensor == expected


def test_flops_of_a_model_that_is_trained_are_three_forwards() -> None:
    """The closed form and the counts of the captured backward agree, but for the embedding's."""
    variant = _of(LLAMA)
    counted = sum(layer.training_flops for layer in _places(variant))
    assert variant.training_flops == 3.0 * variant.forward_flops == counted


def test_products_of_adapters_stay_in_16_bits() -> None:
    """A recipe casts the linear layers beside them, and none of theirs."""
    block = _of(LLAMA, lora_rank=RANK).layers[2]
    plain = _of(LLAMA).layers[1]
    for graph, before in ((block.forward, plain.forward), (block.backward, plain.backward)):
        cast = [graph.operators[index] for index in linear_products(graph)]
        assert cast and not any(each.id.startswith("adapter") for each in cast)
        assert len(cast) <= len(linear_products(before))


def test_communication_of_adapters_by_hand() -> None:
    """Two all-gathers of rank, two sums of it and two gathers of results forward, per block."""

    def sent(graph: OperatorGraph) -> Counter[tuple[str, int]]:
        found = [each.collective for each in graph.operators if each.collective]
        return Counter((each.kind, each.size_bytes) for each in found)

    block, plain = _of(LLAMA, 2, lora_rank=RANK).layers[2], _of(LLAMA, 2).layers[1]
    short, wide = 2 * TOKENS * RANK, 2 * TOKENS * HIDDEN
    forward = sent(block.forward) - sent(plain.forward)
    assert forward == {("all_gather", short): 2, ("all_reduce", short): 2, ("all_gather", wide): 2}
    assert sent(block.backward) - sent(plain.backward) == {("all_reduce", short): 4}


def test_nothing_frozen_is_captured_under_the_same_name() -> None:
    """A configuration that says nothing of it has the key, and the file, that it had before."""
    assert trained_parts() is None
    key = CaptureKey(model_config("llama3-8b"), 1, 1, False)
    assert b"trained" not in to_json(key)
    own = CaptureKey(replace(key.config, trained=Trained(("embedding",))), 1, 1, False)
    assert b"trained" in to_json(own) and file_name(own) != file_name(key)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(PARTS)), targets)
def test_one_record_for_every_way_to_say_the_same(
    parts: list[str], chosen: tuple[str, ...]
) -> None:
    """Order and repetition say nothing; no targets are all of them."""
    for order in itertools.islice(itertools.permutations(parts), 4):
        assert trained_parts(order) == trained_parts(parts)
    assert trained_parts((), 8, chosen) == trained_parts((), 8, tuple(reversed(chosen)))
    assert trained_parts((), 8) == trained_parts((), 8, ALL_TARGETS)


@pytest.mark.parametrize(
    ("pattern", "name", "is_match"),
    [
        ("block", "block.3.attention.weight", True),
        ("block.*", "block.3.attention.weight", True),
        ("block.*.attention", "block.3.attention.weight", True),
        ("block.*.weight", "block.3.attention.weight", False),
        ("embed*", "embedding.words", True),
        ("embed", "embedding.words", False),
        ("block.3.attention.weight.more", "block.3.attention.weight", False),
        ("block.[0-2]", "block.3.attention.weight", False),
    ],
)
def test_patterns(pattern: str, name: str, is_match: bool) -> None:
    """A star stands for letters between two dots, and a module for all that it holds."""
    assert matches(pattern, name) == is_match


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (LLAMA, {"frozen": ("embedding", "block", "head")}, "leaves nothing of the model to train"),
        (LLAMA, {"frozen": ("layers.*",)}, r"no parameter or module has such a name; .*block\.\*"),
        (LLAMA, {"frozen": ("block..attention",)}, "must be the name of a parameter"),
        (LLAMA, {"lora_rank": -1}, "lora_rank is -1"),
        (LLAMA, {"lora_rank": 8, "lora_targets": ("linear_q",)}, "lora_targets"),
        (LLAMA, {"lora_targets": ("linear_qkv",)}, "give lora_rank too"),
        (LLAMA, {"frozen": "embedding"}, "frozen is 'embedding', but it must be a list"),
        (LLAMA, {"lora_rank": 3, "tensor_parallel": (2,)}, "rank 3"),
        (GPT, {"frozen": ("embedding.words",)}, "is the same weight"),
        ("mixtral-8x7b", {"lora_rank": 8}, "experts"),
        ("hf", {"frozen": ("encoder",)}, "an encoder and a decoder"),
    ],
)
def test_refusals_are_one_sentence(model: str, options: dict[str, Any], words: str) -> None:
    """Each says what is given and what is allowed."""
    with pytest.raises(InputError, match=words) as refused:
        if model == "hf":
            config = model_config(GPT)
            both: dict[str, Any] = {"encoder_layers": 2, "positions": "relative"}
            replace(config, **both, relative_buckets=4, trained=Trained(**options))
        else:
            load_workload(model, **options)
    assert str(refused.value).endswith(".") and "\n" not in str(refused.value)


def test_tied_weights_are_frozen_together() -> None:
    """The embedding and the head hold one weight, which both stages have, and nobody steps."""
    variant = _of(GPT, frozen=("embedding.words", "head.vocabulary"))
    first, *_, last = _places(variant)
    assert first.frozen_tied_parameters == last.frozen_tied_parameters == first.tied_parameters
    assert first.frozen_parameters == 256 * 64 and _trained(first) == 32 * 64


def test_the_ranks_of_adapters_limit_tensor_degrees() -> None:
    """A group shares the rank out."""
    assert degrees_of(LLAMA, trained_parts((), 2)) == (1, 2)
    assert degrees_of(LLAMA) == (1, 2, 4)


class _Adapted(nn.Module):
    """A user's own adapter beside a linear layer that needs no gradient."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs, bias=False)
        self.base.weight.requires_grad_(False)
        self.first = nn.Linear(inputs, 4, bias=False)
        self.second = nn.Linear(4, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum."""
        result: Tensor = self.base(x) + self.second(self.first(x))
        return result


class _Own(nn.Module):
    """A chain of a user's layers with a loss."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Return the loss."""
        for layer in self.layers:
            x = torch.relu(layer(x))
        result: Tensor = self.head(x).float().pow(2).mean()
        return result


def _own(layers: Sequence[nn.Module], frozen: Sequence[str] = ()) -> WorkloadVariant:
    module, inputs = _Own(layers), torch.empty(4, 32)
    return capture(module, inputs, microbatch=(4,), frozen=frozen).variants[0]


def test_a_users_own_module_says_itself_what_is_trained() -> None:
    """By ``requires_grad``: an adapter trains, the layer beside it does not."""
    variant = _own([_Adapted(32, 32) for _ in range(3)])
    layers = [layer for layer in _places(variant) if layer.frozen_parameters]
    assert [layer.frozen_parameters for layer in layers] == [32 * 32] * 3
    assert [_gradients(layer) for layer in layers] == [2 * 4 * 32] * 3
    # Data gradients go through frozen layers, but not to the inputs.
    products = [sum(bool(each.gemms) for each in layer.backward.operators) for layer in layers]
    assert products == [3, 5, 5]


def test_patterns_freeze_a_users_own_module_as_requires_grad_does() -> None:
    """The same capture; layers before what is trained run forward alone."""
    stated = [nn.Linear(32, 32) for _ in range(3)]
    for layer in stated[:2]:
        layer.requires_grad_(False)
    by_flag = _own(stated)
    by_pattern = _own([nn.Linear(32, 32) for _ in range(3)], ["layers.[01]"])
    assert by_flag == by_pattern
    frozen = [layer for layer in _places(by_pattern) if layer.frozen_parameters]
    assert len(frozen) == 2 and not any(layer.has_backward for layer in frozen)
    assert all(layer.stash_bytes.full == 0 for layer in frozen)
    with pytest.raises(InputError, match=r"layers\.\*\.weight"):
        _own([nn.Linear(32, 32)], ["blocks"])


def test_a_deep_module_tells_frozen_layers_from_others() -> None:
    """Most of its layers are never traced; each has the parameters and the passes of its own."""
    count, frozen = 24, 20
    deep = _own([nn.Linear(32, 32) for _ in range(count)], [f"layers.{i}" for i in range(frozen)])
    layers = [layer for layer in _places(deep) if layer.parameters == 33 * 32]
    assert [_trained(layer) for layer in layers] == [0] * frozen + [33 * 32] * (count - frozen)
    assert [_gradients(layer) for layer in layers] == list(map(_trained, layers))
    assert [layer.has_backward for layer in layers] == [bool(_trained(each)) for each in layers]
