"""Sessions turn a request into an answer as a stream of text."""
