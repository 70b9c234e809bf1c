"""Ranks as processes: how they come about, agree, follow and end.  Nothing here knows torch.

A *rank* is one process of a group; rank 0 is the *leader*, which alone reads, draws and writes
files, and the others are *followers*.

- `place`     which rank this process is: alone, what `--parallel K` makes it, or what torchrun says
- `start`     from a request to ranks that have met; and their end, whatever that is
- `launcher`  torchrun as the child that starts the followers of `--parallel K`
- `greeting`  what must be equal on all ranks, and the line for what is not
- `agreement` what they settle before they decode: the context, and that models are alike
- `crew`      what the leader tells its followers
- `follow`    what a follower does
- `last_word` a line for torchrun's summary, where that is what people see last

`python -m ladecli.parallel` is what a follower of `--parallel K` runs.

torch comes in by `decoder.parallel`: `meeting` is where ranks find each other, and `processes`
carries what they say.
"""
