"""A recording as a folder: recording.json describes the calls, a safetensors file for each call
holds its tensors.

Imports the recording room and files. Read save.py first, then open.py; manifest.py has the checks
of recording.json.
"""
