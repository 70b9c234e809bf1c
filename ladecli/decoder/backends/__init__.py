"""Everything that exists for speed, or to run other people's forwards; `load` chooses from it.

This file imports nothing.
"""
