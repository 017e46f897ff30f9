"""The experiments of Phaze (ICML 2024) again, on this cost model: ``python -m studies.paper``.

- `settings` says which studies there are, and `ablations` how each of them is changed;
- `work` keeps the answer of every part, so that a run that was stopped goes on;
- `searches` and `comparison` find the answers, `checks` holds them to what must be true;
- `tables`, `figures`, `claims` and `page` write what people read.
"""
