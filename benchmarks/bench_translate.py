"""edgewise translate as a process: how soon a line comes out, and how much memory many lines take.

    python benchmarks/bench_translate.py --one MODEL --many runs/demo/model   # about ten minutes

One line through MODEL, from the start of the process to its end, beam 4. Then 1,000 and 100,000
sentences of the built-in grammar through the demo's model, greedily: the most memory each took.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from timing import machine, save

from edgewise.data.grammar import pairs

COMMAND = [sys.executable, "-m", "edgewise", "translate", "--threads", "2", "--model"]
FEW, MANY, STARTS = 1000, 100_000, 7


def run(arguments: list[str], source: Path, out: Path) -> tuple[float, int]:
    """Seconds, and the most memory in bytes."""
    begin = time.perf_counter()
    with source.open("rb") as lines, out.open("wb") as translations:
        process = subprocess.Popen(
            [*COMMAND, *arguments], stdin=lines, stdout=translations, stderr=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"edgewise translate failed: {status}")
    return time.perf_counter() - begin, usage.ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--one", type=Path, required=True, help="model folder for one line")
    parser.add_argument("--many", type=Path, required=True, help="model folder for many lines")
    options = parser.parse_args()
    rows: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory() as temporary:
        source, out = Path(temporary) / "in", Path(temporary) / "out"
        source.write_text("A man in a blue shirt is standing on a ladder.\n")
        starts = [run([str(options.one)], source, out)[0] for _ in range(STARTS)]
        rows.append(
            (
                "one line, from start to end of the process",
                f"{statistics.median(starts):.2f} s ({min(starts):.2f} to {max(starts):.2f})",
            )
        )
        peaks = {}
        for count in (FEW, MANY):
            source.write_text("".join(f"{english}\n" for english, _ in pairs(count, seed=9)))
            seconds, peaks[count] = run([str(options.many), "--beam", "1"], source, out)
            written = out.read_bytes().count(b"\n")
            rows.append(
                (
                    f"{count:,} lines, greedy",
                    f"{peaks[count] / 2**20:.0f} MiB, {seconds:.0f} s, {written:,} lines out",
                )
            )
    rows.append(("more for the many", f"{(peaks[MANY] - peaks[FEW]) / 2**20:.1f} MiB"))
    lines = [
        *("# edgewise translate, as a process", "", "| | |", "|---|---|"),
        *(f"| {name} | {value} |" for name, value in rows),
        "",
        *(f"- {name}: {value}" for name, value in machine(2).items()),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    print(save("translate", {"rows": rows}, text))


if __name__ == "__main__":
    main()
