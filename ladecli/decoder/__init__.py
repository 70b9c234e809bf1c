"""The decoder: token ids and tensors in, events out.  It knows no text, screen or file.

Glossary (letters are those of the paper, Fu et al., ICML 2024, arXiv 2402.02057):

- *window* (W): columns of the lookahead window; *ngram* (N): length of its n-grams, so that the
  window has N - 1 rows; *guesses* (G): n-grams kept and verified per first token.
- *current token*: the last committed token.  Its keys and values are not in the cache yet.
- *pending*: committed tokens without keys in the cache; the current token is the last one.
- *draft*: what a strategy wants to try in a step: a tree of candidates, a window block.
- *source*: where a candidate comes from: `context`, `trajectory`, `recycled`.
- *budget*: the most tokens of a step; *width*: those that it has, padding included; of a budget, a
  `Room` or a step that failed, the pending ones before the current token are left out.
- *plain step*: one of the current token alone; costs are counted in such steps, as is the
  *speculation budget*, which is what drafts may lose.
- *accepted*: a draft token that the model itself chooses; *bonus token*: the one that it chooses
  where the accepted path ends.
- *step*: one forward pass that yields tokens: the accepted ones and the bonus token.
- *output*: a token of a step whose logits are wanted.
- *rank*: one of several processes that decode a text together; *share*: what it computes.

This file imports nothing, so that the torch-free parts stay cheap to import.
"""
