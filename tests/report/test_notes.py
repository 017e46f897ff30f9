"""Notes of studies: what the program writes anew, and what people wrote, which stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.report.notes import KEPT, joined_note, own_words

WRITTEN = """# a study
Which accelerator trains it fastest?

**1**

## How to get it again

    run
"""
LINES = st.text("ab #*\n", max_size=40)


@given(LINES, LINES)
def test_what_people_write_is_kept(before: str, after: str) -> None:
    """Wherever it stands, through any number of writings, without becoming more."""
    first = joined_note(WRITTEN, "")
    assert own_words(first) == ("", "")
    edited = f"{before}\n{first}\n{after}"
    own = before.strip("\n"), after.strip("\n")
    assert own_words(edited) == own
    again = joined_note(WRITTEN.replace("**1**", "**2**"), edited)
    assert own_words(again) == own
    assert "**1**" not in again and again.count("**2**") == 1
    assert joined_note(WRITTEN, again) == joined_note(WRITTEN, edited)


@pytest.mark.parametrize(
    ("note", "own"),
    [
        ("", ("", "")),
        ("We built it.", ("", "We built it.")),
        ("# Ours\n\nWe built it.\n", ("", "# Ours\n\nWe built it.")),
        # What an older program wrote, and what was written below it.
        (WRITTEN, ("", "")),
        (f"{WRITTEN}\nWe built it.", ("", "We built it.")),
        (f"Look:\n{WRITTEN}\nBuilt.\n\n    so\n", ("Look:", "Built.\n\n    so")),
        # Somebody deleted all but the last line.
        (f"Mine.\n{KEPT}\nToo.", ("", f"Mine.\n{KEPT}\nToo.")),
        (joined_note(WRITTEN, "").replace("\n", "\r\n") + "\r\nMine.\r\n", ("", "Mine.")),
    ],
)
def test_notes_of_all_kinds(note: str, own: tuple[str, str]) -> None:
    """A note without the program's part is all somebody's own."""
    assert own_words(note) == own
