"""A suffix automaton, which finds the longest suffix of a growing text that occurred before, in
constant time per token.

Source: Blumer et al., "The smallest automaton recognizing the subwords of a text", 1985.  Each
state stands for the substrings that end at the same places.  Memory is linear: a text of n
tokens has at most 2n states.
"""

from __future__ import annotations

from collections.abc import Iterable


class SuffixAutomaton:
    """Holds every substring of a text, and where it first ended.

    Attributes:
        tokens: the text so far; append to it with `extend` only.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        # By state: the state that each next token leads to, the state of the longest suffix that
        # ends at more places, the length of the longest substring, and the first index where it
        # ends.
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._end = [-1]
        self._last = 0

    def __len__(self) -> int:
        return len(self.tokens)

    def __contains__(self, tokens: Iterable[int]) -> bool:
        state = 0
        for token in tokens:
            if (following := self._next[state].get(token)) is None:
                return False
            state = following
        return True

    def extend(self, token: int) -> None:
        """Append one token; amortised constant time."""
        following, link, length = self._next, self._link, self._length
        new = len(following)
        following.append({})
        link.append(0)
        length.append(length[self._last] + 1)
        self._end.append(len(self.tokens))
        self.tokens.append(token)
        state = self._last
        while state >= 0 and token not in following[state]:
            following[state][token] = new
            state = link[state]
        if state >= 0:
            target = following[state][token]
            if length[state] + 1 < length[target]:
                target = self._split(state, token, target)
            link[new] = target
        self._last = new

    def _split(self, state: int, token: int, target: int) -> int:
        """Give the shorter substrings of `target`, which now end here too, their own state."""
        following, link = self._next, self._link
        clone = len(following)
        following.append(following[target].copy())
        link.append(link[target])
        self._length.append(self._length[state] + 1)
        self._end.append(self._end[target])
        while state >= 0 and following[state].get(token) == target:
            following[state][token] = clone
            state = link[state]
        link[target] = clone
        return clone

    def longest_match(self) -> tuple[int, int]:
        """Return the longest suffix of the text that also ended somewhere before its end.

        Returns:
            Its length, 0 if there is none, and the index in `tokens` after its first occurrence.
        """
        if self._last == 0:
            return 0, 0
        state = self._link[self._last]
        return self._length[state], self._end[state] + 1
