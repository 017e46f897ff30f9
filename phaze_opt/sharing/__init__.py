"""Studies that travel: bundles, copies, and merges of two studies.

Takes a stored study. Gives one file of data (never code or pickles) that another machine reads, a
copy in another database, or one study made of two.

- `snapshot`: the content of a study at one moment, with the files of its trials (`attached_files`).
- `bundle`: a snapshot as one file; its file format is in `bundle_file`, its trials in
  `bundle_trials`, its lines in `bundle_documents`; `export_import`: export and import of a study.
- `copying`: copies of a study, and studies started anew with another version of the cost model.
- `merging`: the merge of two studies of one spec.

Where a rule stands:

- limits and checks of a bundle -> `bundle_file.unpack` and `bundle.read_bundle`
- which trial of two studies is kept -> `merging.merge_studies`
"""
