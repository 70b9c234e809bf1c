"""Decoding with several ranks: each holds a model, or a part of one, and they agree on every step.

- `transport` what ranks say to one another: whole numbers, equally many from each
- `meeting`   where processes find each other, and learn what became of each other
- `store`     the stores in which they do so: the leader's own, or what torchrun offers
- `likeness`  whether they hold the same weights
- `processes` the transport between processes, over torch.distributed
- `threads`   the transport between threads of one process, to simulate ranks
- `deal`      a step's candidates and window columns, dealt out over the ranks
- `wire`      what a rank found in its share, as whole numbers
- `group`     what the loop asks of a group of ranks; the group of one
- `together`  groups of several: by branches of a step, or as copies of it
"""
