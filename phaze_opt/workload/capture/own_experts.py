"""Experts of a user's own module, counted as those of the known families are.

Which experts a token goes to is a value: a loop over them that selects rows (``torch.where``,
``nonzero``) has no static graph. A plan says which module is experts (style ``experts``), or the
module shows it (`phaze_opt.workload.capture.found_experts`). What runs them is replaced by the
operators of `phaze_opt.workload.capture.expert_kernels`, evenly routed, with as many parameters.
Two forms are known:

* a ``ModuleList`` of equal experts: the module that holds it, with their router, is replaced;
* any other module with stacked weights, whose first dimension counts the experts. It is called with
  tokens, the experts chosen for each and a weight for each of these, as Hugging Face's are; or with
  tokens alone, and has a router.

An expert is two matrices, or three with a gate. Only the number of elements is read of a weight:
either of its dimensions may be that of the tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from phaze_opt.errors import InputError
from phaze_opt.workload.capture import expert_kernels
from phaze_opt.workload.capture.tensor_parallel import TensorGroup, copy_to_group, sum_over_group
from phaze_opt.workload.experts import TILE_ROWS

EXPERTS_STYLE = re.compile(r"experts(?::([1-9][0-9]{0,5}))?")
"""Style of a module of experts, with those of a token where no attribute says how many."""

_TOP_K = ("top_k", "topk", "num_experts_per_tok", "experts_per_token", "num_experts_per_token")
"""Attributes that say how many experts work on a token."""


class _Network(NamedTuple):
    """What the experts of a module are, each by itself.

    Attributes
    ----------
    experts
        How many they are.
    up, down
        Elements of the matrices before the activation, with the gate's, and of that behind it.
    up_bias, down_bias
        Elements of their biases; 0 where there are none.
    activation
        Of the names of `phaze_opt.workload.config.TransformerConfig`.
    """

    experts: int
    up: int
    down: int
    up_bias: int
    down_bias: int
    activation: str


class OwnExperts(nn.Module):
    """Routed experts in place of the user's."""

    def __init__(
        self, name: str, network: _Network, routers: Mapping[str, nn.Linear], top_k: int
    ) -> None:
        """Hold as many parameters as the experts and their router.

        Parameters
        ----------
        name
            Of the module, for errors.
        network
            The experts.
        routers
            At most one, by its name in the module.
        top_k
            Experts of a token; 0 where calls say it.
        """
        super().__init__()
        self.name, self.network, self.top_k = name, network, top_k
        self.group, self._router = TensorGroup(), next(iter(routers), "")
        for key, router in routers.items():
            self.add_module(key, router)
        self.up, self.down = self._weight(network.up), self._weight(network.down)
        self.up_bias = self._weight(network.up_bias) if network.up_bias else None
        self.down_bias = self._weight(network.down_bias) if network.down_bias else None

    def _weight(self, elements: int) -> nn.Parameter:
        """Return so many elements of every expert."""
        return nn.Parameter(torch.empty((self.network.experts, elements), device="meta"))

    @property
    def routed(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The weights of the experts, which are not those of the router, by name."""
        return self.named_parameters(recurse=False)

    @property
    def has_router(self) -> bool:
        """Whether what chooses experts is replaced too."""
        return bool(self._router)

    @property
    def routes(self) -> bool:
        """Whether it knows the experts of tokens alone."""
        return bool(self._router and self.top_k)

    @property
    def idle_parameters(self) -> int:
        """Those that do not work on a token, once the module has run."""
        held = sum(weight.numel() for _, weight in self.routed)
        return held * (self.network.experts - self.top_k) // self.network.experts

    def split(self, group: TensorGroup) -> None:
        """Keep one device's share of the inner width of every expert.

        Raises
        ------
        InputError
            If the devices do not divide it.
        """
        devices, network = group.tensor_degree, self.network
        if any(size % devices for size in (network.up, network.down, network.up_bias)):
            raise InputError(
                f"The plan splits the experts of {self.name} over {devices} devices, which do not "
                "divide their width; choose another tensor degree."
            )
        self.group = group
        self.up = self._weight(network.up // devices)
        self.down = self._weight(network.down // devices)
        if network.up_bias:
            self.up_bias = self._weight(network.up_bias // devices)

    def forward(self, *given: Any, **named: Any) -> Tensor:
        """Return the sum of what the chosen experts make of every token."""
        tensors = [x for x in (*given, *named.values()) if isinstance(x, Tensor)]
        tokens, chosen, weights = self._routed([x for x in tensors if x.dim() > 1])
        up, down = self._matrices(tokens.shape[-1])
        flat = tokens.reshape(-1, tokens.shape[-1])
        if self.group.tensor_degree > 1:
            flat, weights = copy_to_group(flat), copy_to_group(weights)
        count = chosen.numel()
        rows = expert_kernels.permute_rows(flat, chosen, count)
        inner = expert_kernels.grouped_product(rows, up, self.up_bias, TILE_ROWS, 1, count)
        inner = expert_kernels.expert_activation(inner, weights, self.network.activation)
        rows = expert_kernels.grouped_product(inner, down, self.down_bias, TILE_ROWS, 1, count)
        result = sum_over_group(expert_kernels.combine_rows(rows, chosen, count), self.group)
        return result.view(tokens.shape)

    def _matrices(self, hidden: int) -> tuple[Tensor, Tensor]:
        """Return the weights with the columns of the tokens, ``(experts, outputs, inputs)``."""
        network, devices = self.network, self.group.tensor_degree
        inner, rest = divmod(network.down, hidden * devices)
        biases = network.up_bias, network.down_bias
        expected = network.up // hidden, hidden
        if rest or any(
            own not in (0, wanted) for own, wanted in zip(biases, expected, strict=True)
        ):
            raise InputError(
                f"{self.name} is planned as experts, but its weights do not fit tokens of {hidden} "
                f"elements{f' on {devices} devices' if devices > 1 else ''}."
            )
        outputs = inner * (network.up // network.down)
        return self.up.view(-1, outputs, hidden), self.down.view(-1, hidden, inner)

    def _routed(self, given: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens, the experts of each, ``(tokens, top_k)``, and their weights."""
        chosen = next((x for x in given if not x.is_floating_point()), None)
        numbers = [x for x in given if x.is_floating_point()]
        if not numbers:
            raise InputError(f"{self.name} is planned as experts, but is not called with tokens.")
        if chosen is None:
            return numbers[0], *self._route(numbers[0])
        top_k = chosen.shape[-1]
        weights = next((x for x in numbers if x.numel() == chosen.numel()), None)
        tokens = next((x for x in numbers if x is not weights), None)
        if weights is None or tokens is None:
            raise InputError(
                f"{self.name} is called with the experts of every token, but not with the tokens "
                "and one weight for each of the experts; call it with these three."
            )
        self.top_k = top_k
        return tokens, chosen.reshape(-1, top_k).to(torch.int32), weights.reshape(-1, top_k)

    def _route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return experts and weights of every token by the own router."""
        if not self.routes:
            missing = "how many experts a token has" if self._router else "its router"
            raise InputError(
                f"{self.name} is planned as experts and called with tokens alone, but {missing} is "
                f"not known: the router is an nn.Linear with {self.network.experts} outputs, and "
                'an attribute top_k, or the style "experts:2" in the plan, says how many.'
            )
        logits = self.get_submodule(self._router)(tokens)
        weights, chosen = expert_kernels.route(logits, self.top_k, "softmax")
        return chosen.flatten(0, -2), weights.flatten(0, -2)


def replace_experts(module: nn.Module, name: str, style: str) -> None:
    """Replace what runs the experts that a plan names.

    Parameters
    ----------
    module
        Of the user, on the meta device; changed in place.
    name, style
        Of a part of it, and what the plan says of it.

    Raises
    ------
    InputError
        If it is neither a ``ModuleList`` of equal experts nor has stacked weights, or these are
        not two or three matrices, or something else stands beside them.
    """
    place, own = experts_of(module, name, style)
    parent, _, key = place.rpartition(".")
    setattr(module.get_submodule(parent), key, own)


def experts_of(module: nn.Module, name: str, style: str) -> tuple[str, OwnExperts]:
    """Return the name that the experts of a name take the place of, and what is there then.

    The parameters and errors are those of `replace_experts`.
    """
    planned, stated = module.get_submodule(name), EXPERTS_STYLE.fullmatch(style)
    listed = isinstance(planned, nn.ModuleList)
    place = name.rpartition(".")[0] if listed else name
    holder = module.get_submodule(place)
    count = len(planned) if isinstance(planned, nn.ModuleList) else _stacked(planned)
    routers = {
        key: each
        for key, each in holder.named_children()
        if isinstance(each, nn.Linear) and each.out_features == count
    }
    of_router = {id(weight) for router in routers.values() for weight in router.parameters()}
    held = [weight for weight in planned.parameters() if id(weight) not in of_router]
    beside = {id(weight) for weight in holder.parameters()} - of_router - set(map(id, held))
    if not place or beside or len(routers) > 1:
        raise InputError(
            f"The plan says that {name} is experts, but {place or 'the whole module'} holds more "
            "than them and a router; let a module of their own hold these two alone, or be called "
            "with tokens, the experts of each and their weights."
        )
    sizes = _sizes_of_list(planned) if isinstance(planned, nn.ModuleList) else _sizes(held, count)
    network = _network(count, sizes, planned)
    if network is None:
        raise InputError(
            f"The plan says that {name} is experts, but it is no ModuleList of equal experts of "
            "two matrices, or three with a gate, nor has such weights stacked, with a dimension "
            "more."
        )
    top_k = int(stated[1] or 0) if stated else 0
    top_k = top_k or _top_k(holder) or _top_k(planned)
    return place, OwnExperts(place, network, routers, top_k)


def _top_k(module: nn.Module) -> int:
    """Return the experts of a token that an attribute of a module states; 0 if none does."""
    stated = (getattr(module, name, None) for name in _TOP_K)
    return next((value for value in stated if isinstance(value, int) and value > 0), 0)


def _stacked(module: nn.Module) -> int:
    """Return the experts of stacked weights; 0 if there are none."""
    return next((len(weight) for weight in module.parameters() if weight.dim() == 3), 0)


_Sizes = tuple[list[int], list[int]]
"""Elements of the matrices, and of the biases, of one expert."""


def _sizes_of_list(experts: nn.ModuleList) -> _Sizes | None:
    """Return the sizes of equal experts; ``None`` where they differ."""
    shapes = [[tuple(weight.shape) for weight in each.parameters()] for each in experts]
    if not shapes or any(own != shapes[0] for own in shapes):
        return None
    return _by_dimensions(list(experts[0].parameters()), 2, lambda weight: weight.numel())


def _sizes(held: Sequence[Tensor], count: int) -> _Sizes | None:
    """Return the sizes of one of some stacked experts; ``None`` where something is not stacked."""
    if count == 0 or any(len(weight) != count for weight in held):
        return None
    return _by_dimensions(held, 3, lambda weight: weight.numel() // count)


def _by_dimensions(
    held: Sequence[Tensor], dimensions: int, size: Callable[[Tensor], int]
) -> _Sizes | None:
    """Return the sizes of matrices, of so many dimensions, and of biases, of one less."""
    if any(weight.dim() not in (dimensions, dimensions - 1) for weight in held):
        return None
    matrices = [size(weight) for weight in held if weight.dim() == dimensions]
    return matrices, [size(weight) for weight in held if weight.dim() < dimensions]


def _network(count: int, sizes: _Sizes | None, planned: nn.Module) -> _Network | None:
    """Return the network that some sizes are; ``None`` where they are none."""
    if sizes is None:
        return None
    matrices, biases = sizes
    if len(matrices) not in (2, 3) or len(biases) not in (0, len(matrices)):
        return None
    if len(matrices) == 3:
        # Equal ones; of their biases, that behind the activation differs, if any does.
        last = next((i for i in range(3) if biases and biases.count(biases[i]) == 1), 2)
    else:
        last = 0 if matrices[0] < matrices[1] else 1
    down = matrices[last]
    up = sum(matrices) - down
    if up not in (down, 2 * down) or (len(matrices) == 3 and len(set(matrices)) > 1):
        return None
    down_bias = biases[last] if biases else 0
    activation = _activation(planned, gated=up > down)
    return _Network(count, up, down, sum(biases) - down_bias, down_bias, activation)


def _activation(planned: nn.Module, *, gated: bool) -> str:
    """Return the activation that the modules of the experts name, by default SiLU with a gate."""
    named = " ".join(type(each).__name__.lower() for each in planned.modules())
    if gated:
        return "geglu" if "gelu" in named else "swiglu"
    return "relu" if "relu" in named else "gelu"
