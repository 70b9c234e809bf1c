"""What several GPUs would bring, by a cost model: estimated before anybody rents them.

- `request` what was asked for, and which GPUs there are to be
- `typical` shapes of well-known models, by their sizes
- `gpus`    a kind of GPU by its name: rates and memory, from the hardware profiles
- `links`   what joins GPUs, and what an exchange over it takes
- `growth`  tokens per step by the number of ranks, as measured
- `cost`    what a step takes in each mode
- `outlook` all modes on more and more GPUs, and where more of them stop paying
- `shortage` why a model fits on none of them, and what would help
- `words`   verdicts and assumptions, in words
- `report`  tables for people
- `as_json` the same for programs
"""
