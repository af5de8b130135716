"""Labelled graphs: edgewise against layers that others have. Time and memory, one table.

    python benchmarks/bench_graph.py            # about six minutes on two cores

Two threads, float32, forward and backward, contestants in turns in one process, medians. Each peak
of memory is of a fresh process that gives freed memory back at once. Layers are 512 wide, with 8
heads of 64 and 30 labels, and have projections unless the row says otherwise. TransformerConv is of
PyTorch Geometric (edge_dim 64, root_weight=False, with the lookup of the labels; it has no output
projection); RAT-SQL is its relation-aware attention, graph_contestants.py.
"""

import os
import sys
from pathlib import Path

import torch
from graph_contestants import CASES
from timing import alternate, machine, peak_in_fresh_process, save

SCRIPT = str(Path(__file__).parent / "graph_contestants.py")
# Of a case: against whom, and who runs in the same rounds: what it is, at least times faster, at
# least times less memory.
AGAINST = (
    (
        *("sparse", "TransformerConv"),
        {
            "edgewise": ("2,000 nodes, 20,000 edges", "1.3x, aim 2x", "less"),
            "edgewise, with the list": ("the same, the list made at each pass", "", ""),
        },
    ),
    (
        *("dense", "RAT-SQL"),
        {
            "edgewise": ("16 graphs of 200 nodes, a label for every pair", "4x", "8x"),
            "no relations": ("the same layer without labels: PyTorch's attention", "", ""),
            "projections": ("the four projections of the layer and nothing else", "", ""),
        },
    ),
    (
        *("dense attention", "RAT-SQL"),
        {"edgewise": ("the same with labels, without projections", "", "")},
    ),
)


def peak(case: str, contestant: str) -> float:
    """MiB."""
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(2**17)
    return peak_in_fresh_process([SCRIPT, case, contestant]) / 2**20


def main() -> None:
    torch.set_num_threads(2)
    about = machine(threads=2)
    rows: list[dict[str, object]] = []
    lines = ["# Labelled graphs: time and memory", ""]
    lines += [f"- {name}: {value}" for name, value in about.items()]
    lines += ["", "Forward and backward; peaks are beyond the layer, its input and the graph.", ""]
    lines += [
        "| case | against | ms | ours | faster | at least | MiB | ours | less | at least |",
        "|---" * 10 + "|",
    ]
    print(*lines, sep="\n", flush=True)
    for case, against, others in AGAINST:
        times = alternate({n: CASES[case](n) for n in (against, *others)}, seconds=60, least=5)
        peaks = {name: peak(case, name) for name in (against, *others)}
        for ours, (title, least_time, least_memory) in others.items():
            line = (
                f"| {title} | {against} | {times[against] * 1e3:.0f} | {times[ours] * 1e3:.0f} "
                f"| {times[against] / times[ours]:.2f}x | {least_time} "
                f"| {peaks[against]:.0f} | {peaks[ours]:.0f} "
                f"| {peaks[against] / peaks[ours]:.1f}x | {least_memory} |"
            )
            lines.append(line)
            print(line, flush=True)
        rows.append({"case": case, "against": against, "seconds": times, "MiB": peaks})

    lines += ["", "| case | ms | MiB | at most |", "|---|---|---|---|"]
    times = alternate({n: CASES["additive"](n) for n in ("additive", "dot")}, seconds=40, least=3)
    extra = peak("additive", "additive")
    lines.append(
        "| additive compatibility, n = 1,024, 8 heads of 64, relative positions k = 16 "
        f"| {times['additive'] * 1e3:.0f} (dot product {times['dot'] * 1e3:.0f}) "
        f"| {extra:.0f} | 512 MiB |"
    )
    rows.append({"case": "additive, n = 1,024", "seconds": times, "MiB": extra})
    whole = peak("large", "edgewise")
    run = CASES["large"]("edgewise")
    seconds = alternate({"edgewise": run}, seconds=10, least=3)["edgewise"]
    lines.append(
        f"| 100,000 nodes, 1,000,000 edges | {seconds * 1e3:.0f} "
        f"| {whole:.0f}, the whole process | 8,192 MiB |"
    )
    rows.append({"case": "100,000 nodes, 1,000,000 edges", "seconds": seconds, "MiB": whole})
    print(*lines[-4:], sep="\n")
    path = save("graph", {"machine": about, "rows": rows}, "\n".join(lines) + "\n")
    print(f"written to {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
