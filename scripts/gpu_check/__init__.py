"""What issue after issue asks of a GPU, measured in one command: see `main`.

- `again`     the command again, where a fault has ended its process
- `main`      the command: options, parts in order of their worth, the summary
- `journal`   parts with limits of time; every figure is in the file as soon as it is known
- `clock`     times of work on a device, in turns
- `machine`   what there is, and what it can do at best
- `shapes`    models of random numbers in true shapes
- `watching`  captures that say how long they took, and which of their graphs were launched
- `steps`     what a step takes by width, context and attention backend
- `answers`   whole texts: host time, memory, transformers beside it
- `trained`   models that say something: bf16 divergence, end to end
- `tests`     the tests that need a GPU
- `targets`   what was wished for, and the summary
- `profile`   the figures as a profile has them
"""
