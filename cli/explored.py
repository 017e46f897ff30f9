"""What the what-if page asks of one or two points; runs in a process of its own.

A question is a kind with the options of the points as a query of an address, those of the second
point after ``b.``: ``numbers?model=bert-large&devices=64&…&b.model=…``. Options that name files are
taken only where the command line named the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl

from phaze_opt.codec import FILE_SUFFIXES, to_json
from phaze_opt.compiled import load_all
from phaze_opt.errors import InputError, PhazeError, unknown_name
from phaze_opt.evaluation import Evaluation, place_on_slice, with_range, with_recompute_solved
from phaze_opt.explanation.assumptions import binding_assumptions
from phaze_opt.explanation.explain import explain_point
from phaze_opt.hardware.presets import accelerator_presets, find_accelerator
from phaze_opt.network.presets import cluster_presets, find_cluster
from phaze_opt.passes.scheduled import ScheduleCache
from phaze_opt.point import Point, cost_point
from phaze_opt.report.point_view import explained_view, numbers_view, ranged_view, two_points_view
from phaze_opt.report.words import assumption_words, power_warning
from phaze_opt.workload.zoo import model_names, names_a_shape, tensor_degrees

from .controls import stated_options
from .copied_point import as_command, as_python, as_study
from .point_options import PointOptions

FILE_OPTIONS = ("model", "accelerator", "cluster")
"""Options that may be the path of a file."""

READY = "ready"
"""Asks for nothing: afterwards everything is imported, and compiled code is loaded."""

_OF_PATHS = ("/", "\\", "hf:", *FILE_SUFFIXES)
"""What no preset and no shape has in its name."""

_SECOND = "b."
_MOST_FIELDS = 400
_MOST_SCHEDULES = 20_000

_schedules: ScheduleCache = {}

_Stated = tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Explored:
    """An evaluated point.

    Attributes
    ----------
    evaluation
        Without its range.
    usable_bytes
        What a device may hold.
    """

    options: PointOptions
    point: Point
    evaluation: Evaluation
    usable_bytes: float


@dataclass(frozen=True)
class PointAnswers:
    """Answers the questions of the page.

    Attributes
    ----------
    files
        Paths that the command line named, by option of `FILE_OPTIONS`.
    """

    files: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def __call__(self, question: str) -> tuple[bool, bytes]:
        """Answer; what goes wrong is one sentence."""
        try:
            return True, to_json(self._answer(question))
        except PhazeError as error:
            return False, to_json({"reason": str(error)})
        except Exception as error:
            return False, to_json({"reason": f"Unexpected {type(error).__name__}: {error}"})

    def names(self, option: str) -> tuple[str, ...]:
        """Return what an option of `FILE_OPTIONS` may be, as far as it can be listed."""
        known: Mapping[str, Callable[[], Iterable[str]]] = {
            "model": model_names,
            "accelerator": accelerator_presets,
            "cluster": cluster_presets,
        }
        return (*dict(self.files).get(option, ()), *known[option]())

    def check_files(self) -> None:
        """Read the files that the command line named, and forget them.

        Raises
        ------
        PhazeError
            If one cannot be read, or is not valid.
        """
        readers: Mapping[str, Callable[[str], object]] = {
            "model": tensor_degrees,
            "accelerator": find_accelerator,
            "cluster": find_cluster,
        }
        for option, paths in self.files:
            for path in paths:
                readers[option](path)

    def _answer(self, question: str) -> dict[str, Any]:
        """Answer a question of a known kind."""
        if question == READY:
            load_all()
            return {}
        kind, _, query = question.partition("?")
        asked = _KINDS.get(kind)
        if asked is None:
            raise unknown_name("question", kind, _KINDS)
        if len(_schedules) > _MOST_SCHEDULES:
            _schedules.clear()
        explored: dict[str, Explored] = {}
        designs: list[dict[str, Any]] = []
        for name, stated in self._points(query).items():
            try:
                explored[name] = self._explored(stated)
                designs.append(asked(explored[name]))
            except PhazeError as error:
                designs.append({"reason": str(error)})
        answer: dict[str, Any] = {"designs": designs}
        if kind == "numbers":
            answer |= two_points_view(
                {name: each.evaluation for name, each in explored.items()},
                {name: each.usable_bytes for name, each in explored.items()},
            )
        return answer

    def _points(self, query: str) -> dict[str, dict[str, list[str]]]:
        """Split a query into the options of one or two points, by their names."""
        try:
            pairs = parse_qsl(
                query, keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="strict"
            )
        except ValueError:
            raise InputError("The address is not one that this page makes.") from None
        stated: dict[str, dict[str, list[str]]] = {"A": {}}
        for name, value in pairs:
            design = "B" if name.startswith(_SECOND) else "A"
            options = stated.setdefault(design, {})
            options.setdefault(name.removeprefix(_SECOND), []).append(value)
        return stated

    def _explored(self, stated: Mapping[str, list[str]]) -> Explored:
        """Evaluate a point, unless it is known."""
        for option in FILE_OPTIONS:
            for value in stated.get(option, ()):
                self._check_name(option, value)
        for value in stated.get("economics", ()):
            if any(mark in value for mark in _OF_PATHS):
                raise InputError(
                    f"economics is {value[:100]!r}, but the page reads no files of its own: give "
                    "numbers, for example grid=europe,margin=7."
                )
        return _evaluated(tuple((name, tuple(texts)) for name, texts in sorted(stated.items())))

    def _check_name(self, option: str, value: str) -> None:
        """Refuse a path that the command line did not name."""
        known = self.names(option)
        if not value or value in known:
            return
        if any(mark in value for mark in _OF_PATHS):
            raise InputError(
                f"{option} is {value[:100]!r}, but the page reads no files of its own: name it on "
                f"the command line, phaze-opt explore --{option} FILE."
            )
        if option != "model" or not names_a_shape(value):
            raise unknown_name(option, value[:100], known)


@lru_cache(maxsize=16)
def _evaluated(stated: _Stated) -> Explored:
    """Evaluate a point; the latest ones are kept."""
    options = stated_options({name: list(texts) for name, texts in stated})
    point = with_recompute_solved(options.point(), _schedules)
    costed, evaluation = place_on_slice(cost_point(point, _schedules), _schedules)
    return Explored(options, point, evaluation, costed.problem.hbm_usable_bytes)


def _numbers(explored: Explored) -> dict[str, Any]:
    """Show the numbers of a point, warn, and write it for other programs."""
    options, point, evaluation = explored.options, explored.point, explored.evaluation
    preset = options.preset()
    warnings = [
        assumption_words(assumption, preset.accelerator)
        for assumption in binding_assumptions(preset.assumed, evaluation)
    ]
    if evaluation.is_above_tdp:
        warnings.append(power_warning(evaluation))
    return {
        **numbers_view(evaluation, options.title(point.workload), point.accelerator),
        "warnings": [words.removeprefix("warning: ") for words in warnings],
        "copies": {
            "command": as_command(options),
            "python": as_python(options, point),
            "spec": _study_or_reason(options, point),
        },
    }


def _study_or_reason(options: PointOptions, point: Point) -> str:
    """Write the study around a point, or why there is none as a comment."""
    try:
        return as_study(options, point)
    except PhazeError as error:
        return f"# {error}\n"


def _range(explored: Explored) -> dict[str, Any]:
    """Show the range of a point, and its timeline."""
    return ranged_view(with_range(explored.point, explored.evaluation, _schedules))


def _reasons(explored: Explored) -> dict[str, Any]:
    """Explain a point."""
    load = explored.options.load_workload
    return explained_view(explain_point(explored.point, load, _schedules))


_KINDS: Mapping[str, Callable[[Explored], dict[str, Any]]] = {
    "numbers": _numbers,
    "range": _range,
    "reasons": _reasons,
}
"""By the kind of a question: what is said of each point."""
