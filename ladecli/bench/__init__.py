"""Measure methods on prompts, and report the results."""
