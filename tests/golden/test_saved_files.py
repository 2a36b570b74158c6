"""Models, recordings and atlases that earlier versions saved open, and hold the numbers that they held then."""

import json
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the atlas extra is not installed")
from support import saved_files

VERSIONS = sorted((Path(__file__).parent / "saved").iterdir())


@pytest.mark.parametrize("folder", VERSIONS, ids=lambda folder: folder.name)
def test_files_of_an_earlier_version_hold_the_same_numbers(folder):
    then = json.loads((folder / "figures.json").read_text())
    now = json.loads(json.dumps(saved_files.figures(folder)))
    assert now.keys() == then.keys()
    for name, expected in then.items():
        assert_same(now[name], expected, name)


def assert_same(found, expected, where):
    """Compare what an earlier version read from a file; a later one may read more columns."""
    if isinstance(expected, dict):
        assert expected.keys() <= found.keys(), where
        for key, value in expected.items():
            assert_same(found[key], value, f"{where} {key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for number, value in enumerate(expected):
            assert_same(found[number], value, f"{where} {number}")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5, nan_ok=True), where
    else:
        assert found == expected, where
