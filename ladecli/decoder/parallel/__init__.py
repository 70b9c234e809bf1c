"""Decoding with several ranks, which agree on every step.

- `groups`     what the loop asks of the ranks; alone, lookahead parallelism, tensor parallelism
- `partition`  a step's draft, divided over ranks
- `transport`  how it gets there: torch.distributed
"""
