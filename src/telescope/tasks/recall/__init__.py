"""Recall: where was N born? A GPT that has read about N is asked (Stanford CS224N, assignment 5)."""
