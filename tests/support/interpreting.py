"""Triton's interpreter, without the work that it repeats for every call of a function inside of a kernel."""

from functools import cache
from inspect import ismodule


def patch_language_once():
    """Let the interpreter replace the functions of triton.language once for each launch of a kernel.

    It replaces them again whenever a kernel calls another jitted function, although they are replaced already. The
    search for them was a third of the time of the kernels' tests.
    """
    from triton.runtime import interpreter

    replace_all = interpreter._patch_lang
    if replace_all.__name__ == "replace_once":
        return  # another module of tests was here before

    replaced = set()

    @cache
    def modules_of(function):
        """Return the modules of triton whose functions this one may call, as the interpreter finds them."""
        seen = [value for value in function.__globals__.values() if ismodule(value)]
        return frozenset(value.__name__ for value in seen if value in (interpreter.tl, interpreter.tl.core))

    class Scope(interpreter._LangPatchScope):
        """What a launch replaced. At its end all is as before, and the next launch begins anew."""

        def restore(self):
            replaced.clear()
            super().restore()

    def replace_once(function):
        modules = modules_of(function)
        if modules in replaced:
            return Scope()
        replaced.add(modules)
        return replace_all(function)

    interpreter._LangPatchScope = Scope
    interpreter._patch_lang = replace_once
