"""Two versions of edgewise, timed in turns: every row of bench_attention, bench_graph, training.

    git worktree add /tmp/before HEAD~1
    python benchmarks/compare_versions.py /tmp/before/src src          # 40 minutes on two cores
    python benchmarks/compare_versions.py /tmp/before/src src --only decoding --seconds 5

Each version runs in processes of its own, with the benchmarks of this checkout and the allocator
settings of `edgewise train`: without them, page faults depend on what happens to be at the top of
the heap, and a row of 10 ms varies by a third. Where a process has its memory still changes a row
of 10 ms by a tenth, so there are several pairs of processes. In a pair the versions take turns; its
ratio is the median of the new version over that of the old one, and that of a row is the median
over the pairs. The goal of a refactoring is at most 1.05 in each row and 1.01 in the geometric
mean.
"""

import argparse
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PAIRS = 9  # of processes, one pair after the other
LENGTHS = (16, 32, 64, 128, 512, 2048, 8192)
Run = Callable[[], object]


def attention_rows() -> Iterator[tuple[str, Callable[[], Run]]]:
    from bench_attention import passes
    from contestants import Case

    def row(backward: bool, *sizes: int, **options: bool) -> Callable[[], Run]:
        return lambda: passes(Case(*sizes, 16, **options), "edgewise", backward=backward)

    for backward in (False, True):
        for n in LENGTHS:
            kind = "forward and backward" if backward else "forward"
            yield f"attention, n = {n}, {kind}", row(backward, max(1, 2048 // n), 8, n, 64)
    for n, batch in ((32, 64), (2048, 1)):
        for option in ("causal", "padding", "per_head"):
            yield f"attention, n = {n}, {option}", row(True, batch, 8, n, 64, **{option: True})


def graph_rows() -> Iterator[tuple[str, Callable[[], Run]]]:
    from graph_contestants import CASES

    for case, contestant in (
        *(("sparse", "edgewise"), ("sparse", "edgewise, with the list"), ("dense", "edgewise")),
        *(("dense", "no relations"), ("dense attention", "edgewise"), ("additive", "additive")),
        *(("additive", "dot"), ("large", "edgewise")),
    ):
        yield (
            f"graph, {case}, {contestant}",
            lambda case=case, contestant=contestant: CASES[case](contestant),
        )


def decoding_rows() -> Iterator[tuple[str, Callable[[], Run]]]:
    import torch

    from edgewise import RelationAttention

    def step(batch: int, length: int, max_distance: int | None) -> Run:
        torch.manual_seed(0)
        layer = RelationAttention(64, 4, max_distance=max_distance).eval()
        x = torch.randn(batch, 1, 64)

        def run() -> None:
            with torch.no_grad():
                state = layer.new_state(batch, max_length=length + 50)
                state.append(*torch.zeros(2, batch, 4, length, 16))
                for _ in range(50):
                    layer(x, state=state)

        return run

    for batch, length in ((32, 10), (32, 100), (1, 10)):
        for distance in (16, None):
            yield (
                f"decoding, 50 steps, {batch} sentences, from {length}, k = {distance}",
                lambda batch=batch, length=length, k=distance: step(batch, length, k),
            )


def training_rows() -> Iterator[tuple[str, Callable[[], Run]]]:
    from training_step import CONTESTANTS

    for name, rows in (
        *(("edgewise, absolute", 64), ("edgewise, relative", 64), ("edgewise, multi30k", 128)),
    ):
        yield (
            f"training, {name}, {rows} sentences",
            lambda name=name, rows=rows: CONTESTANTS[name](rows),
        )


GROUPS = {
    "decoding": decoding_rows,
    "attention": attention_rows,
    "graph": graph_rows,
    "training": training_rows,
}


def all_rows(groups: list[str]) -> dict[str, Callable[[], Run]]:
    return {name: make for group in groups for name, make in GROUPS[group]()}


def work(groups: list[str]) -> None:
    """Time one pass of a row for each line "row" of the standard input."""
    import torch

    from edgewise.training.memory import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(2)
    rows, current, run = all_rows(groups), "", None
    print("ready", flush=True)
    for line in sys.stdin:
        name = line.rstrip("\n")
        if name != current:
            run = None  # the memory of the last row
            current, run = name, rows[name]()
            run()
        begin = time.perf_counter()
        run()
        print(time.perf_counter() - begin, flush=True)


class Version:
    """A process that imports edgewise from one source folder."""

    def __init__(self, source: Path, groups: list[str]) -> None:
        environment = os.environ | {"PYTHONPATH": str(source.absolute())}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--work", "--only", *groups],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self._line() == "ready\n", f"{source} did not start"

    def time(self, row: str) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{row}\n")
        self.process.stdin.flush()
        return float(self._line())

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


def timed(versions: list[Version], row: str, seconds: float) -> list[float]:
    """Return the median time of each version."""
    times: list[list[float]] = [[] for _ in versions]
    start = time.perf_counter()
    while len(times[0]) < 3 or time.perf_counter() - start < seconds:
        order = range(len(versions)) if len(times[0]) % 2 == 0 else reversed(range(len(versions)))
        for i in order:
            times[i].append(versions[i].time(row))
    return [statistics.median(each) for each in times]


def compare(old: Path, new: Path, groups: list[str], match: str, seconds: float) -> None:
    from timing import machine, save

    lines = ["| row | old, ms | new, ms | new / old | of each pair |", "|---" * 5 + "|"]
    figures: dict[str, object] = {}
    ratios = []
    for group in groups:
        rows = [row for row in all_rows([group]) if match in row]
        medians: dict[str, list[list[float]]] = {row: [] for row in rows}
        for pair in range(PAIRS if rows else 0):
            versions = [Version(source, [group]) for source in (old, new)]
            for row in rows:
                medians[row].append(timed(versions, row, seconds / PAIRS))
                before, after = medians[row][-1]
                print(f"pair {pair + 1}: {row}: {after / before:.3f}", file=sys.stderr, flush=True)
            for version in versions:
                version.end()
        for row in rows:
            of_pairs = sorted(after / before for before, after in medians[row])
            ratios.append(statistics.median(of_pairs))
            before, after = (statistics.median(each) for each in zip(*medians[row], strict=True))
            lines.append(
                f"| {row} | {before * 1e3:.2f} | {after * 1e3:.2f} | {ratios[-1]:.3f} "
                f"| {', '.join(f'{ratio:.3f}' for ratio in of_pairs)} |"
            )
            figures[row] = {"old": before, "new": after, "ratios": of_pairs}
    mean = math.exp(statistics.mean(map(math.log, ratios)))
    lines.append(f"\nGeometric mean {mean:.3f}, largest {max(ratios):.3f}.")
    print(*lines, sep="\n")
    if match:
        return
    about = machine(threads=2)
    text = f"# Two versions\n\n{about}\n\n" + "\n".join(lines) + "\n"
    print(save("versions", {"machine": about, "rows": figures}, text))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("versions", type=Path, nargs="*", metavar="SOURCE")
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--match", default="", help="only rows whose names contain this")
    parser.add_argument("--seconds", type=float, default=15, help="of each row, over all pairs")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.only)
    else:
        old, new = options.versions
        compare(old, new, options.only, options.match, options.seconds)


if __name__ == "__main__":
    main()
