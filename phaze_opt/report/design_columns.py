"""Columns of tables of designs: their values, and what a space searches."""

from __future__ import annotations

from collections.abc import Sequence

from phaze_opt.report.study_words import value_header
from phaze_opt.report.words import axis_words
from phaze_opt.spec.objectives import ObjectiveKind
from phaze_opt.spec.space import DesignPoint
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.study.trials import Metrics
from phaze_opt.units import format_number

_CHIP_ORDER = {
    "TC": ("num_tc", "pe_x", "pe_y"),
    "VC": ("num_vc", "pe_vc"),
    "GLB": ("glb_mib",),
    "HBM": ("hbm_gib",),
    "GB/s": ("hbm_gb_per_s",),
    "batch": ("microbatch",),
}
"""Columns of tables of designs; GLB in MiB, HBM in GiB and GB/s."""

_LONG_HEADERS = {
    "TC": "TC × array",
    "VC": "VC × lanes",
    "GLB": "GLB [MiB]",
    "HBM": "HBM [GiB]",
    "GB/s": "HBM [GB/s]",
    "batch": "microbatch",
}
"""The same where there is room for units."""


class SearchedColumns:
    """Columns of a table for what a space searches: values, area, chip and options.

    Parameters
    ----------
    spec
        Of the study.
    kinds
        Objectives whose values are shown; those of the study where ``None``.
    """

    def __init__(self, spec: StudySpec, kinds: Sequence[ObjectiveKind] | None = None) -> None:
        several, own = len(spec.runs) > 1, kinds is None
        kinds = spec.objective_kinds if kinds is None else kinds
        names = [name for name, axis in spec.space.searched.items() if len(axis.values) > 1]
        known = {name for each in _CHIP_ORDER.values() for name in each}
        self._values = len(kinds)
        self._has_area = all(kind.name != "area" for kind in kinds)
        self._columns = [column for column, of in _CHIP_ORDER.items() if set(of) & set(names)]
        self._others = [name for name in names if name not in known]
        units = ["relative" if several and kind.name != "area" else kind.unit for kind in kinds]
        area = ["mm²"] if self._has_area else []
        self.headers = [f">{header}" for header in (*units, *area, *self._columns, *self._others)]
        values = [value_header(spec, place) for place in range(len(kinds))] if own else units
        names = [_LONG_HEADERS.get(column, column) for column in self._columns]
        names += [axis_words(axis) for axis in self._others]
        self.named_headers = (*values, *(["area [mm²]"] if area else []), *names)

    def cells(
        self,
        point: DesignPoint | None,
        metrics: Metrics | None,
        values: Sequence[float] | None = None,
    ) -> list[str]:
        """Return the cells of one design, those that are not known as dashes.

        Parameters
        ----------
        point, metrics
            The design.
        values
            Of the objectives that are shown; those of the metrics where ``None``.
        """
        cells = ["–"] * self._values
        if metrics is not None and metrics.feasible:
            shown = metrics.values if values is None else values
            cells = [format_number(value) for value in shown]
        if self._has_area:
            area_mm2 = None if metrics is None else metrics.area_mm2
            cells.append("–" if area_mm2 is None else f"{area_mm2:,.1f}")
        if point is None:
            return cells + ["–"] * (len(self._columns) + len(self._others))
        known = point.by_name
        for column in self._columns:
            parts = [str(known[name]) for name in _CHIP_ORDER[column] if name in known]
            cells.append("×".join(parts))
        return cells + [str(known[name]) for name in self._others]
