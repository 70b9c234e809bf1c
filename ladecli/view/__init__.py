"""The terminal: live view, Markdown, tables, consoles."""
