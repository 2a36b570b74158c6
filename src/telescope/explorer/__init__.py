"""The explorer: a web server for this machine, and the page it serves, through which a recording is looked at."""

from .notebook import show

__all__ = ["show"]
