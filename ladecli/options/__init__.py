"""The commands and their options.  An option is a field of a group; a request combines groups.

Flags and help (`cli`), `LADE_` variables and the config file (`config`), `/set` and `/show` of a
chat, and the arguments of the Python API (`api`) are all made from these fields.
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
"""The request of every command, in this package, and the function that runs it.  The docstring of a
request is the command's help; lines after its first paragraph keep their breaks."""


def request_of(command: str) -> type[Options]:
    """Return the class of a command's request, importing only its file."""
    module, _, name = COMMANDS[command][0].partition(".")
    kind: type[Options] = getattr(import_module(f".{module}", __name__), name)
    return kind
