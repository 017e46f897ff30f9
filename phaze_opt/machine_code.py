"""Machine code of compiled functions on disk, run without importing their compiler.

Importing numba and letting it read a function from its own cache takes most of a second; linking
the machine code that it made takes less than a millisecond. What runs is the same code. Numba's own
C modules are loaded for it, but none of its Python.

A file is written for one version of numba and llvmlite and one processor. Where it is missing,
belongs to others or is damaged, `linked` returns ``None``, and numba is asked. The dispatcher with
which numba refuses arguments of other types is not there: `_refusing` does the same.
"""

from __future__ import annotations

import builtins
import ctypes
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from hashlib import blake2b
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

_DIGEST_BYTES = 16
_LINKING = Lock()

ArrayKind = tuple[str, int, bool]
"""Name of the type of the entries, dimensions, and whether it must be contiguous in C's order."""

Kind = ArrayKind | list["Kind"] | None
"""An array, a tuple of kinds, or a number."""


class MachineCode(NamedTuple):
    """A function as machine code.

    Attributes
    ----------
    code
        An object file.
    entry
        Symbol of the function that takes arguments from Python.
    environment, constants
        Symbol of the pointer to the Python objects that the code uses, and these objects.
    externals
        Symbols that it takes from elsewhere.
    parameters
        Their kinds.
    """

    code: bytes
    entry: str
    environment: str
    constants: list[Any]
    externals: list[str]
    parameters: list[Kind]


def write(code: MachineCode, path: Path) -> None:
    """Keep machine code in a file; other processes see all of it or none."""
    content = pickle.dumps((_platform(), tuple(code)))
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(blake2b(content, digest_size=_DIGEST_BYTES).digest() + content)
    Path(file.name).replace(path)


def linked(path: Path, module: str, name: str) -> Callable[..., Any] | None:
    """Return the function of a file, ready to be called; ``None`` where it cannot be.

    Parameters
    ----------
    path
        The file.
    module, name
        Where the function is defined, and how it is called there.
    """
    try:
        content = path.read_bytes()
        digest, content = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if digest != blake2b(content, digest_size=_DIGEST_BYTES).digest():
            return None
        platform, fields = pickle.loads(content)
        if platform != _platform():
            return None
        with _LINKING:
            return _link(MachineCode(*fields), sys.modules[module], name)
    except Exception:  # whatever is not as it was: numba compiles the function
        return None


@cache
def _platform() -> tuple[str, ...]:
    """Return what machine code is made by and for; raise where numba is told what to make."""
    import llvmlite
    import llvmlite.binding as llvm

    told = {name for name in os.environ if name.startswith("NUMBA_")} - {"NUMBA_CACHE_DIR"}
    if told:
        raise RuntimeError(f"Numba is told what to make: {told}.")
    version = (_numba_folder() / "_version.py").read_text("utf-8")
    features = llvm.get_host_cpu_features().flatten()
    cpu = llvm.get_process_triple(), llvm.get_host_cpu_name(), features
    return version, llvmlite.__version__, np.__version__, sys.version, *cpu


def _numba_folder() -> Path:
    """Find numba without importing it."""
    spec = find_spec("numba")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


class _Runtime(NamedTuple):
    """What machine code runs with: LLVM's engine, and numba's C module that makes functions."""

    engine: Any
    functions: Any


@cache
def _runtime() -> _Runtime:
    """Load numba's C modules, and make their symbols known as numba does."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    functions, helpers, memory = (
        _extension(name) for name in ("_dynfunc", "_helperlib", "core.runtime._nrt_python")
    )
    llvm.add_symbol("_Py_NoneStruct", id(None))
    for name, value in vars(builtins).items():
        if isinstance(value, type) and issubclass(value, BaseException):
            llvm.add_symbol(f"PyExc_{name}", id(value))
    for name, address in {**helpers.c_helpers, **functions.c_helpers}.items():
        llvm.add_symbol(f"numba_{name}", address)
    for name, address in memory.c_helpers.items():
        llvm.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)
    _unpickle_alone(helpers.c_helpers["unpickle"])
    target = llvm.Target.from_default_triple().create_target_machine(jit=True)
    return _Runtime(llvm.create_mcjit_compiler(llvm.parse_assembly(""), target), functions)


def _extension(name: str) -> ModuleType:
    """Load a C module of numba by itself."""
    full_name = f"numba.{name}"
    if full_name in sys.modules:
        return sys.modules[full_name]
    paths = [_numba_folder() / (name.replace(".", "/") + suffix) for suffix in EXTENSION_SUFFIXES]
    spec = spec_from_file_location(full_name, next(path for path in paths if path.exists()))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _unpickle_alone(address: int) -> None:
    """Let numba's C function that reads pickled objects call a function of this module.

    Machine code calls it for every array that it returns. At its first call it looks for a function
    in ``numba.core.serialize`` and keeps it; that module would import all of numba. So it finds
    stand-ins at that call.
    """
    package, name = "numba", "numba.core.serialize"
    if package in sys.modules:
        return
    stand_in = ModuleType(name)
    vars(stand_in)["_numba_unpickle"] = _unpickled
    sys.modules.update({package: ModuleType(package), name: stand_in})
    try:
        first = pickle.dumps(None)
        read = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p)
        read(address)(first, len(first), bytes(20))
    finally:
        del sys.modules[package], sys.modules[name]


_objects: dict[tuple[int, bytes], Any] = {}


def _unpickled(address: int, pickled: bytes, digest: bytes) -> Any:
    """Read an object that lies at an address in machine code."""
    key = address, digest
    if key not in _objects:
        _objects[key] = pickle.loads(pickled)
    return _objects[key]


def _link(code: MachineCode, module: ModuleType, name: str) -> Callable[..., Any] | None:
    """Link machine code, and return the function; ``None`` if a symbol is missing."""
    import llvmlite.binding as llvm

    engine, functions = _runtime()
    if not all(map(llvm.address_of_symbol, code.externals)):
        return None  # the linker would end the process
    engine.add_object_file(llvm.ObjectFileRef.from_data(code.code))
    address = engine.get_function_address(code.entry)
    environment = functions.Environment(vars(module))
    environment.consts[:] = code.constants
    pointer = ctypes.c_void_p.from_address(engine.get_global_value_address(code.environment))
    pointer.value = id(environment)
    function = functions.make_function(module, name, "", address, environment, (engine,))
    return _refusing(function, code.parameters)


def _refusing(function: Callable[..., Any], kinds: Sequence[Kind]) -> Callable[..., Any]:
    """Let a function refuse arrays of other types, which it would read as if they were its own."""
    arrays = [
        (place, np.dtype(kind[0]), *kind[1:])
        for place, kind in enumerate(kinds)
        if isinstance(kind, tuple)
    ]
    tuples = [
        (place, members)
        for place, members in enumerate(kinds)
        if isinstance(members, list) and any(members)
    ]

    def call(*arguments: Any) -> Any:
        for place, dtype, dimensions, contiguous in arrays:
            array = arguments[place]
            if (
                array.dtype is not dtype
                or array.ndim != dimensions
                or not (array.flags.carray if contiguous else array.flags.behaved)
            ):
                _refuse([array], [kinds[place]])
        for place, members in tuples:
            _refuse(arguments[place], members)
        return function(*arguments)

    return call


def _refuse(values: Iterable[Any], kinds: Sequence[Kind]) -> None:
    """Raise for the first value that is not of its kind."""
    for value, kind in zip(values, kinds, strict=True):
        if isinstance(kind, list):
            _refuse(value, kind)
        elif kind is not None:
            dtype, dimensions, contiguous = kind
            fits = (
                isinstance(value, np.ndarray)
                and value.dtype == dtype
                and value.ndim == dimensions
                and (value.flags.carray if contiguous else value.flags.behaved)
            )
            if not fits:
                raise TypeError(f"{value!r} is not an array of {dimensions} × {dtype}.")
