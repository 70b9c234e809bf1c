"""`/set`: an option of a chat is changed, or the message says why it cannot be."""

from __future__ import annotations

import pytest

from ladecli.decoder.errors import ConfigError
from ladecli.errors import UsageError
from ladecli.options import ChatRequest
from ladecli.repl.changes import change


def test_a_change_says_what_it_clashes_with() -> None:
    request = ChatRequest(window=9, ngram=9, origins={"window": "LADE_WINDOW"})
    with pytest.raises(ConfigError, match=r"^budget 3 is smaller than .* \(LADE_WINDOW\)$"):
        change(request, "budget", "3")
    with pytest.raises(UsageError, match=r"^there is no setting 'origins'"):
        change(request, "origins", "x")
