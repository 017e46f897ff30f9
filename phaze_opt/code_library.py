"""What numba links and optimises: the code of one compiled function, and of all that it calls.

Numba optimises every function and makes machine code of it, and again in each function that calls
it, where it may become part of the caller; of a function that only compiled code calls, the last
is all that ever runs. So here the full optimisation and the machine code of a function wait until
Python calls it: a caller is linked with the form before. Of the time of compiling a long chain of
callers that saves half. What is compiled does not depend on which function was called first.

A function without machine code is stored as bitcode, one with it as both; of those the bitcode is
read only where something is compiled that calls the function. These are private classes of numba
(see `phaze_opt.stored_code`).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_ENVIRONMENT = "_ZN08NumbaEnv"
"""How the names of the variables begin that point to what a function knows of Python."""


@contextmanager
def own_libraries(context: Any) -> Iterator[None]:
    """Let numba put what it compiles or reads into libraries of this module.

    Parameters
    ----------
    context
        Numba's target context.
    """
    runtime: Any = importlib.import_module("numba.core.runtime")
    runtime.rtsys.initialize(context)  # which calls its library at once
    codegen = context.codegen()
    kind, set_environment = codegen._library_class, codegen.set_env

    def set_if_called(name: str, environment: Any) -> None:
        if codegen._engine.get_global_value_address(name):
            set_environment(name, environment)

    codegen._library_class, codegen.set_env = _library(), set_if_called
    try:
        yield
    finally:
        codegen._library_class, codegen.set_env = kind, set_environment


def with_machine_code(compiled: Any, context: Any) -> Any:
    """Return a function, compiled by numba, that Python can call.

    Parameters
    ----------
    compiled
        The ``CompileResult`` of the function, which is returned if it can be called as it is.
    context
        Numba's target context.
    """
    if not isinstance(compiled.library, _library()) or compiled.library.is_called:
        return compiled
    compiled.library.make_machine_code(compiled.fndesc.llvm_cpython_wrapper_name)
    entry = context.get_executable(compiled.library, compiled.fndesc, compiled.environment)
    return compiled._replace(entry_point=entry)


@cache
def _library() -> type[Any]:
    """Make the kind of library, once numba is imported."""
    codegen: Any = importlib.import_module("numba.core.codegen")
    environments: Any = importlib.import_module("numba.core.environment")
    binding: Any = importlib.import_module("llvmlite.binding")

    class Library(codegen.JITCodeLibrary):  # type: ignore[misc]
        """Code that has no machine code yet, and stored code that may not have been read yet."""

        is_called = False
        """Whether there is machine code."""
        _stored_code = _bitcode = b""

        @classmethod
        def _unserialize(cls, codegen: Any, state: Any) -> Any:
            name, kind, data = state
            library = codegen.create_library(name)
            library.enable_object_caching()
            if kind == "object":
                library._stored_code, library._bitcode = data
                library._set_compiled_object(library._stored_code)
                library.is_called = True
                super(cls, library)._finalize_final_module()
            else:
                library._bitcode = data
                library._finalized = True
            return library

        def serialize_using_object_code(self) -> tuple[str, str, Any]:
            if self.is_called:
                return super().serialize_using_object_code()  # type: ignore[no-any-return]
            return self.name, "bitcode", self._get_module_for_linking().as_bitcode()

        def _get_module_for_linking(self) -> Any:
            if self._bitcode:
                self._shared_module = binding.parse_bitcode(self._bitcode)
                self._bitcode = b""
            return super()._get_module_for_linking()

        def _optimize_final_module(self) -> None:
            """Put together what a caller is linked with, as numba does in the first of two runs."""
            run, built = self._codegen._module_pass_manager(
                loop_vectorize=self._codegen._loopvect,
                slp_vectorize=False,
                opt=self._codegen._opt_level,
                cost="cheap",
            )
            run.run(self._final_module, built)

        def _finalize_final_module(self) -> None:
            self._finalize_dynamic_globals()
            self._verify_declare_only_symbols()
            self._finalized = True

        def make_machine_code(self, entry: str) -> None:
            """Optimise the code, make machine code of it, and let it know its environments."""
            self._final_module = self._get_module_for_linking().clone()
            self._final_module.get_function(entry).linkage = binding.Linkage.external
            run, built = self._codegen._module_pass_manager()
            run.run(self._final_module, built)
            self._final_module.verify()
            super()._finalize_final_module()
            self.is_called = True
            for variable in self._final_module.global_variables:
                if variable.name.startswith(_ENVIRONMENT):
                    environment = environments.lookup_environment(variable.name)
                    if environment is not None:
                        self._codegen.set_env(variable.name, environment)

        def get_pointer_to_function(self, name: str) -> int:
            if not self.is_called:
                return 0
            # Numba looks names up among those that it has read from bitcode.
            if name.encode() in self._stored_code:
                self._codegen._engine._defined_symbols.add(name)
            return int(super().get_pointer_to_function(name))

    return Library
