"""Train the bundled demo model, from nothing but this machine's Python.

    python scripts/demo/train.py --out ladecli/demo

makes the tokenizer, trains the model and writes a Hugging Face folder: about an hour on two
CPU cores.  With `--start` it goes on from such a folder.

The matrices learn by Muon (Jordan et al., 2024), everything else by AdamW; sequences grow in
the course of training, so that most of it is cheap and the last part teaches positions up to
the model's context.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import corpus
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 4096
CONTEXT = 2048
# Words, single digits, runs of punctuation, newlines with the indentation that follows them.
SPLIT = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\n+[ ]*|\s+(?!\S)|\s+"
CHAT_TEMPLATE = """\
{{ '<|bos|>' }}{% for message in messages %}\
{{ '<|' + message.role + '|>\\n' + message.content | trim + '<|end|>\\n' }}\
{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"""


PHASES = ((0.60, 512), (0.25, 1024), (0.15, CONTEXT))  # shares of training, and lengths


def train_tokenizer(documents: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(corpus.SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    bos = tokenizer.token_to_id(corpus.BOS)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{corpus.BOS} $A", special_tokens=[(corpus.BOS, bos)]
    )
    return tokenizer


def encode(tokenizer: Tokenizer, documents: list[str], rng: random.Random) -> torch.Tensor:
    """All documents as one stream of ids, shape [tokens].

    A prompt can end anywhere, also where the tokenizer would not cut ("def " keeps its space
    apart).  So each document is cut at a few random places and its pieces are encoded alone.
    """
    pieces: list[str] = []
    for document in documents:
        start = 0
        while len(document) - start > 400:
            cut = start + rng.randrange(200, 1600)
            # Half of the cuts stand just behind a space, where people stop typing.
            if rng.random() < 0.5 and (space := document.find(" ", cut)) >= 0:
                cut = space + 1
            if cut >= len(document) or "<|" in document[cut - 14 : cut + 14]:
                break
            pieces.append(document[start:cut])
            start = cut
        pieces.append(document[start:])
    encoded = tokenizer.encode_batch(pieces, add_special_tokens=False)
    return torch.tensor([i for piece in encoded for i in piece.ids], dtype=torch.long)


def batches(tokenizer: Tokenizer, args: argparse.Namespace, steps: int) -> Iterator[torch.Tensor]:
    """Batches of ids, shape [rows, length], every epoch made afresh with other questions."""
    lengths = [length for share, length in PHASES for _ in range(math.ceil(share * steps))]
    epoch, stream = args.seed, torch.empty(0, dtype=torch.long)
    for length in lengths[:steps]:
        if len(stream) < args.batch_tokens:
            fresh = encode(tokenizer, corpus.documents(epoch, args.repeats), random.Random(epoch))
            stream, epoch = torch.cat([stream, fresh]), epoch + 1
        yield stream[: args.batch_tokens].view(-1, length)
        stream = stream[args.batch_tokens :]


def make_model(tokenizer: Tokenizer) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.token_to_id(corpus.BOS),
        eos_token_id=tokenizer.token_to_id(corpus.END),
        initializer_range=0.03,
    )
    return LlamaForCausalLM(config)


def optimizers(model: LlamaForCausalLM, rate: float) -> list[torch.optim.Optimizer]:
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    muon = torch.optim.Muon(matrices, lr=rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
    return [muon, torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.95), weight_decay=0.0)]


def rate_at(step: int, steps: int) -> float:
    """Share of the peak learning rate: a short warm-up, a plateau, a linear way down."""
    return min(1.0, (step + 1) / 50, (steps - step) / (0.6 * steps))


@torch.no_grad()
def held_out_loss(model: LlamaForCausalLM, stream: torch.Tensor) -> float:
    """Mean cross-entropy in nats per token over windows of 1024 tokens."""
    rows = stream[: len(stream) // 1024 * 1024].view(-1, 1024)[:32]
    model.eval()
    losses = [model(input_ids=row[None], labels=row[None]).loss.item() for row in rows]
    model.train()
    return sum(losses) / len(losses)


def export(model: LlamaForCausalLM, tokenizer: Tokenizer, out: Path) -> None:
    """Write a Hugging Face folder, the weights in bfloat16."""
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=corpus.BOS,
        eos_token=corpus.END,
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    wrapped.save_pretrained(out)
    deepcopy(model).to(torch.bfloat16).save_pretrained(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=float, default=27e6, help="tokens to train on")
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--rate", type=float, default=4e-3, help="peak learning rate")
    parser.add_argument("--seed", type=int, default=0, help="of the first epoch")
    parser.add_argument("--repeats", type=int, default=12, help="of questions about this tool")
    parser.add_argument("--start", type=Path, help="go on from a folder that this wrote before")
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    documents = corpus.documents(args.seed, args.repeats)
    if args.start:
        tokenizer = Tokenizer.from_file(str(args.start / "tokenizer.json"))
        model = LlamaForCausalLM.from_pretrained(args.start, dtype=torch.float32)
    else:
        tokenizer = train_tokenizer(documents)
        model = make_model(tokenizer)
    validation = encode(tokenizer, corpus.held_out_documents(), random.Random(0))
    steps = int(args.tokens // args.batch_tokens)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters:,} parameters, {steps} steps, {len(documents)} documents", flush=True)

    learners = optimizers(model, args.rate)
    began, log = time.perf_counter(), []
    for step, batch in enumerate(batches(tokenizer, args, steps)):
        for learner in learners:
            for group in learner.param_groups:
                group["lr"] = args.rate * rate_at(step, steps)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for learner in learners:
            learner.step()
            learner.zero_grad()
        log.append(loss.item())
        if (step + 1) % 20 == 0:
            speed = (step + 1) * args.batch_tokens / (time.perf_counter() - began)
            print(f"{step + 1:5} loss {sum(log[-20:]) / 20:.3f} {speed:,.0f} tok/s", flush=True)
        if (step + 1) % 400 == 0:
            print(f"{step + 1:5} held out {held_out_loss(model, validation):.3f}", flush=True)
            export(model, tokenizer, args.out)
    export(model, tokenizer, args.out)
    result = {
        "parameters": parameters,
        "tokens": steps * args.batch_tokens,
        "loss": sum(log[-100:]) / len(log[-100:]),
        "held_out_loss": held_out_loss(model, validation),
        "minutes": (time.perf_counter() - began) / 60,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
