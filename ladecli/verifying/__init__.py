"""Is the text the same?  Answers against plain decoding's, and what explains a difference."""
