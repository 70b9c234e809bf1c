"""What a machine and a model are, and what fits where: known before anything is loaded."""
