"""Files corrupted at random, and writers killed at random moments: see fuzz/files and fuzz/kills."""

import os
from random import Random

import pytest
from fuzz import files as corrupted
from fuzz.supervisor import supervise

no_windows = pytest.mark.skipif(os.name == "nt", reason="pipes, forks, kill -9 and limits of memory")


@no_windows
def test_two_thousand_corrupted_files():
    """Each opens, or is refused in one sentence."""
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


@no_windows
def test_kills_at_random_moments():
    """Nothing is lost, and the next run finishes."""
    lines = []
    report = supervise("kills", 28, say=lines.append)
    assert report.wrong == [], lines
    assert report.counts.total() >= 40
    assert report.counts["atlas"] > 5
    assert len(report.counts) > 4  # kinds of what is saved
