"""What of a model is trained: all of it, all but some frozen parts, or low-rank adapters alone.

A frozen parameter has no weight gradient, so nothing of it is synchronised, accumulated or stepped;
only its weight is held. Data gradients go through frozen layers to those before them that are
trained; below the first of these nothing runs backward, and nothing is kept for it.

Low-rank adapters (E. Hu et al. 2021, arXiv 2106.09685) leave the model frozen and train, beside a
linear layer ``y = x·W``, two factors ``A`` (inputs × rank) and ``B`` (rank × outputs):

    y = x·W + scale · (x·A)·B,  rank · (inputs + outputs) parameters

in bf16, whatever the model multiplies in. Over a tensor-parallel group of t devices they are split
as Megatron-Bridge splits them (``ParallelLinearAdapter`` in ``src/megatron/bridge/peft/utils.py``):

* beside a column-parallel layer A by its columns (the rank) and B by its columns (the outputs):
  what A makes, tokens × rank, is gathered before B, and its gradient is summed over the group;
* beside a row-parallel layer A by its rows (the inputs) and B by its columns: what A makes is
  summed over the group, and B's columns, tokens × outputs, are gathered; under sequence parallelism
  every device then takes its share of the tokens.

So each device has a t-th of every factor. The input of a column-parallel layer and its gradient
communicate once for the layer and its adapter together; Megatron-Bridge does so for the input, and
without sequence parallelism sums the adapter's gradient apart. There is no dropout, its default.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from phaze_opt.checked import shown
from phaze_opt.errors import InputError, unknown_name

LORA_TARGETS: Mapping[str, str] = {
    "linear_qkv": "attention.query_key_value",
    "linear_proj": "attention.projection",
    "linear_fc1": "feed_forward.up",
    "linear_fc2": "feed_forward.down",
}
"""Linear layers of a block that adapters may stand beside, by their names in Megatron-Core."""

ALL_TARGETS = tuple(LORA_TARGETS)
_LARGEST_RANK = 2**16
_ADAPTER = "adapter"
"""Name of the module of an adapter in the linear layer that it stands beside."""
_NUMBER = re.compile(r"(?<=\.)[0-9]+(?=\.)")


@dataclass(frozen=True)
class Trained:
    """What is trained of a model that is not trained as a whole.

    Attributes
    ----------
    frozen
        Patterns of parameters or modules that are not trained: words between dots, with ``*`` for
        any letters of a word, as in a plan of
        `phaze_opt.workload.capture.parallel_plan`; a module's parameters are all that it holds.
    lora_rank
        Rank of the adapters; 0 for none. With adapters nothing else is trained.
    lora_targets
        Which linear layers of every block have one, of `LORA_TARGETS`.
    """

    frozen: tuple[str, ...] = ()
    lora_rank: int = 0
    lora_targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for pattern in self.frozen:
            if not all(pattern.split(".")):
                raise InputError(
                    f"frozen is {shown(pattern)}, but it must be the name of a parameter or module "
                    'or a pattern of them, for example "embedding" or "block.*.feed_forward".'
                )
        if not 0 <= self.lora_rank <= _LARGEST_RANK:
            raise InputError(
                f"lora_rank is {shown(self.lora_rank)}, but it must be between 1 and "
                f"{_LARGEST_RANK}, or 0 for no adapters."
            )
        for target in self.lora_targets:
            if target not in LORA_TARGETS:
                raise unknown_name("layer in lora_targets:", target, LORA_TARGETS)
        if self.lora_targets and not self.lora_rank:
            raise InputError(
                f"lora_targets is {', '.join(self.lora_targets)}, but there are no adapters; give "
                "lora_rank too."
            )

    def rank_of(self, target: str) -> int:
        """Return the rank of the adapter beside a linear layer; 0 where there is none."""
        return self.lora_rank if target in self.lora_targets else 0

    def freezes(self, name: str) -> bool:
        """Say whether a parameter is not trained, by its full name."""
        if self.lora_rank and _ADAPTER not in name.split("."):
            return True
        return any(matches(pattern, name) for pattern in self.frozen)

    @property
    def words(self) -> str:
        """What is trained, as a part of the name of a model."""
        said = [f"{', '.join(self.frozen)} frozen"] if self.frozen else []
        if self.lora_rank:
            few = self.lora_targets if self.lora_targets != ALL_TARGETS else ()
            said.append(f"LoRA of rank {self.lora_rank}{' of ' * bool(few)}{', '.join(few)}")
        return ", ".join(said)


def trained_parts(
    frozen: Sequence[str] = (), lora_rank: int = 0, lora_targets: Sequence[str] = ()
) -> Trained | None:
    """Return what is trained where it is not all: one record for every way to say the same.

    Parameters
    ----------
    frozen, lora_rank, lora_targets
        See `Trained`, in any order; no targets stand for all of them.

    Raises
    ------
    InputError
        If a pattern, a rank or a target is none.
    """
    targets: Iterable[str] = lora_targets or (ALL_TARGETS if lora_rank else ())
    known = [name for name in ALL_TARGETS if name in targets]
    unknown = [name for name in targets if name not in LORA_TARGETS]
    trained = Trained(tuple(sorted(set(frozen))), lora_rank, (*known, *unknown))
    return trained if trained.frozen or trained.lora_rank else None


def matches(pattern: str, name: str) -> bool:
    """Say whether a pattern is of a parameter, by its full name, or of a module that holds it."""
    words, of_pattern = name.split("."), pattern.split(".")
    pairs = zip(of_pattern, words, strict=False)
    return len(of_pattern) <= len(words) and all(fnmatchcase(word, each) for each, word in pairs)


class LayerRole(NamedTuple):
    """What of a layer of a chain is trained.

    Attributes
    ----------
    kind
        Layers of one kind are equal but for their roles.
    frozen
        Its parameters that are not trained, by their names in the layer.
    is_first
        Whether nothing before it is trained, so that its input needs no gradient.
    is_trained
        Whether any of its parameters is.
    """

    kind: str
    frozen: frozenset[str]
    is_first: bool
    is_trained: bool


def roles_of(
    trained: Trained, layers: Sequence[tuple[str, str, Sequence[str]]]
) -> list[tuple[str, LayerRole]]:
    """Return the name and the role of every layer of a chain.

    Parameters
    ----------
    trained
        What is trained.
    layers
        Name and kind of every layer, and the names of its parameters in it.

    Raises
    ------
    InputError
        If a pattern matches nothing, or nothing is trained.
    """
    _refuse_idle_patterns(trained, layers)
    roles: list[tuple[str, LayerRole]] = []
    is_first = True
    for name, kind, own in layers:
        frozen = frozenset(each for each in own if trained.freezes(f"{name}.{each}"))
        is_trained = len(frozen) < len(own)
        roles.append((name, LayerRole(kind, frozen, is_first, is_trained)))
        is_first = is_first and not is_trained
    if is_first:
        raise InputError(
            f"frozen is {', '.join(trained.frozen)}, which leaves nothing of the model to train; "
            "leave something out."
        )
    return roles


def _refuse_idle_patterns(
    trained: Trained, layers: Sequence[tuple[str, str, Sequence[str]]]
) -> None:
    """Refuse a pattern that is of no parameter."""
    names = [f"{name}.{each}" for name, _, own in layers for each in own]
    for pattern in trained.frozen:
        if not any(matches(pattern, name) for name in names):
            raise no_such_part(pattern, names)


def no_such_part(pattern: str, names: Sequence[str]) -> InputError:
    """Return the error of a pattern that is of none of some parameters."""
    known = list(dict.fromkeys(_NUMBER.sub("*", name) for name in names))
    return InputError(
        f"frozen is {shown(pattern)}, but no parameter or module has such a name; there are "
        f"{', '.join(known)}."
    )


def role_names(distinct: Sequence[LayerRole], roles: Sequence[LayerRole]) -> list[str]:
    """Name distinct layers: the most frequent of a kind by the kind, others by what they are.

    Parameters
    ----------
    distinct
        Roles to name.
    roles
        Of all layers.
    """
    most = {role.kind: role for role in sorted(distinct, key=roles.count)}
    names: list[str] = []
    for role in distinct:
        name = role.kind
        if role != most[role.kind]:
            prefix = "first" if role.is_trained else "frozen"
            name = f"{prefix}_{name}" if role.is_first else f"other_{name}"
        same = sum(each == name or each.startswith(f"{name}_") for each in names)
        names.append(f"{name}_{same + 1}" if same else name)
    return names
