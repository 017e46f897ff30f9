"""The note of a study: what the program writes anew, and what people wrote beside it.

Optuna Dashboard lets everyone edit a note. Of one that somebody edited, only the program's own part
is replaced: it begins with the name and the question of the study, and ends with `KEPT`.
"""

from __future__ import annotations

import itertools

from phaze_opt.report.markdown import COMMANDS_TITLE
from phaze_opt.report.study_view import QUESTION

KEPT = "*phaze-opt writes anew what stands above this line, and keeps what you write below it.*"


def joined_note(written: str, stored: str) -> str:
    """Return the note of a study with what people wrote into the one before.

    Parameters
    ----------
    written
        The program's part, from `phaze_opt.report.markdown.note_of`.
    stored
        The note as it is; empty where there is none.
    """
    before, after = own_words(stored)
    parts = [*([before, ""] if before else []), written.rstrip("\n"), "", "---", "", KEPT]
    return "\n".join([*parts, *(["", after] if after else []), ""])


def own_words(note: str) -> tuple[str, str]:
    """Return what people wrote before and after the program's part of a note."""
    lines = note.replace("\r\n", "\n").split("\n")
    begin = next(
        (
            place
            for place, (line, following) in enumerate(itertools.pairwise(lines))
            if line.startswith("# ") and following.startswith(QUESTION)
        ),
        None,
    )
    if begin is None:
        return "", note.strip("\n")
    end = next((place for place, line in enumerate(lines) if line.strip() == KEPT), None)
    after = lines[_end_of_older(lines) :] if end is None or end < begin else lines[end + 1 :]
    return "\n".join(lines[:begin]).strip("\n"), "\n".join(after).strip("\n")


def _end_of_older(lines: list[str]) -> int:
    """Return the first line after a note of an older program, which ended with its commands."""
    end = len(lines)
    if COMMANDS_TITLE in lines:
        end = lines.index(COMMANDS_TITLE) + 1
        while end < len(lines) and (not lines[end].strip() or lines[end].startswith("    ")):
            end += 1
    return end
