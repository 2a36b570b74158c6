"""The explorer: a local web server and its page, for looking into recordings and sentences in a
browser or a notebook.

May import every room below it (tasks, watch, recording, tiles, trace, ...); only cli imports this
room. Read api.py first: it lists every request and its answer; web/ holds the page that sends them.
"""

from .notebook import show

__all__ = ["show"]
