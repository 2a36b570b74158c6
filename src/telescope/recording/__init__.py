"""What a watched model did: every attention call, how it is stored, what its heads do, and how it is saved.

Imports survey, trace, tiles, files and the rooms below; knows nothing of models. Read recording.py, then kept.py.
"""

from .recording import Recording
from .saved.open import open_recording as open

__all__ = ["Recording", "open"]
