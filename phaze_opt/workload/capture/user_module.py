"""Capture a user's own module: the only place that runs the user's code."""

from __future__ import annotations

import copy
import importlib
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from msgspec import UNSET
from torch import Tensor, nn

from phaze_opt.checked import checked
from phaze_opt.errors import InputError
from phaze_opt.limits import MOST_SIZE, check_size
from phaze_opt.workload.capture.batch_of_inputs import refuse_other_batch
from phaze_opt.workload.capture.failures import one_sentence
from phaze_opt.workload.capture.found_experts import find_experts
from phaze_opt.workload.capture.module_trace import ModuleCapture, capture_module, run_forward
from phaze_opt.workload.capture.own_experts import OwnExperts
from phaze_opt.workload.capture.parallel_plan import (
    Plan,
    SplitModule,
    names_part,
    pattern_of,
    refuse_wrong_split,
    with_own_experts,
)
from phaze_opt.workload.graph import Workload
from phaze_opt.workload.trained import Trained, matches, no_such_part

Factory = Callable[[int], Any]
"""Makes a module and its inputs for a microbatch, and perhaps a plan that splits it."""

_SPLIT_HINT = (
    "; on one device of {} a module has a share of its heads and columns: a view names the size of "
    "a head and writes -1 for their number, and a rowwise layer reads what a colwise layer gave"
)

_UNCLEAR_EXPERTS = (
    "The module of %s has stacked weights beside a router in %s, but how many of them work on a "
    "token does not follow from its torch.topk, so all do, as written; if only some do, say so in "
    'the plan, for example {"%s": "experts:2"}.'
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Made:
    """What a factory made: a module on the meta device, its inputs, and how to split it."""

    module: nn.Module
    inputs: Any
    plan: Plan | None


@checked
def capture(
    model: str | Factory | nn.Module,
    inputs: Any = None,
    *,
    microbatch: Sequence[int] | None = None,
    tokens_per_sample: int | None = None,
    tensor_parallel: Sequence[int] | None = None,
    plan: Plan | None = None,
    sequence: int | None = None,
    frozen: Sequence[str] = (),
) -> Workload:
    """Capture a module, or the module that a factory makes.

    A factory is called with the microbatch, on the meta device, and returns the module and its
    inputs: a tensor, a tuple of positional or a dict of keyword arguments. The first scalar among
    the module's results is the loss; without a scalar, every result gets a gradient, and a warning
    says so. Parameters and inputs are taken as bf16; neither weights nor values of the inputs are
    read.

    Members of a ``ModuleList`` are layers, and the code before and after them makes a first and a
    last layer; any other module is split at its top-level children. Branches are kept (see
    `phaze_opt.workload.capture.layer_cuts`).

    Parameters
    ----------
    model
        A factory, or its name ``package.module:factory`` (the working directory is searched too);
        or a module, which stays as it is.
    inputs
        Inputs of a module, with one microbatch of samples.
    microbatch
        Microbatches to capture, in samples; 1 by default. A module needs the one of its inputs.
    tokens_per_sample
        For rates in tokens; by default what the activations of the layers, or else the inputs, show
        (`phaze_opt.workload.capture.tokens`). Where they show nothing, as with images, no rate in
        tokens is reported.
    tensor_parallel
        Tensor degrees to capture; 1 by default. Others need a plan.
    plan
        How to split a module: a style by name of a layer, for example
        ``{"blocks.*.attention.joint": "colwise", "blocks.*.attention.out": "rowwise"}``
        (`phaze_opt.workload.capture.parallel_plan`), and which modules are routed experts. A
        factory returns it beside the inputs.
    sequence
        The old name of ``tokens_per_sample``.
    frozen
        Patterns of parameters or modules that are not trained, as in a plan
        (`phaze_opt.workload.trained.Trained`), beside those whose ``requires_grad`` is false.

    Returns
    -------
    Workload
        Named after the factory or the class of the module.

    Raises
    ------
    InputError
        If the factory cannot be imported, fails, ends the program, minds no microbatch, or returns
        a module that cannot be traced; or if the plan does not fit the module or a tensor degree.
    """
    sizes = [1] if microbatch is None else sorted(set(microbatch))
    tensor_degrees = [1] if tensor_parallel is None else sorted(set(tensor_parallel))
    for what, numbers in (("microbatches", sizes), ("tensor degrees", tensor_degrees)):
        if not numbers or min(numbers) < 1:
            raise InputError(f"The {what} are {numbers}, but each must be at least 1.")
    stated = _stated_tokens(tokens_per_sample, sequence)
    if isinstance(model, nn.Module):
        _check_module_request(inputs, microbatch)
    elif inputs is not None or plan is not None:
        raise InputError(
            "A factory makes the inputs and the plan itself; leave out inputs and plan."
        )
    with _working_directory_searched():
        name, make = _factory(model, inputs, plan)
        make = _freezing(make, frozen)
        is_module = isinstance(model, nn.Module)
        captured, whole = _with_found_experts(name, make, sizes, tensor_degrees, is_module)
    parameters = sum(parameter.numel() for parameter in whole.module.parameters())
    if not captured[1, sizes[0]].has_loss:
        _log.warning(
            "The module of %s returns no scalar, so it has no loss: all its results get a "
            "gradient; return the loss to capture its work too.",
            name,
        )
    variants = (
        captured[tensor_degree, samples].variant
        for tensor_degree in tensor_degrees
        for samples in sizes
    )
    shown = {captured[1, samples].tokens_per_sample for samples in sizes}
    (tokens,) = shown if len(shown) == 1 else (None,)
    idle = sum(
        each.idle_parameters for each in whole.module.modules() if isinstance(each, OwnExperts)
    )
    active = parameters - idle if idle else UNSET
    return Workload(
        name, stated or tokens or 1, parameters, tuple(variants), active_parameters=active
    )


def _stated_tokens(tokens_per_sample: int | None, sequence: int | None) -> int | None:
    """Return the tokens per sample that are stated, by their name or by their old one."""
    if sequence is not None:
        if tokens_per_sample is not None:
            raise InputError("tokens_per_sample and its old name sequence are given; give one.")
        warnings.warn("sequence is now called tokens_per_sample.", FutureWarning, stacklevel=3)
        tokens_per_sample = sequence
    if tokens_per_sample is not None:
        check_size("tokens_per_sample", tokens_per_sample, MOST_SIZE)
    return tokens_per_sample


def _check_module_request(inputs: Any, microbatch: Sequence[int] | None) -> None:
    """Refuse a module without inputs, or with other than their one microbatch."""
    if inputs is None or microbatch is None or len(set(microbatch)) > 1:
        raise InputError(
            "A module is captured with its inputs and their one microbatch, for example "
            "microbatch=(4,); several microbatches need a factory, which makes the module and "
            "the inputs of each."
        )


_Captured = dict[tuple[int, int], ModuleCapture]
"""By tensor degree and microbatch."""


def _capture_all(
    name: str, make: Factory, sizes: Sequence[int], tensor_degrees: Sequence[int], is_module: bool
) -> tuple[_Captured, _Made]:
    """Capture what a factory makes, and return what it made last."""
    captured: _Captured = {}
    for samples in sizes:
        whole = _make(name, make, samples)
        again = None if is_module else partial(_inputs, name, make)
        refuse_other_batch(name, whole.inputs, samples, again)
        shares = [_share(name, _make(name, make, samples), w) for w in tensor_degrees if w > 1]
        captured[1, samples] = _capture_whole(name, whole, samples)
        for made, split in shares:
            share = _capture_share(name, made, samples, split)
            refuse_wrong_split(captured[1, samples].variant, share.variant)
            captured[split.group.tensor_degree, samples] = share
    return captured, whole


def _with_found_experts(
    name: str, make: Factory, sizes: Sequence[int], tensor_degrees: Sequence[int], is_module: bool
) -> tuple[_Captured, _Made]:
    """Do as `_capture_all`, with experts that the module shows; as it is where that fails."""
    plain: tuple[_Captured, _Made] | None = None
    failure: InputError | None = None
    try:
        plain = _capture_all(name, make, sizes, tensor_degrees, is_module)
        made = plain[1]
    except InputError as error:
        made, failure = _make(name, make, sizes[0]), error
    run = partial(run_forward, made.module, made.inputs)
    shown = find_experts(made.module, run, traced=plain is not None)
    found = {part: style for part, style in shown.styles.items() if not names_part(made.plan, part)}
    unclear = [part for part in shown.unclear if not names_part(made.plan, part)]

    def with_experts(samples: int) -> Any:
        module, inputs, *plan = make(samples)
        return module, inputs, {**found, **(plan[0] if plan else {})}

    if found:
        try:
            captured = _capture_all(name, with_experts, sizes, tensor_degrees, is_module)
        except InputError:
            unclear = list(found)
        else:
            places = ", ".join(found)
            _log.warning("The module of %s has experts with stacked weights: %s.", name, places)
            return captured
    if plain is None:
        assert failure is not None
        raise failure from None
    if unclear:
        _log.warning(_UNCLEAR_EXPERTS, name, ", ".join(unclear), pattern_of(unclear[0]))
    return plain


def _capture_whole(name: str, made: _Made, samples: int) -> ModuleCapture:
    """Capture a module on one device."""
    with one_sentence(f"The module of {name} cannot be traced"):
        return capture_module(made.module, made.inputs, samples)


def _share(name: str, made: _Made, tensor_degree: int) -> tuple[_Made, SplitModule]:
    """Make a module one device's share."""
    if made.plan is None:
        raise InputError(
            f"How to split the module of {name} over {tensor_degree} devices is not known: let the "
            'factory return a plan beside the inputs, for example {"blocks.*.up": "colwise", '
            '"blocks.*.down": "rowwise"}, or capture it at the tensor degree 1.'
        )
    return made, SplitModule(made.module, made.plan, tensor_degree)


def _capture_share(name: str, made: _Made, samples: int, split: SplitModule) -> ModuleCapture:
    """Capture one device's share of a module."""
    tensor_degree = split.group.tensor_degree
    problem = f"The module of {name} cannot be traced at tensor degree {tensor_degree}"
    with one_sentence(problem, _SPLIT_HINT.format(tensor_degree)):
        return capture_module(made.module, made.inputs, samples, split)


def _factory(
    model: str | Factory | nn.Module, inputs: Any, plan: Plan | None
) -> tuple[str, Factory]:
    """Return the name of a model and what makes it for a microbatch."""
    if isinstance(model, nn.Module):
        name = type(model).__qualname__
        given = model

        def copied(samples: int) -> Any:
            made = _without_weights(given), inputs
            return made if plan is None else (*made, plan)

        return name, copied
    if isinstance(model, str):
        return model, _import_factory(model)
    return f"{model.__module__}:{getattr(model, '__qualname__', type(model).__qualname__)}", model


def _freezing(make: Factory, frozen: Sequence[str]) -> Factory:
    """Return a factory whose module has frozen parts."""
    patterns = Trained(tuple(frozen)).frozen
    if not patterns:
        return make

    def frozen_module(samples: int) -> Any:
        made = make(samples)
        if isinstance(made, tuple) and made and isinstance(made[0], nn.Module):
            freeze(made[0], patterns)
        return made

    return frozen_module


def freeze(module: nn.Module, patterns: Sequence[str]) -> None:
    """Let parameters of a module that patterns name need no gradient.

    Raises
    ------
    InputError
        If a pattern names none.
    """
    named = dict(module.named_parameters(remove_duplicate=False))
    for pattern in patterns:
        of_pattern = [parameter for name, parameter in named.items() if matches(pattern, name)]
        if not of_pattern:
            raise no_such_part(pattern, list(named))
        for parameter in of_pattern:
            parameter.requires_grad_(False)


def _without_weights(module: nn.Module) -> nn.Module:
    """Copy a module onto the meta device; tied weights stay tied."""
    memo: dict[int, Any] = {
        id(parameter): nn.Parameter(
            torch.empty_like(parameter, device="meta"), parameter.requires_grad
        )
        for parameter in module.parameters()
    }
    memo |= {id(buffer): torch.empty_like(buffer, device="meta") for buffer in module.buffers()}
    return copy.deepcopy(module, memo)


@contextmanager
def _working_directory_searched() -> Iterator[None]:
    """Let modules in the working directory be imported, as the interpreter does."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _import_factory(factory: str) -> Factory:
    """Import the factory that a string names."""
    module_name, colon, name = factory.partition(":")
    if not (module_name and colon and name):
        raise InputError(f"The factory is {factory!r}, but it must be package.module:factory.")
    with one_sentence(f"{module_name} cannot be imported"):
        make = getattr(importlib.import_module(module_name), name, None)
    if not callable(make):
        raise InputError(f"{module_name} has no function {name!r}.")
    return cast(Factory, make)


def _make(factory: str, make: Factory, samples: int) -> _Made:
    """Call the factory on the meta device."""
    with one_sentence(f"The factory {factory} failed"), torch.device("meta"):
        made = make(samples)
    if not (isinstance(made, tuple) and len(made) in (2, 3) and isinstance(made[0], nn.Module)):
        raise InputError(
            f"The factory {factory} must return a module and its inputs, and may return a plan."
        )
    module, inputs, plan = made if len(made) == 3 else (*made, None)
    if not isinstance(inputs, tuple | list | dict | Tensor):
        raise InputError(
            f"The factory {factory} must return inputs as a tensor, a tuple or a dict, "
            f"but it returned a {type(inputs).__name__}."
        )
    if plan is not None and not isinstance(plan, dict):
        raise InputError(
            f"The factory {factory} must return a plan as a dict, "
            f"but it returned a {type(plan).__name__}."
        )
    if plan is not None:
        # At every tensor degree, so that a mistake is found at the first.
        plan = with_own_experts(module, plan)
    with one_sentence(f"The module of {factory} cannot be prepared"):
        _hold_plain_tensors(module)
        return _Made(module.train(), inputs, plan)


def _inputs(name: str, make: Factory, samples: int) -> Any:
    """Return the inputs that a factory makes."""
    return _make(name, make, samples).inputs


def _hold_plain_tensors(module: nn.Module) -> None:
    """Make buffers of tensors that are plain attributes (a mask), so that tracing replaces them."""
    for submodule in module.modules():
        for name, value in list(vars(submodule).items()):
            if isinstance(value, Tensor):
                delattr(submodule, name)
                submodule.register_buffer(name, value, persistent=False)
