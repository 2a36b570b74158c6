"""Kill -9 at random moments of writing: nothing is lost, and the next run finishes. See fuzz/kills/."""

import os

import pytest
from fuzz.supervisor import supervise


@pytest.mark.skipif(os.name == "nt", reason="Windows can neither fork nor kill -9")
def test_kills_at_random_moments():
    lines = []
    report = supervise("kills", 28, say=lines.append)
    assert report.wrong == [], lines
    assert report.counts.total() >= 40
    assert report.counts["atlas"] > 5
    assert len(report.counts) > 4  # kinds of what is saved
