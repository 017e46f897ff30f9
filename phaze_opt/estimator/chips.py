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


def hbm_flow_bytes(hbm_s: FloatArray, hbm_bytes_per_s: FloatArray | float) -> FloatArray:
    """Return the bytes that an HBM moves in some time: none where there is no HBM.

    Parameters
    ----------
    hbm_s
        Time that the HBM is busy; 0 on chips without one.
    hbm_bytes_per_s
        Sustained bandwidth, infinite without HBM; in a shape that goes together with the time.
    """
    finite = np.isfinite(hbm_bytes_per_s)
    return hbm_s * np.where(finite, hbm_bytes_per_s, 0.0)


def hbm_saved_s(saved_bytes: FloatArray, hbm_bytes_per_s: FloatArray) -> FloatArray:
    """Return the time that an HBM need not move some bytes: none where there is no HBM.

    Parameters
    ----------
    saved_bytes
        Minus infinity where nothing can be saved because a working set does not fit, which costs
        all the time there is; without HBM there is nothing to stage, and so it costs none.
    hbm_bytes_per_s
        As `hbm_flow_bytes` takes it.
    """
    finite = np.isfinite(hbm_bytes_per_s)
    saved_s: FloatArray = np.where(finite, saved_bytes, 0.0) / hbm_bytes_per_s
    return saved_s


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
