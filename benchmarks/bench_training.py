"""Training steps against the others': time and memory, each contestant in its own process.

    python benchmarks/bench_training.py            # about fifteen minutes on two cores

The paper's base model: 64 sentences of 32 source and 32 target tokens, 32,768 pieces. Multi30k's:
128 sentences, 8,000 pieces. Label smoothing 0.1, Adam included, dropouts as in configs/ for all.
Contestants take turns, step by step. "+allocator" has the settings of `edgewise train`, which keep
freed memory; without it a process is as it comes.
"""

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

import torch
from timing import Contestant, machine, save

STEP = Path(__file__).with_name("training_step.py")
TOKENS = 2 * 32  # of a sentence pair

RACES = {
    "the paper's base model, 64 sentences": (
        64,
        "Hugging Face Marian",
        (
            "Hugging Face Marian",
            "Hugging Face Marian+allocator",
            "edgewise, absolute",
            "edgewise, absolute+allocator",
            "edgewise, relative+allocator",
        ),
    ),
    "multi30k, 128 sentences": (
        128,
        "nn.Transformer",
        (
            "nn.Transformer",
            "nn.Transformer+allocator",
            "edgewise, multi30k",
            "edgewise, multi30k+allocator",
        ),
    ),
}
PEAKS = (
    "Hugging Face Marian",
    "Hugging Face Marian+allocator",
    "edgewise, absolute",
    "edgewise, absolute+allocator",
    "edgewise, relative+allocator",
)


def race(names: Sequence[str], rows: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each step; the first two are to warm up."""
    running = {name: Contestant(STEP, name, str(rows)) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + 2):
        for name, contestant in running.items():
            seconds = contestant.step()
            if number >= 2:
                times[name].append(seconds)
    for contestant in running.values():
        contestant.end()
    return times


def peaks(names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """One after the other, three steps each, of 128 sentences: 4,096 tokens on either side."""
    result = {}
    for name in names:
        contestant = Contestant(STEP, name, "128")
        for _ in range(3):
            contestant.step()
        result[name] = contestant.end()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    figures: dict[str, object] = {}
    lines = ["# Training steps", "", "Each contestant in its own process, in turns; medians."]
    for title, (rows, base, names) in RACES.items():
        times = race(names, rows, rounds)
        figures[title] = times
        median = {name: statistics.median(values) for name, values in times.items()}
        lines += [
            *("", f"## {title}, {rounds} rounds", ""),
            f"| | s a step | fastest, slowest | tokens a second | to {base} |",
            "|---|---|---|---|---|",
            *(
                f"| {name} | {median[name]:.3f} | {min(times[name]):.3f}, {max(times[name]):.3f} | "
                f"{TOKENS * rows / median[name]:,.0f} | {median[base] / median[name]:.2f}x |"
                for name in names
            ),
        ]
        if "edgewise, relative+allocator" in median:
            ratio = median["edgewise, relative+allocator"] / median["edgewise, absolute+allocator"]
            lines += ["", f"Relative positions take {ratio:.3f}x the time of absolute ones."]
    memory = peaks(PEAKS)
    figures["peak bytes, bytes before"] = memory
    first, _ = memory[PEAKS[0]]
    lines += [
        *("", "## Peak memory of the base model, 128 sentences: 4,096 tokens on either side", ""),
        "| | whole process, MiB | beyond the libraries, MiB | whole, to the first |",
        "|---|---|---|---|",
        *(
            f"| {name} | {peak / 2**20:,.0f} | {(peak - before) / 2**20:,.0f} | "
            f"{peak / first:.1%} |"
            for name, (peak, before) in memory.items()
        ),
    ]
    figures["machine"] = about = machine(2)
    import transformers

    about["transformers"] = transformers.__version__
    lines += ["", *(f"- {name}: {value}" for name, value in about.items())]
    text = "\n".join(lines) + "\n"
    print(text)
    print(save("training", figures, text))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
