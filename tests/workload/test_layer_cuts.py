"""Which modules of a model are its layers."""

from torch import nn

from phaze_opt.workload.capture.layer_cuts import find_layers
from tests.workload.user_modules import Block, LanguageModel, Towers


def _named(**children: nn.Module) -> nn.Module:
    """Return a module with the given children."""
    module = nn.Module()
    for name, child in children.items():
        module.add_module(name, child)
    return module


def test_members_of_the_outermost_list_are_layers() -> None:
    """A list inside a block does not split it."""
    assert list(find_layers(LanguageModel(2))) == ["blocks.0", "blocks.1"]


def test_all_outermost_lists_count() -> None:
    """Two towers have the layers of both."""
    assert list(find_layers(Towers())) == ["left.0", "left.1", "left.2", "right.0", "right.1"]


def test_lists_are_found_at_any_depth() -> None:
    """Wrappers and dictionaries around the list do not hide it."""
    inner = nn.ModuleDict({"words": nn.Embedding(4, 4), "h": nn.ModuleList([Block()])})
    assert list(find_layers(_named(model=_named(transformer=inner)))) == ["model.transformer.h.0"]


def test_equal_blocks_in_a_sequential_are_layers() -> None:
    """A Sequential of the user's own equal blocks is as good as a list."""
    model = _named(stem=nn.Linear(2, 2), body=nn.Sequential(Block(), Block()))
    assert list(find_layers(model)) == ["body.0", "body.1"]


def test_a_sequential_of_building_blocks_is_not_repeated() -> None:
    """Two linear layers in a row are no sign of repetition."""
    model = _named(first=nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), second=nn.Linear(2, 2))
    assert list(find_layers(model)) == ["first", "second"]


def test_lists_without_parameters_are_no_layers() -> None:
    """A list of activations or a mixed one does not make layers."""
    model = _named(acts=nn.ModuleList([nn.ReLU(), nn.GELU()]), body=nn.Linear(2, 2))
    assert list(find_layers(model)) == ["acts", "body"]


def test_single_wrappers_are_looked_into() -> None:
    """A model inside a wrapper is split as the model would be."""
    model = _named(wrapped=nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    assert list(find_layers(model)) == ["wrapped.0", "wrapped.1"]
    assert list(find_layers(_named(only=nn.Linear(2, 2)))) == ["only"]


def test_dictionaries_are_replaced_by_their_members() -> None:
    """A dictionary is never called; its members are."""
    model = _named(parts=nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)}))
    assert list(find_layers(model)) == ["parts.a", "parts.b"]
