"""Ranks as processes: how they start, agree, follow and end.  Nothing here imports torch.

Rank 0 is the *leader*, which alone reads, prints and writes files; the others are *followers*.

- `place`   which rank this process is, and on which device
- `start`   the leader: `--parallel K` or torchrun, from a request to ranks that decode
- `follow`  a follower; and what all ranks compare before they decode
"""
