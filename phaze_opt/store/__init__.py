"""The database of studies; no other room imports SQLAlchemy.

Takes the URL of a database (SQLite, PostgreSQL). Gives a `storage.Storage`, with Optuna's storage
for trials and transactions for the tables of this program (prefix ``phaze_``).

- `storage`: an open database and its transactions; `opening`: opens a database, and creates its
  tables or migrates them to the present version.
- `sqlite_file`: the file of an SQLite database, writable or read-only.
- `tables`: the tables, and the clock of the database.
- `failures`: errors of a database as one sentence; retries after a lost connection.
- `damage`: detects rows that this program did not write.
- `studies`: names and UUIDs of all studies, orphaned rows, deletion.
- `stored_study`: one study: its creation, frozen spec, workloads, trials and tickets.
- `tickets`: exactly N trials among many workers; `ticket`: the data of a ticket.
- `leases`: names of workers, and leases of tickets and evaluations.
- `workers`: the workers that hold tickets of a study; `presence`: the runs that work on it.
- `caches`: evaluations and schedules, each computed once for all studies.
- `stored_results`: stored evaluations and schedules as text, many at once.
- `trial_rows`: rows of trials, read and written many at once; `trial_facts`: what answers need of
  finished trials, counted and ordered by SQL.
- `trial_storage`: Optuna's storage; it keeps a running trial in memory, and writes it at once.
- `optuna_private`: every private name of Optuna that the program uses, for one version of it.
- `enumerations`: bounds and answers of enumerations.
- `artifacts`: files of studies and trials, for all machines.
- `publication`: the notes of a study in Optuna Dashboard, with one writer at a time.

Where a rule stands:

- lease expiry -> `tables.lease_is_over` (on the clock `tables.database_now_s`); a lease is taken in
  `tickets.TicketOffice.claim`, renewed by `leases.LeaseKeeper` four times within
  `leases.DEFAULT_LEASE_S`, and ended at once by `leases.expire_dead_workers`
- states of a ticket (open, held, done, failed) -> `tickets.TicketOffice`: only its methods change
  them
- no point twice among workers -> `tickets.TicketOffice.claim`; number of trials of a study ->
  `tickets.TicketOffice.target`
- deaths until a ticket is given up, and its rests -> `tickets.TicketOffice._count_loss`
- deletion of claims whose lease is over -> `leases.sweep_claims`
- exactly one computation of a point -> `caches.EvaluationCache.get_or_compute`
- write lock of SQLite at the start of a transaction -> `opening._begin_on_sqlite`
- retries after a lost connection -> `failures.patiently`
- version of the tables, and columns that a version adds -> `opening._bring_up_to_date`
"""
