"""Whatever is given to a public name is taken, or refused in one sentence."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import phaze_opt as po
from phaze_opt.hardware.measured_constants import Calibration
from phaze_opt.network.cluster import NetworkLevel
from tests.study.fakes import toy_study

TINY = "gpt:layers=1,hidden=16,heads=2,sequence=8,vocab=16"
ERRORS = {name for name in po.__all__ if name.endswith("Error")}
"""Take anything, as exceptions do."""

NAMES = sorted({*po.__all__} - ERRORS | {"NetworkLevel", "Calibration"})
"""Every public callable, and the classes of their parts."""


class Unprintable:
    """An object that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


NEVER = (object(), float("nan"), np.float64("nan"), 2j, b"x", np.zeros((2, 2)), ...)
"""Values that nothing takes."""

SOMETIMES: tuple[Any, ...] = (
    *(None, True, 0, 1, -1, 3, 10**400, 0.5, -1.0, 1e300, float("inf"), np.int64(2)),
    *("", "x", "\0", "h100", "a" * 300, "\ud800", (), [], [1], ["a"], {}, {"a": 1}, {1: 2}),
    *(np.array([1, 2]), np.array(1), Path("x"), Path(), len, int, range(3), {1}),
)
"""Values that some arguments take, and most do not."""

wrong = st.recursive(
    st.sampled_from([*NEVER, *SOMETIMES]),
    lambda inside: (
        st.lists(inside, min_size=1, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "min", "max", 1]), inside, min_size=1, max_size=2)
    ),
    max_leaves=3,
)

Calls = dict[str, tuple[Callable[..., Any], dict[str, Any]]]


def make(microbatch: int) -> Any:
    """Make a small module and its inputs."""
    return torch.nn.Sequential(torch.nn.Linear(2, 2)), torch.zeros(microbatch, 2)


def fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name."""
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Calls:
    """Return every callable by its name, with arguments that it takes."""
    study = toy_study(f"sqlite:///{tmp_path_factory.mktemp('wrong') / 'a.db'}")
    workload, chip = po.load_workload(TINY), po.load_accelerator("tpuv4-lanes")
    cluster, training = po.load_cluster("flat-4GiB", 1), po.Training(1)
    point: dict[str, Any] = {
        "workload": workload,
        "accelerator": chip,
        "cluster": cluster,
        "training": training,
    }
    result = po.evaluate(**point)
    space: dict[str, Any] = {"base": "h100", "num_tc": [1, 2], "microbatch": 1, "recompute": "none"}
    spec: dict[str, Any] = {"name": "a", "model": TINY, "cluster": "flat-4GiB"}
    spec |= {"devices": 1, "global_batch": 8}
    stored = {"spec": po.StudySpec(**spec, space=po.Space(num_tc=[1, 2])), "exist_ok": True}
    return {
        "load_workload": (po.load_workload, {"model": TINY}),
        "capture": (po.capture, {"model": make}),
        "load_accelerator": (
            lambda name, **numbers: po.load_accelerator(name, **numbers),
            {"name": "h100", "hbm_gib": 80, "num_tc": 1, "concurrent_operators": True},
        ),
        "load_cluster": (po.load_cluster, {"name_or_path": "dgx-h100", "devices": 8}),
        "Accelerator": (po.Accelerator, fields(chip)),
        "Calibration": (Calibration, fields(chip.calibration)),
        "Cluster": (po.Cluster, fields(cluster)),
        "NetworkLevel": (NetworkLevel, fields(cluster.levels[0])),
        "Training": (po.Training, fields(training)),
        "Evaluation": (po.Evaluation, fields(result)),
        "Placement": (po.Placement, fields(result.placement)),
        "evaluate": (po.evaluate, point),
        "explain": (po.explain, point),
        "Space": (po.Space, space),
        "StudySpec": (po.StudySpec, spec),
        "create_study": (po.create_study, {**stored, "storage": study.storage}),
        "load_study": (po.load_study, {"name": study.name, "storage": study.storage}),
        "Study": (po.Study, fields(study)),
    }


def arguments(call: Callable[..., Any], taken: dict[str, Any]) -> list[str]:
    """Return the names of the arguments of a callable, those of its keywords too."""
    named = [
        name
        for name, one in inspect.signature(call).parameters.items()
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    ]
    return sorted({*named, *taken})


@pytest.mark.parametrize("name", NAMES)
@settings(derandomize=True, deadline=None, max_examples=30)
@given(data=st.data())
def test_wrong_values_are_refused(calls: Calls, name: str, data: st.DataObject) -> None:
    """In every argument, whatever stands there, the error is the package's own."""
    call, taken = calls[name]
    argument = data.draw(st.sampled_from(arguments(call, taken)))
    value = data.draw(wrong)
    try:
        call(**{**taken, argument: value})
    except po.PhazeError as error:
        assert str(error) and "\n" not in str(error)
    else:
        assert not any(value is one for one in NEVER)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("capture", "explain")])
def test_what_nothing_takes_is_named(calls: Calls, name: str) -> None:
    """Every argument refuses what is of no use anywhere; the sentence names the argument."""
    call, taken = calls[name]
    call(**taken)
    for argument in arguments(call, taken):
        for value in (*NEVER, Unprintable()):
            with pytest.raises(po.InputError) as caught:
                call(**{**taken, argument: value})
            assert argument in str(caught.value) or argument == "name"
            assert len(str(caught.value)) < 400
        with contextlib.suppress(po.PhazeError):  # more digits than Python writes
            call(**{**taken, argument: 10**5000})


def test_a_run_refuses_what_it_cannot_use(tmp_path: Path) -> None:
    """Before anything is run or written."""
    study = toy_study(f"sqlite:///{tmp_path / 'a.db'}")
    run: Any = study.run
    for argument in ("trials", "workers", "on_progress", "lease_s", "show"):
        for value in NEVER:
            with pytest.raises(po.InputError, match=f"^{argument} is "):
                run(**{argument: value})
    assert study.trials() == []


def test_unknown_and_missing_keywords_are_pythons() -> None:
    """Python says which argument is missing, unknown or one too many."""
    call: Any = po.load_cluster
    for given_arguments, keywords in (
        ((), {}),
        (("dgx-h100", 8, 8), {}),
        (("dgx-h100",), {"x": 8}),
    ):
        with pytest.raises(TypeError, match=r"load_cluster\(\) "):
            call(*given_arguments, **keywords)
