"""How drafts are made: an online n-gram model, the sources that feed it, a speculation budget."""
