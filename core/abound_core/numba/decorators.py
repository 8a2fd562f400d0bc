"""The decorators of kernels: how numba compiles a function, and into what.

A kernel that Python calls becomes machine code. Most kernels are called by kernels only; their code becomes a part of
each caller and is optimised there. Numba would optimise and compile it by itself as well, and once more in each caller
of the caller, which takes nearly twice as long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import binding
from numba import njit, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import AnalysisPass, register_pass
from numba.core.typed_passes import AnnotateTypes
from numba.extending import overload


class _InnerLibrary(JITCodeLibrary):
    """The code of a kernel for other kernels, neither optimised nor compiled to machine code.

    The kernels that call it do both, with its code as a part of theirs. Numba would do it once more for each.
    """

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        code = self._final_module
        for function in code.functions:
            if not function.is_declaration and function.linkage == binding.Linkage.external:
                function.linkage = "linkonce_odr"
        self._shared_module = code
        environments = [v.name for v in code.global_variables if v.name.startswith("_ZN08NumbaEnv")]
        empty = "\n".join(f"@{name} = common global i64 0" for name in environments)
        self._final_module = binding.parse_assembly(empty)
        self._final_module.name = code.name
        self._final_module.data_layout = code.data_layout
        super()._finalize_final_module()


def _has_pointer(kind: Any) -> bool:
    return isinstance(kind, types.CPointer) or any(_has_pointer(item) for item in getattr(kind, "types", ()))


@register_pass(mutates_CFG=False, analysis_only=True)
class _ChooseLibrary(AnalysisPass):
    """Choose where the code goes. Python has no pointers: only other kernels can call a kernel that takes one."""

    _name = "choose_library"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        if any(_has_pointer(kind) for kind in state.args):
            state.flags.no_cpython_wrapper = True
        if state.flags.no_cpython_wrapper:
            state.library = _InnerLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
            state.library.enable_object_caching()
        return False


class _Compiler(CompilerBase):
    def define_pipelines(self) -> list[Any]:
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(_ChooseLibrary, AnnotateTypes)
        passes.finalize()
        return [passes]


_options: Any = {
    "cache": True,
    "nogil": True,
    "error_model": "numpy",
    "no_cfunc_wrapper": True,
    "pipeline_class": _Compiler,
}

kernel = njit(**_options)
"""Compiled at the first call and cached. Division by zero follows IEEE 754 instead of raising an exception."""

_inner_options: Any = _options | {"no_cpython_wrapper": True}

inner = njit(**_inner_options)
"""A kernel for other kernels only: a call from Python crashes.

It compiles several times as fast, because only the kernels that call it are optimised and compiled to machine code.
"""

inlined = njit(**_inner_options, forceinline=True)
"""An inner kernel that is inlined into each kernel that calls it."""


def unless(done: type) -> Callable[[Callable[[Any], Any]], Any]:
    """Make a kernel of one argument return the argument as it is if it is a ``done``, a NamedTuple.

    So kernels that begin with it serve callers with arrays and callers with pointers. It is inlined, for kernels only.
    """

    def decorate(function: Callable[[Any], Any]) -> Any:
        take: Any = inlined(function)

        def convert(given: Any) -> Any:
            raise TypeError(f"{function.__name__} is called by kernels only")

        @overload(convert, jit_options={"forceinline": True})
        def _convert(given):
            if issubclass(given.instance_class, done):
                return lambda given: given
            return lambda given: take(given)

        convert.__doc__ = function.__doc__
        return convert

    return decorate
