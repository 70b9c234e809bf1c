"""From a request to an answer as a stream of text: opening a model, ranks, ids and text."""
