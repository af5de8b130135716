"""Which path is the fastest for which size: what `method="auto"` is built on.

    python benchmarks/bench_methods.py

Forward and backward of each path, in turns, for batches of about 4,096 tokens and for one
sentence; k = 16, 8 heads of 64, two threads. The last column is the path that auto takes.
"""

import torch
from contestants import Case
from timing import alternate, machine, save

from edgewise.attention import functional
from edgewise.attention.relations import RelativePositions


def by_label(case: Case) -> None:
    """The dense path where the diagonal form cannot be taken."""
    chosen = functional.is_diagonal
    functional.is_diagonal = lambda *arguments: False
    try:
        case.backward(case.edgewise("dense"), tables=True)
    finally:
        functional.is_diagonal = chosen


def main() -> None:
    torch.set_num_threads(2)
    rows: list[dict[str, object]] = []
    lines = [
        "| n | batch | causal | by diagonal | by label | blockwise | fastest | auto |",
        "|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    for n in (16, 32, 48, 64, 96, 128, 192, 256, 512, 1024):
        for batch in sorted({max(1, 4096 // n), 8, 1}, reverse=True):
            for causal in (False, True):
                case = Case(batch, 8, n, 64, 16, causal=causal)
                contestants = {
                    "by diagonal": lambda case=case: case.backward(
                        case.edgewise("dense"), tables=True
                    ),
                    "by label": lambda case=case: by_label(case),
                    "blockwise": lambda case=case: case.backward(
                        case.edgewise("blockwise"), tables=True
                    ),
                }
                times = alternate(contestants, seconds=2)
                positions = RelativePositions(16)
                method = functional.fastest(case.query, case.key, positions, causal, 0.0)
                auto = "by diagonal" if method == "dense" else method
                best = min(times, key=lambda name: times[name])
                cells = [f"{times[name] * 1e3:.2f} ms" for name in contestants]
                lines.append(
                    f"| {n} | {batch} | {causal} | {' | '.join(cells)} | {best} | {auto} |"
                )
                rows.append({"n": n, "batch": batch, "causal": causal, "seconds": times})
                print(lines[-1], flush=True)
    about = machine(threads=2)
    text = f"# Which path for which size\n\n{about}\n\n" + "\n".join(lines) + "\n"
    print(save("methods", {"machine": about, "rows": rows}, text))


if __name__ == "__main__":
    main()
