"""Trials as files that other programs read."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Literal

from phaze_opt.errors import PhazeError
from phaze_opt.search.study import Study
from phaze_opt.search.trials import trial_to_json_dict


def write_trials(study: Study, path: Path, file_format: Literal["csv", "json"]) -> int:
    """Write all trials, one row or object each, and return how many there were.

    Raises
    ------
    PhazeError
        If the file cannot be written.
    """
    rows = [trial_to_json_dict(trial) for trial in study.trials()]
    if file_format == "json":
        text = json.dumps(rows, allow_nan=False, indent=1)
    else:
        columns = list(dict.fromkeys(key for row in rows for key in row))
        stream = io.StringIO()
        writer = csv.DictWriter(stream, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        text = stream.getvalue()
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PhazeError(f"The file {path} cannot be written: {error.strerror}.") from None
    return len(rows)
