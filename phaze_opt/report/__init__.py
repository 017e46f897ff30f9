"""Results as people see them: tables, sentences, the dashboard, timelines and files.

Takes results of the rooms to the left as objects (`phaze_opt.evaluation.Evaluation`,
`phaze_opt.explanation.explain.Explanation`, `phaze_opt.search.study.Study`, …). Gives what rich can
print, Markdown, events for Perfetto, and files. A function whose name ends in ``_words`` gives part
of a sentence, one whose name ends in ``_tables`` or ``_table`` something to print.

Modules
-------
``layout``             tables without frames, broken lines, plain text; the only user of a console
``words``              sentences about an evaluation: placement, devices, padding, power, time
``tables``             tables of an evaluation, a workload, an accelerator, a cluster, plain rows
``explanation_words``  sentences of an explanation
``explanation``        tables of an explanation, under its sentences
``studies``            tables and sentences about studies: the answer, trials, lists
``specs``              what a spec means, and how two studies differ
``enumeration``        the certified best designs of a space
``dashboard``          the server of Optuna Dashboard, and the note of a study in it
``timeline``           a batch through its pipeline, for Perfetto
``export``             trials as CSV, JSON or Parquet
``workers``            who works on a study

Question -> function
--------------------
width of the output                       -> `layout.to_text` and `layout.print_tables`
text made harmless for a terminal         -> `phaze_opt.printing.printable`, in `layout.add_row`
tables of ``print(result)``               -> `phaze_opt.printing.PrintsAsTables`
layers that count in a model              -> `explanation_words.heavy_layers`
changes that are shown of those tried     -> `explanation._telling`
note of a study in the dashboard          -> `dashboard.note_of`
requests that the dashboard refuses       -> `dashboard.guarded`
text that a spreadsheet would obey        -> `export._safe`
"""
