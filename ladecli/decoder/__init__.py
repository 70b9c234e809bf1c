"""The decoder: token ids and tensors in, events out.  It knows no text, screen or file.

A map of the room, in the order in which a step passes through it:

- `engine`      the only loop: propose, lay out, forward, verify, keep, observe, yield; `job` is
  what one generation was asked for
- `reader`      the prompt in chunks, into the cache
- `limits`      where a text ends: applied once, at commit
- `memory`      what to try next where memory does not suffice
- `strategies`  what to try next: autoregressive, jacobi, prompt lookup, lookahead
- `window`      the 2-D window of Jacobi iterations
- `pool`        the paper's n-gram pool: what the window found, under its first token
- `sources`     context, trajectory, recycled: each turns what it observes into evidence
- `suffix_automaton`  the longest passage that the text repeats
- `ngrams`      the online n-gram model that all sources feed, and the tree it proposes; what takes
  time in it is `compiled`
- `draft_state` all that drafters remember; it outlives a generation.  `draft_arrays`: on the disk
- `step_cost`   what a step costs by its width: how large a tree pays
- `ledger`      stops drafts that cost more than they bring
- `tree`        candidates merged by common prefix
- `layout`      token order, positions and visibility of one step; `bits` holds who sees whom
- `parallel`    several ranks: who computes what of a step, and what they found together
- `runner`      the forward pass of one step; `places` says on which devices
- `graphs`      the same, each kind of step captured once and launched as a whole from then on:
  `capture` records CUDA graphs, `static_step` is what a step of fixed shapes reads and writes
- `lean`        fewer and larger operations between a forward's products, where a trial shows
  that nothing else changes
- `attention`   how a step attends to the committed text and to itself: several backends, and
  `attention.choice`, which finds the fastest
- `kv_cache`    keys and values by slot; keeping the accepted ones is one gather; `tenancy` says
  whose they are
- `readout`     what is read out of a step's logits, for all rows and in one copy: the most
  probable tokens, tokens that are drawn, both with a repetition penalty
- `sampling`    logits to a token, with one uniform number per position
- `verify`      the walk that accepts
- `stopwatch`   where the time of a step goes, for those who ask
- `recheck`     scores a text again, by several forwards that are all right
- `movement`    how far a difference of two texts may come from rounding
- `support`     which models this works for, and why not for others; `probe` tries unknown ones,
  and whether steps can be captured
- `observation` what strategies and sources are told of a step when it is over: among it, the
  most probable `successors` of its tokens
- `checksum`    by which ranks notice that they do not do the same
- `config`, `events`, `errors`   the values that cross the door

Glossary (the letters are those of the paper, Fu et al., ICML 2024, arXiv 2402.02057):

- *source*: where a candidate comes from.  `context`: the prompt and the accepted text;
  `trajectory`: the window, its n-grams and what the model found probable behind its cells;
  `recycled`: what the model found probable behind the text and behind candidates.
- *evidence*: that a token followed a context, or how probable the model found it there.
- *budget*: the most tokens of a step; *width*: those that it has, padding included.
- *window* (W): columns of the lookahead window; *ngram* (N): length of its n-grams, so the
  window has N - 1 rows; *guesses* (G): n-grams kept and verified per first token.
- *current token*: the last committed token.  Its keys and values are not in the cache yet.
- *pending*: committed tokens without keys in the cache; the current token is the last one.
- *draft*: what a strategy wants to try in a step: a tree of candidates, a window block.
- *accepted*: a draft token that the model itself would have chosen.
- *bonus token*: the token that the model chooses where the accepted path ends.
- *rank*: one of several processes that decode a text together; rank 0 is the *leader*, the others
  are *followers*.
- *share*: what one rank computes of a draft.
- *step*: one forward pass that yields tokens: the accepted ones and the bonus token.
- *captured*: recorded once as a CUDA graph, with all addresses and shapes fixed for good; what
  changes from step to step is sent into a buffer that the graph reads.
- *reach*: slots of the cache that a captured step's attention is handed, filled or not.  (Of a
  sliding window: how far back it sees.)
- *moves*: keys of accepted tokens that have to come to the front of the cache.
- *settle*: to do now what a cache put off: its moves.
- *output*: a token of a step whose logits are wanted; *row*: where its logits stand.

This file imports nothing, so that the torch-free parts stay cheap to import.
"""
