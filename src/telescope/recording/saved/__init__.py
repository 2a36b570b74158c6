"""A recording as a folder: recording.json says what there is, safetensors hold the numbers, one file for each call."""
