"""One contestant of bench_training.py, in a process of its own.

    echo | python benchmarks/training_step.py "edgewise, absolute" 64

Builds a model, says "ready", and makes one training step for each line that it reads: forward pass,
label-smoothed loss, backward pass, Adam. It answers each with seconds and loss, and at the end with
the most memory it ever had and what it had before the model, in bytes. `+allocator` after the name
gives any contestant the allocator settings that `edgewise train` has.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from marian import marian
from numpy.typing import NDArray
from peak_memory import status
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from edgewise.data.batches import Batch
from edgewise.data.vocabulary import BEGIN, END, PAD
from edgewise.model.initial import initialise
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer, sinusoids
from edgewise.training.memory import keep_freed_memory
from edgewise.training.settings import RunSettings, TrainingSettings
from edgewise.training.trainer import Trainer

MULTI30K = Path(__file__).parents[1] / "configs" / "multi30k.toml"
RELATIVE = ModelSettings()  # the paper's base model
ABSOLUTE = ModelSettings(max_distance=None, sinusoids=True)
LENGTH = 32
SMOOTHING = 0.1
Step = Callable[[], float]


def tokens(rows: int, vocabulary: int) -> tuple[NDArray[np.int64], ...]:
    """Source, target input and target: sentences of the same length, no padding."""
    random = np.random.default_rng(0)
    source, target = (random.integers(300, vocabulary, (rows, LENGTH)) for _ in range(2))
    source[:, -1] = target[:, -1] = END
    target_input = np.concatenate((np.full((rows, 1), BEGIN), target[:, :-1]), axis=1)
    return source, target_input, target


def edgewise(settings: ModelSettings, rows: int, vocabulary: int) -> Step:
    model = Transformer(settings, vocabulary)
    initialise(model, seed=1)
    trainer = Trainer(model, TrainingSettings())
    batch, done = Batch(*tokens(rows, vocabulary)), [0]

    def step() -> float:
        done[0] += 1
        return trainer.update(done[0], [batch]).loss

    return step


def hugging_face(rows: int, vocabulary: int) -> Step:
    """MarianMTModel with the sizes of the paper's base model; the same dropouts as ours."""
    model = marian(
        *(ABSOLUTE, vocabulary),
        dropout=ABSOLUTE.dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        max_position_embeddings=512,
    ).train()

    def logits(source: Tensor, target_input: Tensor) -> Tensor:
        result: Tensor = model(
            input_ids=source, decoder_input_ids=target_input, use_cache=False
        ).logits
        return result

    return plain_step(model, logits, rows, vocabulary)


class TorchTransformer(nn.Module):
    """nn.Transformer between embeddings like ours; dropout where ours has it, and nowhere else."""

    def __init__(self, sizes: ModelSettings, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, sizes.d_model)
        nn.init.normal_(self.embedding.weight, std=sizes.d_model**-0.5)
        self.dropout = nn.Dropout(sizes.dropout)
        self.transformer = nn.Transformer(
            *(sizes.d_model, sizes.heads, sizes.encoder_layers, sizes.decoder_layers, sizes.d_ff),
            dropout=sizes.dropout,
            batch_first=True,
        )
        for module in self.transformer.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout.p = 0.0
        self.register_buffer("positions", sinusoids(LENGTH, sizes.d_model, torch.device("cpu")))

    def forward(self, source: Tensor, target_input: Tensor) -> Tensor:
        def embed(x: Tensor) -> Tensor:
            scaled = self.embedding(x) * self.embedding.embedding_dim**0.5
            return self.dropout(scaled + self.positions)

        mask = nn.Transformer.generate_square_subsequent_mask(target_input.shape[1])
        states = self.transformer(
            embed(source), embed(target_input), tgt_mask=mask, tgt_is_causal=True
        )
        return nn.functional.linear(states, self.embedding.weight)


def torch_transformer(rows: int, vocabulary: int) -> Step:
    sizes = RunSettings.read(MULTI30K).model
    model = TorchTransformer(sizes, vocabulary).train()
    return plain_step(model, model, rows, vocabulary)


def plain_step(
    model: nn.Module, logits: Callable[[Tensor, Tensor], Tensor], rows: int, vocabulary: int
) -> Step:
    """The step that everybody writes, with the same Adam as ours."""
    optimizer = torch.optim.Adam(
        model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True
    )
    source, target_input, target = map(torch.from_numpy, tokens(rows, vocabulary))

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = cross_entropy(
            *(logits(source, target_input).flatten(0, 1), target.flatten()),
            ignore_index=PAD,
            label_smoothing=SMOOTHING,
        )
        loss.backward()
        value = loss.item()
        optimizer.step()
        return value

    return step


BASE, SMALL = 32768, 8000  # pieces of the vocabularies
CONTESTANTS: dict[str, Callable[[int], Step]] = {
    "edgewise, absolute": lambda n: edgewise(ABSOLUTE, n, BASE),
    "edgewise, relative": lambda n: edgewise(RELATIVE, n, BASE),
    "Hugging Face Marian": lambda n: hugging_face(n, BASE),
    "edgewise, multi30k": lambda n: edgewise(RunSettings.read(MULTI30K).model, n, SMALL),
    "nn.Transformer": lambda n: torch_transformer(n, SMALL),
}


def main() -> None:
    name, rows = sys.argv[1], int(sys.argv[2])
    name, plus, _ = name.partition("+")
    if plus and not keep_freed_memory():
        raise SystemExit("the allocator of this system cannot be told")
    torch.set_num_threads(2)
    if name.startswith("Hugging Face"):
        import transformers.models.marian  # noqa: F401  a library, not what a step takes
    before = status("VmRSS")
    step = CONTESTANTS[name](rows)
    print("ready", flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        loss = step()
        print(time.perf_counter() - begin, loss, flush=True)
    print(status("VmHWM"), before, flush=True)


if __name__ == "__main__":
    main()
