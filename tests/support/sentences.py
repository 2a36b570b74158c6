"""The check that an error is one sentence: the argument, what came, what fits."""

import pytest

import telescope as ts


def says(call, *parts, error=(ValueError, TypeError), longest=240, path=""):
    """Check that the call fails with one short sentence that has all the parts; the path does not count."""
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    missing = [part for part in parts if part not in message]
    assert not missing, message
    assert len(message.replace(str(path), "")) < longest, message
    assert "\n" not in message, message
    return caught.value


def load_says(path, *parts, longest=330, **how):
    """Check that ts.load(path) fails with one sentence that has all the parts; return the sentence."""
    error = says(lambda: ts.load(path, **how), *parts, error=ts.LoadError, longest=longest, path=path)
    assert error.__cause__ is None
    return str(error)
