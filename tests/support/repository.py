"""The repository as tests see it: pages and the tools that run them, what a `pip install` line brings, and code that
runs where nothing else is installed.
"""

import json
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tools import blocks

__all__ = ["HOME", "PROJECT", "blocks", "distributions_of", "requirements_of", "run_with_only"]

HOME = Path(__file__).parents[2]
PROJECT = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# Runs before the code: hides modules from every import, as if they were not installed.
HIDE = """
import json, sys
from importlib.machinery import PathFinder
hidden = set(json.loads(sys.argv.pop(1)))

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in hidden else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
"""


def requirements_of(requirement):
    """Return what a requirement needs directly: our own package by pyproject.toml, others by their metadata."""
    if canonicalize_name(requirement.name) == PROJECT["name"]:
        optional = PROJECT["optional-dependencies"]
        return [*PROJECT["dependencies"], *(line for extra in requirement.extras for line in optional[extra])]
    try:
        lines = metadata.requires(requirement.name) or []
    except metadata.PackageNotFoundError:
        return []
    extras = requirement.extras or {""}
    needed = []
    for line in lines:
        marker = Requirement(line).marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
            needed.append(line)
    return needed


def distributions_of(line):
    """Return the names of all distributions that pip installs for a requirement, such as "telescope-attention[all]"."""
    waiting = [Requirement(line)]
    seen = set()
    while waiting:
        requirement = waiting.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key not in seen:
            seen.add(key)
            waiting += [Requirement(each) for each in requirements_of(requirement)]
    return {name for name, _ in seen}


def run_with_only(line, code, **how):
    """Run code in a fresh process that can import what pip installs for a requirement, and no other package."""
    wanted = distributions_of(line)
    hidden = [
        module
        for module, owners in metadata.packages_distributions().items()
        if not wanted & {canonicalize_name(owner) for owner in owners}
    ]
    command = [sys.executable, "-c", HIDE + code, json.dumps(hidden)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **how)
