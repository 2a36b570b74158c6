"""The page's source passes its linter, formatter, type checker and unit tests."""

import shutil
import subprocess
from pathlib import Path

import pytest

WEB = Path(__file__).parents[2] / "web"
TOOLS = {"lint": "eslint", "format:check": "prettier", "types": "typescript", "test": "esbuild"}  # npm script: package


@pytest.mark.parametrize("script", TOOLS)
def test_script_passes(script):
    if not (WEB / "node_modules" / TOOLS[script]).is_dir() or shutil.which("npm") is None:
        pytest.skip("the tools of the page are not installed: npm ci --prefix web")
    done = subprocess.run(["npm", "run", "--silent", script], cwd=WEB, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
