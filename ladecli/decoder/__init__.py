"""The decoder: token ids and tensors in, events out.  It knows no text, screen or file.

Glossary (letters are those of the paper, Fu et al., ICML 2024, arXiv 2402.02057):

- *step*: one forward pass that yields at least one token.
- *current token*: the last committed token.  Its keys and values are not in the cache yet: the next
  step feeds it.
- *pending*: the committed tokens that the cache lacks; the current token is the last of them.
- *strategy*: decides what to try in a step; *executor*: runs the step.
- *draft*: what a strategy tries in one step: a *tree* whose *nodes* are candidate tokens, and
  possibly a *window*.
- *window* (W): the lookahead window of W columns; *ngram* (N): the length of its n-grams, so that
  it has N - 1 rows of *cells*; *guesses* (G): n-grams kept and verified per first token.
- *source*: the origin of a candidate: `context` (the text), `trajectory` (the window), or
  `recycled` (tokens that the model found probable earlier), or `forced` (the only token that a
  grammar allows).
- *accepted*: a draft token that the model itself chooses; *bonus token*: the token that the model
  chooses after the last accepted one.
- *output*: a row of logits that a step is asked for: those of the current token, of each node, and
  of the window's last row.
- *plain step*: a step without a draft; costs are counted in plain steps.
- *width*: the tokens in a step, padding included; *budget*: the most tokens in a step.  Neither
  counts the pending tokens before the current one, unless they are among `Room.loads`.
- *speculation budget*: how many plain steps drafts may lose in all before they pause.
- *slot*: the place of one token in the cache.
- *rotary boundary*: the length of a text beyond which the model's rotary frequencies change: once,
  or with every further token (they *grow*).  Few models have one.
- *rank*: one of several processes that decode a text together; *share*: the part of a draft that a
  rank computes.

This file imports nothing, so that the torch-free parts stay cheap to import.
"""
