"""Bounds of many chips at once, of which some fit no tile of a product."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.estimator.tensor_core import NoTileFitsError


def where_tiles_fit(
    bound: Callable[[IntArray], FloatArray], chips: IntArray, otherwise: FloatArray
) -> FloatArray:
    """Bound chips, as far as tiles of all products fit them.

    Parameters
    ----------
    bound
        Bounds the chips of some indices; the last axis of the result are these.
    chips
        All indices.
    otherwise : (..., 1)
        The bound of a chip that no tile fits.

    Returns
    -------
    bounds : (..., chips)
    """
    try:
        return bound(chips)
    except NoTileFitsError:
        # The error refuses all chips that are bounded together: halves find the ones to blame.
        if len(chips) == 1:
            return otherwise
        halves = np.array_split(chips, 2)
        return np.concatenate([where_tiles_fit(bound, half, otherwise) for half in halves], axis=-1)
