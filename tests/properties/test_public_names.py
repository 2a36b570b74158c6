"""The names that `import telescope` and `from telescope import *` give."""

import builtins
import subprocess
import sys

import telescope as ts


def fresh(code):
    """Run code in an interpreter of its own, and return what it printed."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_a_star_import_leaves_the_builtins_alone():
    namespace = {}
    exec("from telescope import *", namespace)
    assert not set(dir(builtins)) & (set(namespace) - {"__builtins__", "__doc__", "__name__"})
    assert ts.open is not builtins.open


def test_the_explorer_is_there_after_import_telescope_alone():
    """It is imported on first use: `import telescope` starts no web server and imports no training library."""
    later = ("explorer", "plot", "training", "tasks", "text")
    printed = fresh(
        "import sys, telescope\n"
        f"print(any(name in sys.modules for name in ('starlette', *(f'telescope.{{it}}' for it in {later}))))\n"
        "print(callable(telescope.explorer.show), callable(telescope.training.train))\n"
        f"print({set(later)} <= set(dir(telescope)), hasattr(telescope, 'explorers'))\n"
    )
    assert printed == ["False", "True", "True", "True", "False"]
