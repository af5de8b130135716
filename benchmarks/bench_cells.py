"""Cells of a reproduction: two of one thread side by side, or one after the other with two?

    python benchmarks/bench_cells.py --data FOLDER     # Multi30k; two minutes, nothing beside it

A process each, in alternating rounds: one with two threads, then two with one thread at the same
time. What counts is how many updates are made a second in all.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from timing import machine, save

from edgewise.reproduction.cells import Changes
from edgewise.reproduction.corpora import prepare_corpus
from edgewise.reproduction.experiments import read_experiment
from edgewise.reproduction.scales import TranslationScale, read_scale
from edgewise.reproduction.study import Study

ROUNDS = 3
UPDATES = {"demo": 300, "multi30k": 40}  # several seconds, beside which starting is nothing


def updates_a_second(scale: str, corpus: Path, threads: int, processes: int) -> float:
    """Of all processes together."""
    command = [sys.executable, __file__, "--measure", scale, str(corpus), str(threads)]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    return sum(1 / float(json.loads(process.communicate()[0])) for process in started)


def measure(scale: str, corpus: Path, threads: int) -> None:
    """In a process of its own: print the seconds of the median update."""
    from edgewise.reproduction.speed import measure_speed

    study = Study(read_experiment("table2"), read_scale(scale), Changes(threads=threads), Path())
    (cell,) = study.cells(["en-de"], ["k16"], [1])
    (speed,) = measure_speed({"k16": cell}, corpus, UPDATES[scale])
    print(json.dumps(speed.seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--measure", nargs=3)
    arguments = parser.parse_args()
    if arguments.measure:
        scale, corpus, threads = arguments.measure
        measure(scale, Path(corpus), int(threads))
        return
    about, results = machine(2), {}
    lines = [
        "# Cells one after the other or side by side: updates a second of all",
        "",
        "| scale | one of two threads | two of one thread | ratio |",
        "|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as out:
        for name in UPDATES:
            scale = read_scale(name)
            assert isinstance(scale, TranslationScale)
            data = None if scale.files is None else arguments.data
            corpus = prepare_corpus(scale, "en-de", data, Path(out), print).folder / "corpus"
            rounds = [
                (updates_a_second(name, corpus, 2, 1), updates_a_second(name, corpus, 1, 2))
                for _ in range(ROUNDS)
            ]
            one, two = (median(column) for column in zip(*rounds, strict=True))
            results[name] = {"one_of_two_threads": one, "two_of_one_thread": two}
            lines.append(f"| {name} | {one:.2f} | {two:.2f} | {two / one:.2f}x |")
    lines += ["", *(f"- {name}: {value}" for name, value in about.items())]
    text = "\n".join(lines) + "\n"
    print(text)
    print(save("cells", {"machine": about, "updates_a_second": results}, text))


if __name__ == "__main__":
    main()
