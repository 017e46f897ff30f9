"""Optuna Dashboard's pages, which answer with the same best design as ours."""

from __future__ import annotations

import importlib
from contextlib import suppress
from dataclasses import replace
from typing import Any

from optuna.trial import FrozenTrial

from phaze_opt.errors import PhazeError
from phaze_opt.report.guard import WsgiApplication
from phaze_opt.search.store.artifacts import DatabaseArtifacts
from phaze_opt.search.store.storage import Storage
from phaze_opt.search.store.trial_storage import RunningTrials
from phaze_opt.search.study import load_study
from phaze_opt.search.trials import best_trial


class RankedTrials(RunningTrials):
    """Storage in which the order of designs chooses the best of equally fast trials."""

    def get_best_trial(self, study_id: int) -> FrozenTrial:
        """Return the trial of the best design; Optuna's own choice for studies of other programs.

        Raises
        ------
        KeyError
            If there is no such study.
        ValueError
            If no trial is complete.
        """
        name = self.get_study_name_from_id(study_id)
        # What is wrong with the study is said on our page of it.
        with suppress(PhazeError):
            best = best_trial(load_study(name, self.as_storage()).trials())
            if best is not None:
                return self.get_all_trials(study_id, deepcopy=False)[best.number]
        return super().get_best_trial(study_id)

    def as_storage(self) -> Storage:
        """Return the database with these trials, each of which is read once."""
        optuna: Any = self
        return replace(self._storage, optuna=optuna)


def optuna_pages(trials: RankedTrials, files: DatabaseArtifacts) -> WsgiApplication:
    """Return Optuna Dashboard as an application."""
    # Imported here: it brings a web framework along.
    make: Any = importlib.import_module("optuna_dashboard").wsgi
    application: WsgiApplication = make(trials, artifact_store=files)
    return application
