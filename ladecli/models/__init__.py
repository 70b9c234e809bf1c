"""Models: `find` one, `describe` it, `fit` it to a device, and `load` it."""
