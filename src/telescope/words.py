"""The words of an error: what was probably meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def hint(given: str, known: Iterable[str]) -> str:
    """did you mean "journey"? Or, where nothing is near, all there are."""
    names = {name.lower(): name for name in known}
    near = get_close_matches(given.lower(), names, n=1, cutoff=0.5)
    return f'did you mean "{names[near[0]]}"?' if near else f"there are {', '.join(names.values())}"
