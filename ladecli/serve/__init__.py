"""`lade serve`: an OpenAI-compatible HTTP server."""
