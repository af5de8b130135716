"""The fastest backend by size: the source of the limits of `method="auto"`.

    python benchmarks/bench_methods.py

Forward and backward pass of each backend, in turns, for batches of about 4,096 tokens and for one
sentence; k = 16, 8 heads of 64, two threads. The last column is the backend that auto selects.
"""

import torch
from contestants import Case
from timing import alternate, machine, save

from edgewise import RelativePositions
from edgewise.attention.backends import cheapest
from edgewise.attention.inputs import normalise

METHODS = ("diagonal", "gather", "chunked_gather", "blockwise")


def main() -> None:
    torch.set_num_threads(2)
    rows: list[dict[str, object]] = []
    lines = [
        f"| n | batch | causal | {' | '.join(METHODS)} | fastest | auto |",
        "|---" * (len(METHODS) + 5) + "|",
    ]
    print("\n".join(lines), flush=True)
    for n in (16, 32, 48, 64, 96, 128, 192, 256, 512, 1024):
        for batch in sorted({max(1, 4096 // n), 8, 1}, reverse=True):
            for causal in (False, True):
                case = Case(batch, 8, n, 64, 16, causal=causal)
                contestants = {
                    method: lambda case=case, method=method: case.backward(
                        case.edgewise(method), tables=True
                    )
                    for method in METHODS
                }
                times = alternate(contestants, seconds=2)
                inputs = normalise(
                    *(case.query, case.key, case.value, RelativePositions(16)),
                    key_table=case.key_table,
                    value_table=case.value_table,
                    causal=causal,
                )
                best = min(times, key=lambda name: times[name])
                cells = [f"{times[method] * 1e3:.2f} ms" for method in METHODS]
                lines.append(
                    f"| {n} | {batch} | {causal} | {' | '.join(cells)} | {best} "
                    f"| {cheapest(inputs).name} |"
                )
                rows.append({"n": n, "batch": batch, "causal": causal, "seconds": times})
                print(lines[-1], flush=True)
    about = machine(threads=2)
    text = f"# The fastest backend by size\n\n{about}\n\n" + "\n".join(lines) + "\n"
    print(save("methods", {"machine": about, "rows": rows}, text))


if __name__ == "__main__":
    main()
