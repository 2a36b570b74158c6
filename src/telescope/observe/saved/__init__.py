"""A recording as a folder: recording.json says what there is, safetensors hold the numbers, one file for each call."""

from .open import open_recording
from .save import save_recording

__all__ = ["open_recording", "save_recording"]
