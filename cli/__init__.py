"""The command ``phaze-opt``, installed as the package ``phaze_opt.cli``.

Takes the arguments of a terminal; gives results on stdout, notes on stderr and an exit code. There
is one file per noun. Commands import the rooms that they use when they run, so that ``--help`` is
quick.

Modules
-------
``main``         the command, and errors as one sentence and an exit code
``output``       options that commands share; JSON, tables and notes
``point``        ``evaluate`` and ``explain``; ``point_options`` are the options that name one point
``explore``      ``explore``, the what-if page; ``controls`` are its controls, ``explored`` answers
                 it, ``copied_point`` writes a point as a command, as Python and as a study
``estimate``     ``estimate gemm``, ``vector``, ``attention``, ``cast``, ``experts``, ``dispatch``,
                 ``collective``
``schedule``     ``schedule``
``place``        ``place``
``calibrate``    ``calibrate``
``validate``     ``validate``
``import_config``  ``import-config``, the configuration of a training framework as a run
``study``        ``study create``, ``run``, ``show``, …; ``progress`` shows a run
``spec``         ``spec check``
``dashboard``    ``dashboard``
``report``       ``report`` and ``plot``
``accelerator``  ``accelerator ls``, ``show``, ``compare``
``cluster``      ``cluster ls``, ``show``, ``collective``
``workload``     ``workload ls``, ``show``, ``capture``
"""
