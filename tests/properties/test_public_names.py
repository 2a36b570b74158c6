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


def test_a_function_is_found_whatever_was_imported_before():
    """Importing a room binds its name in the package, and some functions have the name of their room."""
    printed = fresh(
        "import telescope.atlases.sums  # first: the whole package is imported while this room is\n"
        "import telescope.surveys.chunked, telescope.traces\n"
        "import telescope.interception.observer, telescope.engines.dispatch\n"
        "import telescope as ts\n"
        "from telescope import survey\n"
        "print(callable(ts.survey), callable(survey), callable(ts.trace), callable(ts.watch), callable(ts.atlas))\n"
        "print(telescope.engines.dispatch.__name__, ts.layers.__name__)\n"
    )
    assert printed == ["True"] * 5 + ["telescope.engines.dispatch", "telescope.layers"]


def test_help_and_completion_import_no_torch():
    """They answer in a fraction of a second; torch takes seconds to import."""
    code = "import sys, telescope.cli; print('torch' in sys.modules, 'numpy' in sys.modules)"
    assert fresh(code) == ["False", "False"]


def test_the_version_is_printed_without_torch():
    code = (
        "import sys\n"
        "from telescope.cli import main\n"
        "sys.argv = ['telescope', '--version']\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    print(end.code, {'torch', 'numpy', 'pydantic'} & {*sys.modules})\n"
    )
    assert fresh(code) == ["telescope", ts.__version__, "0", "set()"]


def test_the_version_is_an_option_of_the_command_line(command):
    """It is listed by --help, and a command after it is not run."""
    assert "--version" in command("--help")[1]
    assert command("--version", "explain") == (0, f"telescope {ts.__version__}\n", "")


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(ts, "atend")
    assert {"attend", "survey", "open", "plot", "lessons"} <= set(dir(ts))
