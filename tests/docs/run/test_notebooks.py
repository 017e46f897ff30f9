"""The notebooks run from the first cell to the last, and print what they are stored with."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.tools.notebooks import executed, notebooks, read, shown

LARGEST_BYTES = 30_000


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_is_stored_with(path: Path) -> None:
    """Where numbers have changed, ``make docs-update`` keeps the new ones."""
    assert path.stat().st_size < LARGEST_BYTES
    stored = shown(read(path))
    assert stored
    assert shown(executed(path)) == stored
