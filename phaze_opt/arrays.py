"""Types of numpy arrays, and their equal rows.

Their shapes and units stand in the docstrings of the functions.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def distinct_rows(values: FloatArray | IntArray) -> tuple[IntArray, IntArray]:
    """Find equal rows of a table.

    Parameters
    ----------
    values : (rows, columns)

    Returns
    -------
    first : (distinct rows,)
        The first row of each kind.
    which : (rows,)
        Of which kind every row is.
    """
    order = np.lexsort(values.T)
    in_order = values[order]
    begins = np.ones(len(values), dtype=np.bool_)
    begins[1:] = (in_order[1:] != in_order[:-1]).any(axis=1)
    which = np.empty(len(values), dtype=np.int64)
    which[order] = np.cumsum(begins) - 1
    return order[begins], which
