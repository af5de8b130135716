"""edgewise against the other ways to compute attention: time and memory, one table.

    python benchmarks/bench_attention.py            # about twenty minutes on two cores
    python benchmarks/bench_attention.py --bar      # only the figures of the bar, five minutes

Contestants run in turns, in one process, two threads, float32, k = 16, 8 heads of 64, about 2,048
tokens a batch (one sentence from n = 2,048 on). "fused" and "unfused" are plain attention and know
no positions. Each peak of memory is of a fresh process, for one sentence: one forward and backward
pass beyond inputs, outputs and their gradients. What does not fit is not run; its computed need
is printed instead.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from contestants import Case
from timing import alternate, machine, peak_in_fresh_process, save

CONTESTANTS = ("fused", "unfused", "paper", "gather", "edgewise")
LIMIT = 12 * 2**30
PEAK = str(Path(__file__).parent / "peak_memory.py")


def passes(case: Case, contestant: str, *, backward: bool) -> Callable[[], object]:
    forward = getattr(case, contestant)
    if backward:
        tables = contestant in ("paper", "gather", "edgewise")
        return lambda: case.backward(forward(), tables=tables)

    def without_graph() -> object:
        with torch.no_grad():
            return forward()

    return without_graph


def sizes(lines: list[str]) -> list[dict[str, object]]:
    """Every contestant at every length."""
    rows: list[dict[str, object]] = []
    for backward in (False, True):
        title = "Forward and backward" if backward else "Forward"
        head = f"\n## {title}, ms (ratio to unfused up to n = 128, to fused beyond)\n"
        columns = "| n | batch | " + " | ".join(CONTESTANTS) + " |"
        tell(lines, head, columns, "|---" * (len(CONTESTANTS) + 2) + "|")
        for n in (16, 32, 64, 128, 512, 2048, 8192):
            case = Case(max(1, 2048 // n), 8, n, 64, 16)
            fit = [name for name in CONTESTANTS if case.needs(name) <= LIMIT]
            runs = {name: passes(case, name, backward=backward) for name in fit}
            times = alternate(runs, seconds=4 if n < 2048 else 20, least=3)
            base = times["unfused" if n <= 128 else "fused"]
            cells = [
                f"{times[name] * 1e3:.2f} ({times[name] / base:.2f}x)"
                if name in times
                else f"needs {case.needs(name) / 2**30:.0f} GiB"
                for name in CONTESTANTS
            ]
            tell(lines, f"| {n} | {case.batch} | {' | '.join(cells)} |")
            rows.append({"n": n, "batch": case.batch, "backward": backward, "seconds": times})
    return rows


def memory(lines: list[str]) -> list[dict[str, object]]:
    """Peak memory of every contestant at every length."""
    rows: list[dict[str, object]] = []
    tell(lines, "\n## Peak memory of forward and backward, MiB, one sentence\n")
    tell(lines, "| n | " + " | ".join(CONTESTANTS) + " |", "|---" * (len(CONTESTANTS) + 1) + "|")
    for n in (512, 2048, 8192, 16384):
        shape = Case(1, 8, 1, 64, 16)
        shape.n = n
        cells = []
        for name in CONTESTANTS:
            if shape.needs(name) > LIMIT:
                cells.append(f"needs {shape.needs(name) / 2**30:.0f} GiB")
                continue
            peak = peak_in_fresh_process([PEAK, name, str(n)])
            cells.append(f"{peak / 2**20:.0f}")
            rows.append({"n": n, "contestant": name, "bytes": peak})
        tell(lines, f"| {n} | {' | '.join(cells)} |")
    return rows


def bar(lines: list[str]) -> list[dict[str, object]]:
    """The ratios that the project holds itself to."""
    rows: list[dict[str, object]] = []
    tell(lines, "\n## The bar: forward and backward\n")
    tell(lines, "| case | against | ratio | at most |", "|---|---|---|---|")

    def compare(
        name: str, limit: float, contestants: dict[str, Callable[[], object]], seconds: float
    ) -> None:
        times = alternate(contestants, seconds=seconds)
        against, ours = contestants
        ratio = times[ours] / times[against]
        tell(lines, f"| {name} | {against} | {ratio:.2f}x | {limit}x |")
        rows.append({"case": name, "against": against, "ratio": ratio, "seconds": times})

    def both(case: Case, against: str, ours: str = "edgewise") -> dict[str, Callable[[], object]]:
        names = (against, ours)
        return {name: passes(case, name, backward=True) for name in names}

    compare("n = 2048", 1.35, both(Case(1, 8, 2048, 64, 16), "fused"), 30)
    compare("n = 2048, causal", 1.5, both(Case(1, 8, 2048, 64, 16, causal=True), "fused"), 30)
    compare("n = 8192", 1.25, both(Case(1, 8, 8192, 64, 16), "fused"), 60)
    compare("n = 32, batch 64", 1.6, both(Case(64, 8, 32, 64, 16), "unfused"), 20)
    causal = Case(64, 8, 32, 64, 16, causal=True)
    compare("n = 32, batch 64, causal", 1.6, both(causal, "unfused"), 20)
    padded = Case(1, 8, 2048, 64, 16, padding=True)
    compare("n = 2048, padding mask", 1.5, both(padded, "fused"), 30)
    for batch, n in ((1, 2048), (64, 32)):
        shared, per_head = Case(batch, 8, n, 64, 16), Case(batch, 8, n, 64, 16, per_head=True)
        runs = {
            "shared tables": passes(shared, "edgewise", backward=True),
            "a table for each head": passes(per_head, "edgewise", backward=True),
        }
        compare(f"n = {n}, batch {batch}, a table for each head", 1.1, runs, 20)
    paper = Case(1, 8, 2048, 64, 16)
    runs = both(paper, "edgewise", "paper")
    times = alternate(runs, seconds=30, least=3)
    ratio = times["paper"] / times["edgewise"]
    tell(lines, f"| n = 2048, the paper's algorithm | edgewise | {ratio:.1f}x | at least 15x |")
    rows.append({"case": "paper, n = 2048", "against": "edgewise", "ratio": ratio})
    peak = peak_in_fresh_process([PEAK, "edgewise", "16384"])
    tell(lines, f"| n = 16384, peak memory | | {peak / 2**20:.0f} MiB | 1024 MiB |")
    rows.append({"case": "peak memory, n = 16384", "bytes": peak})
    return rows


def tell(lines: list[str], *more: str) -> None:
    lines.extend(more)
    print(*more, sep="\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bar", action="store_true", help="only the figures of the bar")
    only_bar = parser.parse_args().bar
    torch.set_num_threads(2)
    about = machine(threads=2)
    lines: list[str] = []
    tell(lines, "# Relative attention: time and memory\n")
    tell(lines, *(f"- {name}: {value}" for name, value in about.items()))
    figures: dict[str, object] = {"machine": about, "bar": bar(lines)}
    if not only_bar:
        figures["sizes"] = sizes(lines)
        figures["memory"] = memory(lines)
    path = save("bar" if only_bar else "attention", figures, "\n".join(lines) + "\n")
    print(f"written to {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
