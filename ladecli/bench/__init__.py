"""Measuring: methods on prompts, in turn; what came out as values; what they mean."""
