"""Texts of any length, made by a model: translations, summaries, what comes next."""
