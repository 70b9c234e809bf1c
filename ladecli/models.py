"""The only place where models and tokenizers are loaded."""

from __future__ import annotations

import contextlib
import difflib
import errno
import importlib.util
import logging
import os
import socket
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import constants as hub_constants
from huggingface_hub import errors as hub_errors
from huggingface_hub import scan_cache_dir, try_to_load_from_cache
from huggingface_hub.utils import enable_progress_bars
from safetensors import SafetensorError

from .decoder.config import SamplingConfig
from .decoder.errors import UnsupportedModelError
from .decoder.support import examine
from .device import Device, detect
from .errors import LoadError, UsageError
from .settings import LoadOptions

DEMO = "demo"
_NOT_APPLIED = frozenset(
    {"no_repeat_ngram_size", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens"}
    | {"forced_bos_token_id", "forced_eos_token_id", "min_length", "min_new_tokens"}
    | {"sequence_bias", "exponential_decay_length_penalty", "guidance_scale", "num_beams"}
)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its tokenizer.

    Attributes:
        name: as the user gave it.
        model: a causal language model in evaluation mode.
        tokenizer: its tokenizer.
        device: where it runs.
        notices: lines that the user should see.
        seconds: what loading took.
    """

    name: str
    model: Any
    tokenizer: Any
    device: Device
    notices: tuple[str, ...]
    seconds: float

    @property
    def stop_ids(self) -> frozenset[int]:
        """Every id that ends a text, as the model's generation config says."""
        ids = self.model.generation_config.eos_token_id
        if ids is None:
            ids = self.tokenizer.eos_token_id
        if ids is None:
            return frozenset()
        return frozenset([ids] if isinstance(ids, int) else ids)

    @property
    def ignored_settings(self) -> list[str]:
        """Settings of the generation config that change even greedy text, and are not applied."""
        given = self.model.generation_config.to_diff_dict()
        return sorted(name for name in _NOT_APPLIED if given.get(name))

    @property
    def repetition_penalty(self) -> float:
        """The penalty of the model's generation config, which applies to greedy decoding too."""
        return float(self.model.generation_config.repetition_penalty or 1.0)

    @property
    def sampling(self) -> SamplingConfig:
        """How the model's own generation config wants tokens to be chosen.

        Raises:
            ConfigError: it holds a value that is out of range.
        """
        config = self.model.generation_config
        if not config.do_sample:
            return SamplingConfig(repetition_penalty=self.repetition_penalty)
        temperature = 1.0 if config.temperature is None else config.temperature
        return SamplingConfig(
            temperature=float(temperature),
            top_k=int(config.top_k or 0),
            top_p=1.0 if config.top_p is None else float(config.top_p),
            min_p=float(config.min_p or 0.0),
            repetition_penalty=self.repetition_penalty,
        )


def resolve(name: str) -> str:
    """The folder or hub name behind what the user typed, checked as far as is cheap.

    Raises:
        LoadError: a folder that is no model, or a path that does not exist.
    """
    if name == DEMO:  # a folder of that name is ./demo
        return str(Path(__file__).with_name("demo"))
    path = Path(name).expanduser()
    looks_local = name.startswith((".", "/", "~")) or name.count("/") > 1 or path.exists()
    if not looks_local:
        return name
    if path.is_file():
        raise LoadError(f"{name} is a file; give the folder that holds config.json")
    if not path.is_dir():
        raise LoadError(f"there is no model folder {name}{_suggest(name)}")
    if not (path / "config.json").is_file():
        raise LoadError(f"{name} holds no config.json; give a folder in Hugging Face format")
    return str(path)


def on_this_machine(name: str) -> bool:
    """Whether the model needs no download, as far as its configuration tells."""
    source = resolve(name)
    if Path(source).is_dir():
        return True
    with contextlib.suppress(hub_errors.HFValidationError):
        return isinstance(try_to_load_from_cache(source, "config.json"), str)
    return True  # no name at all: `load` says so


def _suggest(name: str) -> str:
    """A hint at the nearest models that are on this machine."""
    known = [DEMO, *_cached_names()]
    folder = Path(name).expanduser().parent
    with contextlib.suppress(OSError):
        known += [str(p) for p in folder.iterdir() if (p / "config.json").is_file()]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    listed = ", ".join(near or sorted(known)[:3])
    return f"; {'did you mean' if near else 'models on this machine'}: {listed}"


def _cached_names() -> list[str]:
    with contextlib.suppress(hub_errors.CacheNotFound, OSError):
        return sorted(r.repo_id for r in scan_cache_dir().repos if r.repo_type == "model")
    return []


def load(name: str, options: LoadOptions | None = None, *, progress: bool = True) -> LoadedModel:
    """Load a model and its tokenizer.

    Args:
        name: a Hugging Face id, a local folder, or "demo".
        options: how.
        progress: whether downloads show progress bars on stderr.

    Raises:
        UsageError: there is no such device, or the options do not go together.
        LoadError: it cannot be loaded; the message says why and what helps.
        UnsupportedModelError: it cannot be decoded here; said before any weights are read.
    """
    began = time.perf_counter()
    options = options or LoadOptions()
    device = detect(options.device)
    source = resolve(name)
    place = _placement(options, device)
    hub = {
        "revision": options.revision,
        "local_files_only": options.offline or not (Path(source).is_dir() or _hub_answers()),
        "trust_remote_code": options.trust_remote_code,
    }
    with _explained(name), _quiet(progress):
        config = transformers.AutoConfig.from_pretrained(source, **hub)
        examine(config)
        dtype, notices = _dtype(options, device, config)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **hub)
        model, found = transformers.AutoModelForCausalLM.from_pretrained(
            source,
            config=config,
            dtype=dtype,
            output_loading_info=True,
            **place,
            **hub,
        )
    # transformers fills what is missing with random numbers.
    missing = sorted([*found["missing_keys"], *(key for key, *_ in found["mismatched_keys"])])
    if missing:
        raise LoadError(
            f"{name}: the weights are incomplete ({missing[0]} and {len(missing) - 1} more are"
            " missing or of another shape); download or copy them again"
        )
    if model.can_generate() is False:
        raise LoadError(f"{name} is no causal language model, so it cannot continue a text")
    if device.kind != "cpu" and "device_map" not in place:
        with _explained(name):
            model.to(device.torch_name)
    model.eval()
    seconds = time.perf_counter() - began
    return LoadedModel(name, model, tokenizer, device, notices, seconds)


def _dtype(options: LoadOptions, device: Device, config: Any) -> tuple[Any, tuple[str, ...]]:
    """The type of the weights, and what to tell the user about it."""
    if options.dtype != "auto":
        return getattr(torch, options.dtype), ()
    if device.kind != "cpu":
        return "auto", ()
    parameters = _parameter_estimate(config.get_text_config(decoder=True))
    if parameters * 4 > _memory():
        gigabytes = parameters * 4 / 1e9
        notice = f"float32 needs about {gigabytes:.0f} GB, more than is there: using bfloat16"
        return torch.bfloat16, (notice,)
    return torch.float32, ()


def _parameter_estimate(text: Any) -> float:
    """Parameters of a decoder-only model, roughly, from its shape."""
    hidden, layers = text.hidden_size, text.num_hidden_layers
    inner = getattr(text, "intermediate_size", None) or 4 * hidden
    experts = getattr(text, "num_local_experts", None) or 1
    return float(layers * hidden * (4 * hidden + 3 * inner * experts) + text.vocab_size * hidden)


def _memory() -> float:
    """Bytes of main memory."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return float("inf")


def _placement(options: LoadOptions, device: Device) -> dict[str, Any]:
    """Keywords that say where the weights go and in how many bits."""
    accelerate = importlib.util.find_spec("accelerate") is not None
    place: dict[str, Any] = {}
    if options.device_map is not None:
        if not accelerate:
            raise UsageError("--device-map needs accelerate: pip install accelerate")
        place["device_map"] = options.device_map
    elif device.kind != "cpu" and accelerate:
        # Straight to the device; without accelerate `load` moves the model there afterwards.
        place["device_map"] = device.torch_name
    if options.quantize != "none":
        try:
            import bitsandbytes  # noqa: F401  (asked here for the sake of one clear line)
        except ImportError:
            raise UsageError(
                f"--quantize {options.quantize} needs bitsandbytes: pip install 'ladecli[quant]'"
            ) from None
        four = options.quantize == "4bit"
        place["quantization_config"] = transformers.BitsAndBytesConfig(
            load_in_4bit=four,
            load_in_8bit=not four,
            bnb_4bit_quant_type="nf4",
            # With the default threshold a result depends on the other tokens of the batch.
            llm_int8_threshold=0.0,
        )
    return place


def _hub_answers() -> bool:
    """Whether the hub can be reached.

    The hub's own client tries for half a minute before it gives up.  Asking first lets a
    cached model start at once without a network, and a missing one fail at once.
    """
    if urllib.request.getproxies():
        return True  # a proxy resolves names for us: only it can tell
    endpoint = urllib.parse.urlsplit(hub_constants.ENDPOINT)
    port = endpoint.port or (443 if endpoint.scheme == "https" else 80)
    try:
        socket.create_connection((endpoint.hostname or "", port), timeout=5).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _quiet(progress: bool) -> Iterator[None]:
    """Keep transformers' own chatter out of the terminal, and downloads too if wanted."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    # This hides the hub's bars along with those of loading weights.
    transformers.utils.logging.disable_progress_bar()
    if progress:
        enable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(level)
        transformers.utils.logging.enable_progress_bar()


@contextlib.contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn the errors of loading into one line each."""
    try:
        yield
    except (UsageError, UnsupportedModelError):
        raise
    except torch.OutOfMemoryError as error:
        raise LoadError(
            f"{name} does not fit into the GPU's memory; try --quantize 4bit, or --device cpu"
        ) from error
    except MemoryError as error:
        raise LoadError(f"{name} does not fit into memory; try --dtype bfloat16") from error
    except Exception as error:
        raise LoadError(_explain(name, error)) from error


def _explain(name: str, error: Exception) -> str:
    """One line for what went wrong, from the errors that led to it."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    for kind, text in (
        (
            hub_errors.GatedRepoError,
            f"{name} is gated: accept its terms on its page, then log in with `hf auth login`",
        ),
        (
            hub_errors.RevisionNotFoundError,
            f"{name} has no such revision; check --revision",
        ),
        (
            hub_errors.RepositoryNotFoundError,
            f"there is no model {name} on the hub, or it is private: check the name, or log in"
            " with `hf auth login`",
        ),
        (
            hub_errors.HFValidationError,
            f"{name} is no name of a model; use OWNER/NAME or a folder",
        ),
        (
            hub_errors.EntryNotFoundError,
            f"{name} holds no model that transformers can load",
        ),
        (SafetensorError, f"{name}: the weights are damaged; download or copy them again"),
    ):
        if any(isinstance(e, kind) for e in chain) and not _offline(chain):
            return text + (_suggest(name) if kind is hub_errors.RepositoryNotFoundError else "")
    if _offline(chain):
        return f"{name} is not on this machine, and the hub cannot be reached{_suggest(name)}"
    if any(isinstance(e, OSError) and e.errno == errno.ENOSPC for e in chain):
        return f"no space left on disk while downloading {name}; free some and run this again"
    words = str(error).strip() or type(error).__name__
    if "backend tokenizer" in words:
        return f"{name} holds no tokenizer; copy tokenizer.json beside the weights"
    if "ignore_mismatched_sizes" in words:
        return f"{name}: the weights do not fit its config.json; copy both again"
    if "trust_remote_code" in words:
        return f"{name} needs code of its own; read it, then allow it with --trust-remote-code"
    return f"{name} cannot be loaded: {words.splitlines()[0]}"


def _offline(chain: list[BaseException]) -> bool:
    """Whether the hub could not be asked, rather than said no."""
    kinds = (hub_errors.OfflineModeIsEnabled, hub_errors.LocalEntryNotFoundError, ConnectionError)
    return any(isinstance(e, kinds) for e in chain)
