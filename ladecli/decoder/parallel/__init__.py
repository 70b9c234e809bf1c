"""Decoding with several ranks, which agree on every step.

- `groups`       what the loop asks of the ranks; alone, lookahead parallelism, tensor parallelism
- `partition`    a step's draft, divided over ranks
- `messages`     what ranks send each other in a step
- `transport`    how: over torch.distributed
- `fingerprint`  whether ranks hold the same weights
"""
