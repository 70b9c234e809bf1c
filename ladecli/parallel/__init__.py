"""Ranks as processes: how they start, agree, follow and end.  Nothing here imports torch.

Rank 0 is the *leader*, which alone reads, prints and writes files; the others are *followers*.

- `place`      which rank this process is, and a failure that torchrun reports
- `start`      `--parallel K` or torchrun: from a request to ranks that are connected
- `agreement`  what must be equal on all ranks, and what rank 0 decides for them
- `follow`     the tasks that the leader sends, and what a follower does with them

`python -m ladecli.parallel` is a follower of `--parallel K`.
"""
