"""Keeps what Optuna Dashboard shows of a study up to date while its workers run.

Before a trial that is better than all others is told, it gets its files, the artifacts, and a note.
After trials, at most every few seconds and by one worker at a time, the note of the study and its
plots are written anew.
"""

from __future__ import annotations

import io
import json
import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from phaze_opt.report.artifacts import ArtifactFile, trial_files, trial_note
from phaze_opt.report.figure_style import titled
from phaze_opt.report.markdown import note_of
from phaze_opt.report.notes import joined_note
from phaze_opt.report.plots.by_kind import TITLES, all_plots
from phaze_opt.report.study_view import LiveView, StudyView, view_of
from phaze_opt.report.study_words import design_words
from phaze_opt.sharing.attached_files import FileFacts, file_attributes
from phaze_opt.spec.ordering import Rank
from phaze_opt.spec.space import point_of
from phaze_opt.store.artifacts import DatabaseArtifacts
from phaze_opt.store.leases import new_token
from phaze_opt.store.publication import (
    claim_publication,
    end_publication,
    rewrite_attributes,
)
from phaze_opt.store.stored_study import StoredStudy
from phaze_opt.study.best_design import design_of
from phaze_opt.study.standing import find_best
from phaze_opt.study.study import Study, study_of
from phaze_opt.study.trials import Metrics

if TYPE_CHECKING:
    from optuna.trial import Trial

PAUSE_S = 5.0
"""Seconds between two writings of a study; longer where writing takes long."""

_PAUSE_PER_WRITING = 20.0
"""Pause in multiples of what writing takes: it then costs a search at most a twentieth."""

_LOOK_S = 1.0
"""Seconds between two looks of a worker whether it may write."""

_FINAL_WAIT_S = 20.0

WORDS_KEY = "design"
"""User attribute of a trial: what it found, in human units."""

_CHUNK = 2_045
"""Characters of a value of Optuna Dashboard's attributes; longer texts are split."""

_NOTE, _PLOTS = "dashboard:note", "dashboard:plot_data:"


class Publisher:
    """Shows what a worker does; see `phaze_opt.study.watching.Show`.

    The command line gives it to every run; a program does so with ``study.run(show=Publisher)``.

    Parameters
    ----------
    stored
        The study that the worker runs.
    """

    def __init__(self, stored: StoredStudy) -> None:
        self._study = study_of(stored)
        self._live: LiveView | None = None
        self._token = new_token()
        self._best: Rank | None = None
        self._looks_s = 0.0

    def telling(self, trial: Trial, metrics: Metrics) -> None:
        """Describe a trial in words; if it is the best so far, give it files and a note."""
        resolved = self._study.resolved
        point = point_of(resolved.spec.space, trial.params)
        trial.set_user_attr(WORDS_KEY, design_words(resolved.spec, point, metrics))
        if not metrics.feasible:
            return
        rank = metrics.rank(resolved, point)
        if not self._is_best(rank):
            return
        best = design_of(self._study, trial.number, point, metrics)
        for file in trial_files(self._study, best):
            self._attach(trial, file)
        key = _trial_note_key(trial._trial_id)
        note = note_attributes(key, trial_note(best), 1)
        rewrite_attributes(self._study.storage, self._study.optuna_id, [key], lambda _: note)

    def told(self) -> None:
        """Write the study anew, unless that was done a moment ago or another worker does it."""
        if time.monotonic() < self._looks_s:
            return
        self._looks_s = time.monotonic() + _LOOK_S
        if claim_publication(self._study.storage, self._study.uid, self._token):
            self._write()

    def finish(self) -> None:
        """Write the study at the end of a run, after whoever writes it at the moment."""
        end_s = time.monotonic() + _FINAL_WAIT_S
        claim = (self._study.storage, self._study.uid, self._token)
        while not claim_publication(*claim, at_once=True):
            if time.monotonic() > end_s:
                return
            time.sleep(0.2)
        self._write()

    def _write(self) -> None:
        """Write note and plots in one transaction, and give up the right to write."""
        started_s = time.monotonic()
        study = self._study
        try:
            self._live = self._live or LiveView(study)
            publish(study, self._live.view())
        finally:
            took_s = time.monotonic() - started_s
            pause_s = max(PAUSE_S, _PAUSE_PER_WRITING * took_s)
            end_publication(study.storage, study.uid, self._token, pause_s)

    def _is_best(self, rank: Rank) -> bool:
        """Whether no finished trial is as good; the best of those that were read is kept."""
        if self._best is not None and self._best.key <= rank.key:
            return False
        # Another worker may have found a better one since.
        best = find_best(self._study)
        self._best = None if best is None else best.rank
        return self._best is None or rank.key < self._best.key

    def _attach(self, trial: Trial, file: ArtifactFile) -> None:
        """Store a file as an artifact of a running trial."""
        artifact_id = str(uuid.uuid4())
        store = DatabaseArtifacts(self._study.storage, self._study.uid)
        store.write(artifact_id, io.BytesIO(file.content))
        facts = FileFacts(artifact_id, file.name, file.mimetype)
        for key, value in file_attributes([facts]).items():
            self._study.storage.optuna.set_trial_system_attr(trial._trial_id, key, value)


def publish(study: Study, view: StudyView | None = None) -> None:
    """Write the note and the plots of a study, as Optuna Dashboard keeps them."""
    view = view_of(study) if view is None else view
    plots: dict[str, Any] = {}
    for kind, figure in all_plots(view).items():
        text = json.dumps(titled(figure, TITLES[kind]), ensure_ascii=False, allow_nan=False)
        plots |= _chunks(f"{_PLOTS}phaze-{kind}:", text)
    written = note_of(view)

    def rewrite(old: Mapping[str, object]) -> dict[str, Any]:
        # The version counts what people write: if it grew here, the dashboard would refuse an edit
        # that was begun before.
        version = old.get(f"{_NOTE}_ver")
        note = joined_note(written, _unchunked(f"{_NOTE}_str:", old))
        return plots | note_attributes(_NOTE, note, version if isinstance(version, int) else 1)

    beginnings = (f"{_NOTE}_ver", f"{_NOTE}_str:", f"{_PLOTS}phaze-")
    rewrite_attributes(study.storage, study.optuna_id, beginnings, rewrite)


def note_attributes(key: str, body: str, version: int) -> dict[str, Any]:
    """Return the attributes that hold a note; ``key`` tells that of a study from a trial's."""
    return {f"{key}_ver": version, **_chunks(f"{key}_str:", body)}


def _trial_note_key(trial_id: int) -> str:
    """Return what the attributes of a trial's note begin with."""
    return f"dashboard:{trial_id}:note"


def _chunks(prefix: str, text: str) -> dict[str, Any]:
    """Split a text as Optuna Dashboard does."""
    starts = range(0, len(text), _CHUNK)
    return {f"{prefix}{at}": text[start : start + _CHUNK] for at, start in enumerate(starts)}


def _unchunked(prefix: str, attributes: Mapping[str, object]) -> str:
    """Reverse `_chunks`; other attributes are left out."""
    parts = [attributes.get(f"{prefix}{at}") for at in range(len(attributes))]
    return "".join(part for part in parts if isinstance(part, str))
