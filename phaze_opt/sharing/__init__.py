"""Studies that travel: bundles, copies, and two studies joined.

Takes a stored study. Gives one file of data (never code or pickles) that another machine reads, a
copy in another database, or one study of two.

- `snapshot`: all of a study at one moment, with the files of its trials (`attached_files`).
- `bundle`: the same as one file, whose form is in `bundle_file`, its trials in `bundle_trials` and
  its lines in `bundle_documents`; `export_import`: a study written into a bundle, and made of one.
- `copying`: copies of a study, and studies started anew with another version of the cost model.
- `merging`: two studies of one spec joined.

Where a rule stands:

- limits and checks of a bundle -> `bundle_file.unpack` and `bundle.read_bundle`
- which trial of two studies is kept -> `merging.merge_studies`
"""
