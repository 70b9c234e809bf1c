"""`lade serve`: OpenAI's protocol over HTTP, for programs that speak it."""
