"""The command ``phaze-opt``: its nouns, and how errors become one sentence and an exit code."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from importlib import import_module
from typing import Annotated, Any, get_args

import typer
import typer.main

import phaze_opt
from phaze_opt.choices import ResidencyName
from phaze_opt.cost_model_version import COST_MODEL_VERSION
from phaze_opt.errors import PhazeError
from phaze_opt.paths import path_error, reason
from phaze_opt.printing import print_error, without_passwords

_INTERRUPTED = 130
_DEBUG = "--debug"
# The class of all usage errors; where typer keeps it differs between versions.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

_NOUNS = {
    "evaluate": "point",
    "explain": "point",
    "explore": "explore",
    "estimate": "estimate",
    "schedule": "schedule",
    "place": "place",
    "calibrate": "calibrate",
    "validate": "validate",
    "import-config": "import_config",
    "study": "study",
    "dashboard": "dashboard",
    "report": "report",
    "plot": "report",
    "spec": "spec",
    "accelerator": "accelerator",
    "cluster": "cluster",
    "workload": "workload",
}
"""The module of every noun: it has a function of that name, or an ``app`` of several commands."""


def run() -> None:
    """Run the command line; the entry point of ``phaze-opt``."""
    # Read when numpy is imported, here and in worker processes. Its matrices are small: on several
    # threads the Gaussian process takes three times as long, and its last digits may differ.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    arguments = [argument for argument in sys.argv[1:] if argument != _DEBUG]
    sys.exit(run_with(arguments, debug=_DEBUG in sys.argv[1:]))


def run_with(arguments: list[str], *, debug: bool = False) -> int:
    """Run one command and return its exit code."""
    try:
        arguments = _with_residency_named(arguments)
        noun = arguments[0] if arguments and arguments[0] in _NOUNS else None
        result = program(noun).main(arguments, prog_name="phaze-opt", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except typer.Exit as stop:
        return stop.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of the pipe has ended; Python must not try to flush the output again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except _UsageError as error:
        sentence = str(getattr(error, "format_message", error.__str__)())
        # Without a command the help has been printed, and there is nothing to add.
        return _fail(error, sentence, 2, debug) if sentence else 2
    except PhazeError as error:
        return _fail(error, str(error), error.exit_code, debug)
    except OSError as error:
        where = f"The file {error.filename}" if error.filename else "The system"
        failed = path_error(f"{where} cannot be used: {reason(error)}.", error)
        return _fail(failed, str(failed), failed.exit_code, debug)
    except Exception as error:
        sentence = f"Unexpected {type(error).__name__}: {error} (--debug shows where)"
        return _fail(error, sentence, 1, debug)


def _with_residency_named(arguments: list[str]) -> list[str]:
    """Write the switches ``--residency`` and ``--no-residency`` as the option that they are now."""
    if arguments[:1] == ["schedule"]:
        return arguments
    named = []
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if argument == "--no-residency":
            named += ["--residency", "none"]
        elif argument == "--residency" and following not in get_args(ResidencyName):
            named += [argument, "whole"]
        else:
            named.append(argument)
    return named


def _fail(error: BaseException, sentence: str, exit_code: int, debug: bool) -> int:
    """Print the error as one line, with its traceback if asked, and return its exit code."""
    if debug:
        print(without_passwords("".join(traceback.format_exception(error))), file=sys.stderr)
    print_error(sentence)
    return exit_code


@functools.cache
def program(noun: str | None = None) -> Any:
    """Make the program, whole or with one noun only, once per process.

    All commands take 0.05 s to import and to make.
    """
    app = typer.Typer(
        name="phaze-opt",
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for name in _NOUNS if noun is None else (noun,):
        module = import_module(f".{_NOUNS[name]}", __package__)
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(getattr(module, name.replace("-", "_")))
    return typer.main.get_command(app)


def _say_version(asked: bool) -> None:
    """Print the versions of the program and of its cost model, and end."""
    if asked:
        print(f"phaze-opt {phaze_opt.__version__} (cost model {COST_MODEL_VERSION})")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_say_version,
            is_eager=True,
            help="Print the versions of the program and of its cost model.",
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option(_DEBUG, help="Show the traceback of an error (anywhere in the line).")
    ] = False,
) -> None:
    """Find the accelerator, and the spread over many of them, that train a model fastest.

    For example:

        phaze-opt evaluate --model bert-large --accelerator tpuv4-phaze --cluster tpuv4-ici-flat
        --devices 1024 --global-batch 4096 --microbatch 4

        phaze-opt study create studies/quickstart.toml && phaze-opt study run quickstart
    """
