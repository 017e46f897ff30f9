"""Everything that opens the database of studies: no other room or module imports SQLAlchemy.

Takes the URL of a database (SQLite, PostgreSQL). Gives a `storage.Storage`, with Optuna's storage
for trials and transactions for the tables of this program (prefix ``phaze_``).

- `storage`: an open database and its transactions; `opening`: opens one, and makes its tables or
  brings them up to date.
- `sqlite_file`: the file of an SQLite database, written or only read.
- `tables`: the tables; the clock of the database.
- `failures`: errors of a database as one sentence; retries while it is away.
- `damage`: rows that this program did not write.
- `studies`: names and UUIDs of all studies, orphaned rows, deletion.
- `stored_study`: one study: its creation, frozen spec, workload, trials and tickets.
- `tickets`: exactly N trials among many workers; `ticket`: what a ticket holds.
- `leases`: names of workers, renewal and expiry of what they hold.
- `workers`: who holds the tickets of a study, and since when; `presence`: who runs it at all.
- `caches`: evaluations and schedules, each computed once for all studies.
- `stored_results`: the same as text, many at once.
- `trial_rows`: rows of trials, read and written many at once.
- `trial_storage`: Optuna's storage over them, which keeps a running trial and writes it at once.
- `optuna_private`: every private name of Optuna that the program uses, for one version of it.
- `enumerations`: bounds and answers of enumerations.
- `artifacts`: files of studies and trials, which every machine sees.
- `publication`: what Optuna Dashboard shows of a study, with one writer at a time.

Where a rule stands:

- lease expiry -> `tables.lease_is_over` (on the clock `tables.database_now_s`); a lease is taken in
  `tickets.TicketOffice.claim`, renewed by `leases.LeaseKeeper` four times within
  `leases.DEFAULT_LEASE_S`, and ended at once by `leases.expire_dead_workers`
- no point twice among workers -> `tickets.TicketOffice.claim`; number of trials that a study shall
  have -> `tickets.TicketOffice.target`
- deaths until a ticket is given up, and its rests -> `tickets.TicketOffice._count_loss`
- claims that nobody computes any more are swept -> `leases.sweep_claims`
- exactly one computation of a point -> `caches.EvaluationCache.get_or_compute`
- write lock of SQLite at the start of a transaction -> `opening._begin_on_sqlite`
- loss of a connection, and how long it is waited for -> `failures.patiently`
- version of the tables, and columns that a version adds -> `opening._bring_up_to_date`
"""
