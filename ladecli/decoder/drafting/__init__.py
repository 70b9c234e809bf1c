"""The making of drafts: sources feed an online n-gram model, and a search finds its best tree."""
