"""The commands, and the only place where an option exists: a field of a part of their requests.

Everything else is made from these fields: flags and help (`cli`), `LADE_` variables and the config
file (`config`), `/set` and `/show` of a chat, and what a program may ask for (`api`).  An option is
added by adding a field, and a request says which parts a command has.
"""

from __future__ import annotations

from importlib import import_module

from .declare import Options

COMMANDS = {
    "chat": ("answer.ChatRequest", "chat.run"),
    "generate": ("answer.GenerateRequest", "commands.generate.run"),
    "serve": ("commands.ServeRequest", "serve.command.run"),
    "replay": ("commands.ReplayRequest", "trace.replay.run"),
    "bench": ("commands.BenchRequest", "bench.command.run"),
    "verify": ("commands.VerifyRequest", "bench.verify.run"),
    "tune": ("commands.TuneRequest", "commands.tune.run"),
    "profiles": ("commands.ProfileRequest", "commands.profile_list.run"),
    "models": ("commands.ModelsRequest", "commands.model_list.run"),
    "doctor": ("commands.DoctorRequest", "commands.doctor.run"),
    "config": ("commands.ShowRequest", "commands.cli.show_config"),
    "config init": ("commands.InitRequest", "commands.config.run_init"),
}
"""Of every command, its request, below this package, and what runs it.  The docstring of a request
is the command's help, in which the lines after the first paragraph stay as they are."""


def request_of(command: str) -> type[Options]:
    """Return the class of a command's request; only its file is imported."""
    module, _, name = COMMANDS[command][0].partition(".")
    kind: type[Options] = getattr(import_module(f".{module}", __name__), name)
    return kind
