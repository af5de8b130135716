"""One training step of the paper's base model: relative positions against absolute ones.

    python benchmarks/bench_training.py            # about five minutes on two cores

64 sentences of 32 source and 32 target tokens, 32,768 pieces, dropout 0.1, label smoothing 0.1,
Adam included. Both models are in one process and take turns.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from timing import alternate, machine, save

from edgewise.data.batches import Batch
from edgewise.data.vocabulary import BEGIN, END
from edgewise.model.initial import initialise
from edgewise.model.transformer import Transformer
from edgewise.training.settings import RunSettings
from edgewise.training.trainer import Trainer

ROOT = Path(__file__).parents[1]
VOCABULARY, ROWS, LENGTH = 32768, 64, 32


def trainer(config: str) -> Trainer:
    settings = RunSettings.read(ROOT / "configs" / config)
    model = Transformer(settings.model, VOCABULARY)
    initialise(model, seed=1)
    return Trainer(model, settings.training)


def batch() -> Batch:
    random = np.random.default_rng(0)
    source, target = (random.integers(300, VOCABULARY, (ROWS, LENGTH)) for _ in range(2))
    source[:, -1] = target[:, -1] = END
    target_input = np.concatenate((np.full((ROWS, 1), BEGIN), target[:, :-1]), axis=1)
    return Batch(source, target_input, target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=240)
    seconds = parser.parse_args().seconds
    torch.set_num_threads(2)
    data = batch()
    trainers = {kind: trainer(f"paper-base-en-de-{kind}.toml") for kind in ("absolute", "relative")}
    steps = dict.fromkeys(trainers, 0)

    def step(kind: str) -> None:
        steps[kind] += 1
        trainers[kind].update(steps[kind], [data])

    runs = {kind: lambda kind=kind: step(kind) for kind in trainers}
    times = alternate(runs, seconds=seconds)
    tokens = 2 * ROWS * LENGTH
    lines = [
        "# One training step of the paper's base model",
        "",
        f"{ROWS} sentences of {LENGTH} + {LENGTH} tokens, {VOCABULARY:,} pieces, Adam included; "
        f"{min(steps.values()) - 1} rounds in turns, medians.",
        "",
        "| positions | s a step | tokens a second | to absolute |",
        "|---|---|---|---|",
        *(
            f"| {kind} | {times[kind]:.3f} | {tokens / times[kind]:,.0f} | "
            f"{times[kind] / times['absolute']:.3f}x |"
            for kind in times
        ),
    ]
    about = machine(torch.get_num_threads())
    lines += ["", *(f"- {name}: {value}" for name, value in about.items())]
    text = "\n".join(lines) + "\n"
    print(text)
    print(save("training", {"machine": about, "seconds": times, "rounds": steps}, text))


if __name__ == "__main__":
    main()
