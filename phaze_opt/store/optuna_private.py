"""The private names of Optuna that this program uses; no other file imports a private module.

Optuna may change them with any version: `tests/store/test_optuna_private.py` names the version for
which they were read, and fails when the lock file names another one.

- `CachedStorage`, `CachedStudy`: the memory of trials between a study and its database.
  `trial_storage.RunningTrials` keeps a running trial in it, and writes it in one transaction; the
  public storage writes each attribute in a transaction of its own.
- `models`: the tables of studies and trials, and the message of a missing row (`NOT_FOUND_MSG`).
  `trial_rows` reads and writes many trials in one statement; the public storage needs seven
  statements to read a trial, and about twenty to add it.
- `compute_hypervolume`: the volume that a front dominates, which Optuna plots but does not export;
  `phaze_opt.whole_space.hypervolumes` compares the fronts of studies by it.

Beside these, the program uses private attributes of public objects: the row of a trial
(``trial._trial_id``), its check (``trial._validate``), the common axes of a sampler
(``_search_space``, ``_intersection_search_space``), and the methods of the two storages that
`trial_storage` overrides.
"""

from optuna._hypervolume import compute_hypervolume
from optuna.storages._cached_storage import _CachedStorage as CachedStorage
from optuna.storages._cached_storage import _StudyInfo as CachedStudy
from optuna.storages._rdb import models

__all__ = ["CachedStorage", "CachedStudy", "compute_hypervolume", "models"]
