"""Files of every kind, spoilt at random: each opens, or is refused in one sentence. See mutations.py."""

import os

import pytest

import mutations


@pytest.mark.skipif(os.name == "nt", reason="pipes, and limits of memory")
def test_two_thousand_spoilt_files():
    said = []
    told = mutations.supervise(2000, seed=0, say=said.append)
    assert told["raw"] == [], said
    assert sum(told["counts"].values()) == 2000
    assert told["counts"].keys() == {kind.name for kind in mutations.KINDS}
    assert all(told["opened"].values())  # of each kind some still open, so that what comes after is tried too


def test_what_is_not_spoilt_opens(tmp_path):
    """Otherwise nothing would have been shown."""
    dice = mutations.Random(0)
    whole = [(kind, files) for kind in mutations.KINDS for files in kind.made()]
    for number, (kind, files) in enumerate(whole):
        place = tmp_path / str(number)
        for name, contents in files.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(contents)
        for _ in range(3):
            kind.use(place, dice)
