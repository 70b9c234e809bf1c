"""Measuring: contenders on prompts, in turn; what came out as values; what they mean."""
