"""Reading and writing files safely: checked paths, safetensors, atomic replacement, definitions as JSON, errors.

Imports attention and words. Read atomic.py for how a folder is replaced as a whole, paths.py for what may be opened.
"""
