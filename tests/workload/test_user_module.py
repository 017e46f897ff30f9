"""A user's own modules: layers found, branches kept, nothing lost."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.errors import InputError
from phaze_opt.workload.capture.user_module import capture
from phaze_opt.workload.graph import Layer, OperatorGraph, Workload
from phaze_opt.workload.workload_file import read_workload, write_workload
from phaze_opt.workload.zoo import load_workload
from tests.workload.graphs import outliving_bytes
from tests.workload.kept import kept
from tests.workload.user_modules import (
    ROWS,
    WIDTH,
    WORDS,
    eager_blocks,
    language_model,
    towers,
)

HERE = "tests.workload.user_modules"


@kept
def _capture(name: str, *microbatch: int) -> Workload:
    return capture(f"{HERE}:{name}", microbatch=microbatch or (2,), tokens_per_sample=ROWS)


def _names(workload: Workload) -> list[str]:
    return [name for name, _ in workload.variants[0].nodes]


def _layers(workload: Workload) -> dict[str, Layer]:
    variant = workload.variants[0]
    return {name: variant.layers[index] for name, index in variant.nodes}


def _kinds(graph: OperatorGraph) -> Counter[str]:
    return Counter(work.kind for op in graph.operators for work in op.vector)


def test_language_model_has_its_layers() -> None:
    """Members of the ModuleList are one shared layer; before and after are the first and last."""
    workload = _capture("language_model")
    assert _names(workload) == ["first", "blocks.0", "blocks.1", "last"]
    assert workload.variants[0].counts == (1, 2, 1)
    stream = 2 * 2 * ROWS * WIDTH
    assert workload.variants[0].edges == tuple((i, i + 1, stream) for i in range(3))


def test_language_model_agrees_with_the_family() -> None:
    """A GPT block written by hand has the family's products, parameters and stash."""
    mine = _layers(_capture("language_model"))
    model = f"gpt:layers=2,hidden={WIDTH},heads=4,sequence={ROWS},vocab={WORDS}"
    family = load_workload(f"{model},attention=flash,dropout=0", microbatch=(2,))
    block = family.variants[0].layers[1]
    assert mine["blocks.1"].parameters == block.parameters
    assert mine["blocks.1"].forward.flops == block.forward.flops
    assert mine["blocks.1"].backward.flops == block.backward.flops
    # On the CPU that a user's module seems to be on, the two norms keep their two statistics per
    # token in bf16 instead of fp32.
    difference = 2 * ROWS * 2 * 2 * (4 - 2)
    assert mine["blocks.1"].stash_bytes.none == block.stash_bytes.none - difference
    assert mine["last"].forward.flops == family.variants[0].layers[2].forward.flops


def test_stash_is_what_autograd_saves() -> None:
    """The stash equals, to the byte, the distinct memory that a real forward pass saves."""
    layers = _layers(_capture("eager_blocks"))
    model, inputs = eager_blocks(2)
    model = model.to(torch.bfloat16)
    weights = {one.untyped_storage().data_ptr() for one in model.parameters()}
    saved: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in weights:
            saved[memory.data_ptr()] = memory
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(inputs.to(torch.bfloat16))
    really = sum(memory.nbytes() for memory in saved.values())
    assert sum(layer.stash_bytes.none for layer in layers.values()) == really


def test_tied_weights_are_counted_once() -> None:
    """The head that uses the embedding's weight holds it, but the model has it once."""
    workload = _capture("language_model")
    layers = _layers(workload)
    assert layers["last"].tied_parameters == layers["first"].tied_parameters == WORDS * WIDTH
    held = sum(layer.parameters for layer in layers.values())
    assert workload.parameters == held - WORDS * WIDTH


def test_branches_are_kept() -> None:
    """Two towers and a skip across a layer are a graph, not a chain."""
    workload = _capture("towers")
    assert _names(workload) == ["left.0", "left.1", "left.2", "right.0", "right.1", "last"]
    pairs = [(source, destination) for source, destination, _ in workload.variants[0].edges]
    assert pairs == [(0, 1), (0, 5), (1, 2), (2, 5), (3, 4), (4, 5)]
    layers = _layers(workload)
    assert layers["left.1"] == layers["left.2"]
    assert _kinds(layers["left.0"].forward) == {"relu": 1}  # goes with its layer
    assert _kinds(layers["left.0"].backward)["add"] == 1  # gradients of both readers


def test_a_module_without_a_list_is_split_at_its_children() -> None:
    """A plain Sequential has a layer per child that does work."""
    workload = _capture("convolutional")
    assert _names(workload) == ["0", "1", "2", "4"]  # flattening is a view
    assert _layers(workload)["0"].forward.flops == 2 * 2 * 36 * 8 * 27


def test_a_layer_used_twice_is_two_nodes_with_one_weight() -> None:
    """A shared layer runs twice and is held once."""
    workload = _capture("shared")
    assert _names(workload) == ["twice", "twice#2", "once"]
    layers = _layers(workload)
    assert layers["twice#2"].tied_parameters == layers["twice"].tied_parameters
    assert layers["twice"].tied_parameters == layers["twice"].parameters
    assert workload.parameters == 2 * (WIDTH * WIDTH + WIDTH)


@pytest.mark.parametrize("name", ["language_model", "towers", "convolutional", "shared"])
def test_nothing_is_lost_between_layers(name: str) -> None:
    """Backward products are twice the forward's but for the data gradients of the inputs."""
    layers = _layers(_capture(name))
    for title, layer in layers.items():
        attention = 1.25 if "blocks" in title else 1
        least = layer.forward.flops
        assert least <= layer.backward.flops <= 2 * attention * layer.forward.flops
        for graph in (layer.forward, layer.backward):
            used = {source for source, _, _ in graph.edges}
            for index, outliving in enumerate(outliving_bytes(graph)):
                assert outliving or index in used


def test_pytorch_attention_is_one_kernel() -> None:
    """PyTorch's attention is traced as fused, its mask is read, and a plain attribute is fine."""
    attention = _layers(_capture("masked"))["attention"]
    (fused,) = (i for i, op in enumerate(attention.forward.operators) if len(op.gemms) == 2)
    context = 2 * 2 * ROWS * WIDTH
    assert attention.forward.read_bytes[fused] == 3 * context + 2 * ROWS * ROWS
    assert attention.forward.flops == 8 * 2 * ROWS * WIDTH**2 + 4 * 2 * ROWS**2 * WIDTH


def test_microbatches_scale() -> None:
    """Twice the samples are twice the products and the activations, with the same weights."""
    workload = _capture("language_model", 1, 2)
    one, two = (variant.layers[1] for variant in workload.variants)
    assert two.forward.flops == 2 * one.forward.flops
    assert two.stash_bytes.none == 2 * one.stash_bytes.none
    assert two.parameters == one.parameters
    assert [variant.microbatch for variant in workload.variants] == [1, 2]


def test_captured_module_is_a_model_file(tmp_path: Path) -> None:
    """What was captured can be written, read, and used as a model by its path."""
    workload = _capture("towers", 1, 2)
    path = tmp_path / "towers.json"
    write_workload(workload, path)
    assert read_workload(path) == workload
    assert load_workload(str(path), microbatch=(2,)).variants == workload.variants[1:]


def test_the_working_directory_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A factory in a file beside the user is found without installing anything."""
    (tmp_path / "my_own_model.py").write_text(
        "import torch\n"
        "def make(microbatch):\n"
        "    return torch.nn.Linear(3, 4), torch.zeros(microbatch, 3)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert capture("my_own_model:make").parameters == 16


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("nothing", "must be package.module:factory"),  # no colon
        ("no_such_package.module:make", "cannot be imported"),
        (f"{HERE}:absent", "has no function 'absent'"),
        (f"{HERE}:NOT_A_FUNCTION", "has no function"),
        (f"{HERE}:failing", "no weights here"),  # its own error
        (f"{HERE}:only_module", "must return a module and its inputs"),
        (f"{HERE}:strange_inputs", "returned a str"),
        (f"{HERE}:deciding", "cannot be traced"),  # depends on data
        (f"{HERE}:frozen", "no result that depends on a parameter"),
        (f"{HERE}:ending", "(`sys.exit(0)`): it ends the program (SystemExit: 0); raise an error"),
        (f"{HERE}:same_for_all", "called with the microbatch 1, but returned inputs of shape 4 × "),
        (f"{HERE}:planned_in_vain", "Did you mean 'blocks.*.up'? Allowed: blocks, blocks.*, "),
        (f"{HERE}:planning_nothing", "The plan names no layer; leave it out, or name"),
    ],
)
def test_bad_factories_are_refused(factory: str, words: str) -> None:
    """What cannot be captured is refused in one sentence."""
    with pytest.raises(InputError) as caught:
        capture(factory)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_ctrl_c_in_a_factory_is_ctrl_c() -> None:
    """Whoever interrupts a factory is not told that the factory failed."""

    def interrupted(samples: int) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        capture(interrupted)


@settings(derandomize=True, deadline=None, max_examples=8)
@given(samples=st.integers(1, 4), pairs=st.integers(1, 3), turned=st.booleans())
def test_inputs_follow_the_microbatch(samples: int, pairs: int, turned: bool) -> None:
    """Samples may be pairs, or stand behind the tokens; inputs of a fixed size are refused."""

    def minding(microbatch: int) -> Any:
        batch = pairs * microbatch
        shape = (ROWS, batch, WIDTH) if turned else (batch, ROWS, WIDTH)
        return torch.nn.Linear(WIDTH, 2), torch.zeros(shape)

    def fixed(microbatch: int) -> Any:
        return minding(samples + 1)

    assert capture(minding, microbatch=(samples,)).variants[0].microbatch == samples
    with pytest.raises(InputError, match="give their first dimension the size of the microbatch"):
        capture(fixed, microbatch=(samples,))
    # Made for one microbatch only, which is all that is asked for.
    assert capture(lambda n: minding({samples: n}[n]), microbatch=(samples,)).variants
    module, inputs = minding(samples)
    assert capture(module, inputs, microbatch=(samples,)).variants
    with pytest.raises(InputError, match="give the microbatch that they hold"):
        capture(module, inputs, microbatch=(5 * ROWS * samples,))


def test_a_function_is_a_factory_as_its_name_is() -> None:
    """A factory in Python gives what its name gives, at one microbatch or several."""
    by_name = _capture("towers", 1, 2)
    assert capture(towers, microbatch=[2, 1], tokens_per_sample=ROWS) == by_name
    single = capture(towers, microbatch=(2,), tokens_per_sample=ROWS)
    assert single.variants == by_name.variants[1:]


def test_a_module_is_captured_and_stays_as_it_is() -> None:
    """A module with weights gives what its factory gives; nothing of it is changed or read."""
    module, inputs = language_model(2)
    module.eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    workload = capture(module, inputs, microbatch=(2,), tokens_per_sample=ROWS)
    assert workload.variants == _capture("language_model").variants
    assert workload.parameters == sum(one.numel() for one in module.parameters())
    assert workload.model == "LanguageModel"
    assert not module.training
    after = module.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_a_module_comes_with_its_inputs() -> None:
    """A module without inputs or their one microbatch, and a factory with inputs, are refused."""
    module, inputs = language_model(2)
    for arguments, microbatch in (((module,), (2,)), ((module, inputs), None)):
        with pytest.raises(InputError, match="with its inputs and their one microbatch"):
            capture(*arguments, microbatch=microbatch)
    with pytest.raises(InputError, match="several microbatches need a factory"):
        capture(module, inputs, microbatch=(1, 2))
    with pytest.raises(InputError, match="leave out inputs"):
        capture(language_model, inputs)


def test_microbatch_must_be_positive() -> None:
    """No microbatch and an empty one are refused."""
    for microbatch in ((), (0,)):
        with pytest.raises(InputError, match="at least 1"):
            capture(f"{HERE}:towers", microbatch=microbatch)
