"""Shapes in signatures are checked while testing. The doors (choose, trace) are left out: they check by themselves."""

import pytest
import torch
from jaxtyping import install_import_hook

HOOKED = ["telescope.attention", "telescope.engines.reference", "telescope.engines.sdpa", "telescope.layers"]
install_import_hook(HOOKED, "checking.typechecker")

torch.set_num_threads(1)  # the tests run side by side


@pytest.fixture
def command(monkeypatch, capsys):
    """command("explain", "--json") gives the exit code, what was printed and what was complained about."""

    def run(*arguments):
        from telescope.cli import main

        monkeypatch.setattr("sys.argv", ["telescope", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, *capsys.readouterr()

    return run
