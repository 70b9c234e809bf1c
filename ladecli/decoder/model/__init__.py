"""How logits are made: our own forward, transformers' forwards, attention, and their trial."""
