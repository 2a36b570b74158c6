"""Whole tasks, one for each command: explaining/, learning/ (recipes), writing.py, look.py (watch),
doctor.py.

May import every room but explorer and cli. Read the file with the command's task first: what the
command line prints is made there, so that it can be used from Python as well.
"""
