"""A chat in the terminal: the session, its commands, its options and its input."""
