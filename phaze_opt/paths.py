"""Paths that a person wrote: what stands there, and in one sentence why that cannot be used.

Asking whether a file exists may fail by itself: a name may be too long, a link may point to itself,
or hold letters that no name can.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from phaze_opt.errors import InputError, PhazeError

_WRONG_NAMES = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EINVAL)
"""What the system says of a path at which there can be no file."""


def look(path: Path, subject: str) -> os.stat_result | None:
    """Return what the system knows of a path, links followed; ``None`` where nothing is there.

    Parameters
    ----------
    path
        The path.
    subject
        What the error's sentence begins with (``"The bundle at a.zip"``).

    Raises
    ------
    InputError
        If the system does not say: the name is too long, a link points to itself, a file stands
        where a folder should, or the folder may not be entered.
    """
    try:
        return path.stat()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{subject} cannot be read: {reason(error)}.") from None


def reason(error: OSError | ValueError) -> str:
    """Return what the system said; Python itself refuses names with letters that none can have."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "no file can have such a name"


def path_error(sentence: str, error: OSError | ValueError) -> PhazeError:
    """Return an error with a sentence: `InputError` where there can be no file of that name."""
    is_wrong_name = isinstance(error, ValueError) or error.errno in _WRONG_NAMES
    return InputError(sentence) if is_wrong_name else PhazeError(sentence)
