"""Files of every kind, corrupted at random: each opens, or is refused in one sentence. See fuzz/files."""

import os
from random import Random

import pytest
from fuzz import files as corrupted
from fuzz.supervisor import supervise


@pytest.mark.skipif(os.name == "nt", reason="pipes, and limits of memory")
def test_two_thousand_corrupted_files():
    lines = []
    report = supervise("files", 2000, say=lines.append)
    assert report.wrong == [], lines
    assert report.counts.total() == 2000
    assert report.counts.keys() == {kind.name for kind in corrupted.KINDS}
    assert all(report.accepted.values())  # of each kind some still open, so that what comes after is tried too


def test_unchanged_files_open(tmp_path):
    """The premise of the test above."""
    dice = Random(0)
    whole = [(kind, files) for kind in corrupted.KINDS for files in kind.made()]
    for number, (kind, files) in enumerate(whole):
        place = tmp_path / str(number)
        for name, contents in files.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(contents)
        for _ in range(3):
            kind.use(place, dice)
