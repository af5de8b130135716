"""Peak memory of one forward and backward pass, beyond inputs, outputs and their gradients.

    python benchmarks/peak_memory.py edgewise 16384

Prints bytes. A fresh process each time, as bench_attention.py starts it: what an earlier pass
freed is not counted, and what it kept does not help.
"""

import sys
from pathlib import Path

import torch
from contestants import Case


def status(field: str) -> int:
    """A field of this process's memory in bytes, as Linux reports it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"no {field} in /proc/self/status: peak memory is measured on Linux only")


def run(contestant: str, case: Case) -> int:
    """Forward and backward; returns the bytes of the output and of all gradients."""
    output = getattr(case, contestant)()
    grads = case.backward(output, tables=contestant not in ("fused", "unfused"))
    return sum(x.numel() * x.element_size() for x in (output, *grads))


def main() -> None:
    contestant, n = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(2)
    run(contestant, Case(1, 8, 512, 64, 16))  # code and threads are there before we measure
    case = Case(1, 8, n, 64, 16)
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    results = run(contestant, case)
    print(max(0, status("VmHWM") - before - results))


if __name__ == "__main__":
    main()
