"""How drafts are made: sources feed an online n-gram model, and a search finds its best tree."""
