"""Record, replay and inspect traces of answers."""
