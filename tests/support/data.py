"""Data that are not in the repository: a folder beside it, or the one that TELESCOPE_DATA names."""

import os
from pathlib import Path

import pytest

DATA = Path(os.environ.get("TELESCOPE_DATA", Path(__file__).parents[3] / "shared" / "data"))


def folder(name):
    if not (DATA / name).is_dir():
        pytest.skip(f"there is no {DATA / name}; TELESCOPE_DATA says where the data are")
    return DATA / name
