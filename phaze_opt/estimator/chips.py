"""Accelerators as arrays: one property of many chips at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import overload

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.hardware.accelerator import Accelerator


class Chips(Sequence[Accelerator]):
    """Many accelerators, each property of which is read once, however many graphs run on them.

    A slice shares the columns that have been read.

    Parameters
    ----------
    accelerators
        The chips, in any order; equal ones may be repeated.
    """

    def __init__(self, accelerators: Sequence[Accelerator]) -> None:
        self._accelerators = tuple(accelerators)
        self._columns: dict[str, FloatArray] = {}

    def __len__(self) -> int:
        return len(self._accelerators)

    def __iter__(self) -> Iterator[Accelerator]:
        return iter(self._accelerators)

    @overload
    def __getitem__(self, which: int) -> Accelerator: ...

    @overload
    def __getitem__(self, which: slice) -> Chips: ...

    def __getitem__(self, which: int | slice) -> Accelerator | Chips:
        if isinstance(which, int):
            return self._accelerators[which]
        part = Chips(self._accelerators[which])
        part._columns = {name: column[which] for name, column in self._columns.items()}
        return part

    def column(self, name: str) -> FloatArray:
        """Return one property of all chips; see `chip_column`."""
        if name not in self._columns:
            self._columns[name] = chip_column(self._accelerators, name)
        return self._columns[name]


def chip_column(accelerators: Sequence[Accelerator], name: str) -> FloatArray:
    """Return one property of all accelerators, of shape (accelerators, 1).

    Parameters
    ----------
    accelerators
        The chips.
    name
        An attribute, or a dotted path of them; NaN stands for ``None``. One that is a tuple adds an
        axis.
    """
    if isinstance(accelerators, Chips):
        return accelerators.column(name)
    values = list(map(attrgetter(name), accelerators))
    return np.array(values, dtype=np.float64)[:, np.newaxis]
