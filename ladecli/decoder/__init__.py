"""The decoder: token ids and tensors in, events out.  It knows no text, screen or file.

A map, in the order in which a step passes through it:

- `load`        which forward runs a model, and whether a trial step agrees
- `decoder`     a model and its cache, which one generation at a time owns
- `engine`      the only loop: propose, lay out, forward, verify, commit, observe
- `strategy`    what a strategy is; what passes between it and the loop
- `strategies`  what to try next: the paper's lookahead, lookahead with all sources, and baselines
- `window`      the paper's 2-D window of Jacobi iterations, and the pool of its n-grams
- `drafting`    the online n-gram model, the `sources` that feed it, the search for its best tree,
  the speculation budget, and the store that outlives a generation
- `step_cost`   what a step costs by its width: how large a tree pays
- `tree`        candidates, and the walk that accepts them
- `layout`      token order, positions and the attention mask of a step
- `run`         how a step is run: `executor`, which the loop asks and which reads prompts; a
  `runner` of single operations, `captured` steps; several `ranks`
- `model`       how logits are made: our own forward (`transformer`), by `families`, joined
  `weights` and `rotary` tables; with fused `triton_kernels` on a GPU, and on a CPU by TorchScript
  (`cpu_layers`), with `products` of weights in `cpu_formats`.
  `stock`: every other family, by transformers' forward; `own_cache`: those that verify one
  continuation at a time, or none, with their own cache.  `attention`: backends, and the mask in
  the form that each reads
- `kv_cache`    keys and values by slot; `transfer`: copies between host and device
- `sampling`    logits to tokens, one way for all; `noise`: what they are drawn with;
  `triton_ranking`: the most probable ones on a GPU
- `rescoring`   logits of a text again: rounding, or a fault?
- `config`, `events`, `errors`   the values that cross the door
- `compat`, `quiet`, `faults`   what differs between versions of transformers; warnings of
  libraries; memory that runs out, and devices that are lost

Glossary (letters are those of the paper, Fu et al., ICML 2024, arXiv 2402.02057):

- *window* (W): columns of the lookahead window; *ngram* (N): length of its n-grams, so that the
  window has N - 1 rows; *guesses* (G): n-grams kept and verified per first token.
- *current token*: the last committed token.  Its keys and values are not in the cache yet.
- *pending*: committed tokens without keys in the cache; the current token is the last one.
- *draft*: what a strategy wants to try in a step: a tree of candidates, a window block.
- *source*: where a candidate comes from: `context`, `trajectory`, `recycled`.
- *budget*: the most tokens of a step; *width*: those that it has, padding included.
- *accepted*: a draft token that the model itself chooses; *bonus token*: the one that it chooses
  where the accepted path ends.
- *step*: one forward pass that yields tokens: the accepted ones and the bonus token.
- *output*: a token of a step whose logits are wanted.
- *rank*: one of several processes that decode a text together; *share*: what it computes.

This file imports nothing, so that the torch-free parts stay cheap to import.
"""
