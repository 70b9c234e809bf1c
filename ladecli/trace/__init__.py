"""Traces of answers: recorded, replayed and inspected."""
