"""`edgewise prepare` on generated corpora of two sizes: speed, and whether memory stays the same.

    python benchmarks/bench_prepare.py             # about two minutes on two cores

Peak memory is summed over the processes of the command, each page shared by several counted in
parts (PSS), looked at every 20 ms. The resident sizes, where shared pages count in full, are given
too.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from timing import machine, save

from edgewise.data.grammar import pairs

SIZES = (200_000, 1_000_000)


def tree(root: int) -> list[int]:
    """A process and all below it."""
    found, waiting = [], [root]
    while waiting:
        process = waiting.pop()
        found.append(process)
        try:
            for task in os.listdir(f"/proc/{process}/task"):
                children = Path(f"/proc/{process}/task/{task}/children").read_text()
                waiting += [int(child) for child in children.split()]
        except OSError:  # it ended meanwhile
            continue
    return found


def memory(root: int) -> tuple[int, int]:
    """PSS and RSS of a process tree, in kB."""
    sums = {"Pss:": 0, "Rss:": 0}
    for process in tree(root):
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            name, *rest = line.split()
            if name in sums:
                sums[name] += int(rest[0])
    return sums["Pss:"], sums["Rss:"]


def measure(folder: Path, count: int) -> dict[str, float]:
    with (folder / "a.en").open("w") as english, (folder / "a.de").open("w") as german:
        for source, target in pairs(count, seed=1):
            english.write(source + "\n")
            german.write(target + "\n")
    out = folder / f"corpus-{count}"
    command = [sys.executable, "-m", "edgewise", "prepare", "--vocab-size", "2000"]
    command += ["--source", f"{folder}/a.en", "--target", f"{folder}/a.de", "--out", str(out)]
    start = time.perf_counter()
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    peak = [0, 0]
    while process.poll() is None:
        peak = [max(before, now) for before, now in zip(peak, memory(process.pid), strict=True)]
        time.sleep(0.02)
    seconds = time.perf_counter() - start
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed")
    report = json.loads((out / "report.json").read_text())
    return {
        "pairs": count,
        "kept": report["train"][0]["kept"],
        "seconds": seconds,
        "pairs_per_second": count / seconds,
        "pss_mib": peak[0] / 1024,
        "rss_mib": peak[1] / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(Path(folder), count) for count in SIZES]
    small, large = rows
    lines = [
        "# edgewise prepare on generated pairs, 2,000 pieces",
        "",
        "| pairs | s | pairs a second | peak PSS, MiB | peak RSS, MiB |",
        "|---|---|---|---|---|",
        *(
            f"| {row['pairs']:,} | {row['seconds']:.1f} | {row['pairs_per_second']:,.0f} | "
            f"{row['pss_mib']:.0f} | {row['rss_mib']:.0f} |"
            for row in rows
        ),
        "",
        f"Peak memory, large to small: PSS {large['pss_mib'] / small['pss_mib']:.3f}x, "
        f"RSS {large['rss_mib'] / small['rss_mib']:.3f}x.",
        "",
        *(f"- {name}: {value}" for name, value in machine(os.cpu_count() or 1).items()),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    print(save("prepare", {"machine": machine(os.cpu_count() or 1), "rows": rows}, text))


if __name__ == "__main__":
    main()
