"""The only place where an option exists: a field of a part that commands' requests are made of.

Everything else is made from these fields: flags and help (`cli`), `LADE_` variables and the config
file (`config`), `/set` and `/show` of a chat, and what a program may ask for (`api`).  An option is
added by adding a field, and a request says which parts a command has.
"""

from __future__ import annotations

from importlib import import_module

from .declare import Options

COMMANDS = {
    "chat": "answer.ChatRequest",
    "generate": "answer.GenerateRequest",
    "serve": "answer.ServeRequest",
    "replay": "commands.ReplayRequest",
    "bench": "commands.BenchRequest",
    "bench compare": "commands.CompareRequest",
    "verify": "commands.VerifyRequest",
    "tune": "commands.TuneRequest",
    "plan": "commands.PlanRequest",
    "profiles": "commands.ListRequest",
    "profiles show": "commands.ProfileRequest",
    "models": "commands.JsonRequest",
    "doctor": "commands.DoctorRequest",
    "config init": "commands.InitRequest",
    "config show": "declare.Options",
    "config path": "declare.Options",
}
"""The request of every command, below this package."""


def request_of(command: str) -> type[Options]:
    """The class of a command's request; only its file is imported."""
    module, _, name = COMMANDS[command].partition(".")
    kind: type[Options] = getattr(import_module(f".{module}", __name__), name)
    return kind
