"""Answers that students give to the checks of the lessons: wrong ones, each with the words that its reply must
contain, and right ones that are written in another way than the lesson's.

A table has a list for each check. A wrong answer is (label, solution, words): `words` is a regular expression that
names the mistake. Long solutions are the lesson's own with one or two edits of their text.
"""
