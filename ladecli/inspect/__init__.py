"""A recorded generation: its file, and every step of it as the figures of the paper."""
