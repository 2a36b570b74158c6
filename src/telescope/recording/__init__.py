"""Everything kept of a watched model: its attention calls, their storage, the habits of heads,
saving and opening.

Imports survey, trace, tiles, files and the rooms below them, and nothing about models. Read
recording.py first, then recorded_call.py.
"""

from .opening import open_recording as open
from .recording import Recording

__all__ = ["Recording", "open"]
