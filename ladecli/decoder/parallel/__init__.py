"""Decoding with several ranks, which agree on every step.

- `groups`     what the loop asks of the ranks; alone, lookahead parallelism, tensor parallelism
- `partition`  a step's draft, divided over ranks
- `messages`   what a rank sends in a step
- `transport`  how it gets there: torch.distributed
"""
