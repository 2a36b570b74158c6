"""Intercept any model whose modules call one of torch's attention functions, or ts.attend.

Read interception.py first: `intercept` is the way of one call. patches.py puts functions of ours
into the place of torch's and finds out which module called; reach.py finds the modules that attend
before they run; calls.py and definition.py read what a call computes from its arguments.
"""

from collections.abc import Iterable

from torch import nn

from .interception import ALONE, attentions, attentions_beside, intercepting

__all__ = ["ALONE", "attentions", "attentions_beside", "intercepting", "may_attend_across"]


def may_attend_across(attentions: Iterable[nn.Module]) -> bool:
    """Return whether some call of these may read its keys from another sequence: of any."""
    return True
