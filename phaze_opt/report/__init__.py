"""Results as people see them: tables, sentences, the dashboard, timelines and files.

Takes results of the rooms to the left as objects (`phaze_opt.evaluation.Evaluation`,
`phaze_opt.explanation.explain.Explanation`, `phaze_opt.study.study.Study`, …). Gives what rich can
print, Markdown, events for Perfetto, and files. A function whose name ends in ``_words`` gives part
of a sentence, one whose name ends in ``_tables`` or ``_table`` something to print.

Modules
-------
``layout``             tables without frames, broken lines, plain text; the only user of a console
``words``              sentences about an evaluation: placement, devices, padding, power, time
``results``            the tables of any result, for ``print(result)`` and notebooks
``tables``             tables of an evaluation, a workload, an accelerator, a cluster, plain rows
``explanation_words``  sentences of an explanation
``explanation``        tables of an explanation, under its sentences
``study_words``        sentences about studies and their designs
``studies``            tables of studies: the answer, trials, lists
``design_columns``     columns of tables of designs, and their cells
``specs``              what a spec means, and how two studies differ
``enumeration``        the certified best designs of a space
``comparison``         searches of one question side by side
``study_view``         what people see of a study, as data: page, report, note and plots take it;
                       its parts: ``compared_designs``, ``trial_lines``, ``certified``;
                       ``ties`` are lines that tables fold
``reproducing``        commands and study file that give an answer again
``plots``              the plots of studies and evaluations; ``figure_style`` how they look,
                       ``images`` PNG and SVG
``page``               pages and the report as HTML; ``templates`` fills what is in ``data``
``markdown``           the note of a study, and the report as Markdown
``server``             the server of our pages; ``guard`` what it refuses
``dashboard``          the pages of studies, beside Optuna Dashboard
``explore``            the what-if page of one point or two; ``point_view`` what it shows
``answering``          processes that answer a page, and that can be ended
``optuna_pages``       Optuna Dashboard, which names the best design of the answer
``publishing``         keeps note, plots and files in Optuna Dashboard up to date during a run
``artifacts``          the files of a design: timelines, time as CSV, the note of its trial
``timeline``           a batch through its pipeline, for Perfetto; ``gantt`` timelines as drawings
``export``             trials as CSV, JSON or Parquet
``workers``            who works on a study

Question -> function
--------------------
width of the output                       -> `layout.to_text` and `layout.print_tables`
plots of a result in a notebook           -> `results.drawn`
plots on a narrow page                    -> `figure_style.narrowed`, and ``data/figures.js``
text made harmless for a terminal         -> `phaze_opt.printing.printable`, in `layout.add_row`
numbers as text                           -> `phaze_opt.units.format_number`
tables of ``print(result)``               -> `results.result_tables`
layers that count in a model              -> `explanation_words.heavy_layers`
changes that are shown of those tried     -> `explanation.told_fixes`
note of a study in the dashboard          -> `markdown.note_of`
requests that the dashboard refuses       -> `guard.guarded`
requests that Optuna's pages stumble over -> `optuna_pages._answering`
text made harmless in HTML and in plots   -> `templates._harmless` and `figure_style.figure_text`
what one step from the best design brings -> `study_words.step_words`
how often, and by whom, a study is shown anew -> `publishing.Publisher.told`
text that a spreadsheet would obey        -> `spreadsheet.harmless_cell`
"""
