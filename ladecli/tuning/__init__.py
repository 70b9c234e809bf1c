"""Finding better settings: what steps cost here, and which settings are fastest at that."""
