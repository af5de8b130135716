"""Multi30k, English to German: validation loss with relative and with absolute positions.

    python benchmarks/bench_multi30k.py FOLDER     # 25 minutes on two cores; goes on if stopped

FOLDER has Multi30k's raw train.en.gz, train.de.gz, val.en.gz and val.de.gz. The configuration is
configs/multi30k.toml with 1,000 updates of one batch of 4,096 tokens; the runs are kept in
runs/multi30k-relative and runs/multi30k-absolute.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from timing import machine, save

from edgewise.data.batches import Batches
from edgewise.data.corpus import Corpus
from edgewise.training.metrics import read_metrics

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "runs"
CORPUS = RUNS / "multi30k-corpus"
OPTIONS = {"batches": 1, "steps": 1000, "validate-every": 100, "save-every": 200, "threads": 2}
POSITIONS = {"relative": [], "absolute": ["--model.max-distance", "none", "--model.sinusoids"]}


def edgewise(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "edgewise", *map(str, arguments)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    if not CORPUS.exists():
        files = {"--source": "train.en", "--target": "train.de"}
        files |= {"--valid-source": "val.en", "--valid-target": "val.de"}
        named = [part for flag, name in files.items() for part in (flag, folder / f"{name}.gz")]
        edgewise("prepare", *named, "--vocab-size", 8000, "--out", CORPUS)
    flags = [part for name, value in OPTIONS.items() for part in (f"--training.{name}", value)]
    losses: dict[str, dict[int, float]] = {}
    for kind, model in POSITIONS.items():
        out = RUNS / f"multi30k-{kind}"
        where = ("--corpus", CORPUS, "--out", out)
        edgewise("train", ROOT / "configs" / "multi30k.toml", *where, *flags, *model)
        losses[kind] = {
            int(record["step"]): float(record["loss"])
            for record in read_metrics(out)
            if record["kind"] == "validation"
        }
    fill = Batches(Corpus(CORPUS).train, 4096, seed=1).fill(0)
    about = machine(2)
    lines = [
        "# Multi30k English to German: validation loss a token",
        "",
        "configs/multi30k.toml, 8,000 pieces, one batch of 4,096 tokens an update. "
        f"Of the tokens of all batches {fill:.1%} are not padding.",
        "",
        "| updates | relative | absolute |",
        "|---|---|---|",
        *(
            f"| {step:,} | {loss:.3f} | {losses['absolute'][step]:.3f} |"
            for step, loss in losses["relative"].items()
        ),
        "",
        *(f"- {name}: {value}" for name, value in about.items()),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    print(save("multi30k", {"machine": about, "fill": fill, "losses": losses}, text))


if __name__ == "__main__":
    main()
