"""How a step is run: by one process, as a captured graph, by a model's own cache, by several ranks.

This file imports nothing.
"""
