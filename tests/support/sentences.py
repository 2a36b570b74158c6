"""The check that an error is one sentence: the argument, what came, what fits."""

import pytest


def says(call, *parts):
    """Check that the call fails with one short sentence that has all the parts."""
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    message = str(caught.value)
    missing = [part for part in parts if part not in message]
    assert not missing, message
    assert len(message) < 240, message
    assert "\n" not in message, message
