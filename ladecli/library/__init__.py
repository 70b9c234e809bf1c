"""Models at rest: their names, the cache of the hub, what lies in a folder, and what is wrong."""
