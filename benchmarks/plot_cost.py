"""Draw docs/cost.png from the newest results of bench_attention.py.

python benchmarks/plot_cost.py
"""

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from timing import RESULTS

NAMES = {
    "fused": "plain attention, fused",
    "unfused": "plain attention, unfused",
    "paper": "the paper's algorithm",
    "gather": "[n, n, d] and einsum",
    "edgewise": "edgewise",
}


def main() -> None:
    newest = max(RESULTS.glob("*-attention.json"))
    results = json.loads(newest.read_text())
    figure, axis = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for name, label in NAMES.items():
        rows = [r for r in results["sizes"] if r["backward"] and name in r["seconds"]]
        lengths = [row["n"] for row in rows]
        ratios = [row["seconds"][name] / row["seconds"]["fused"] for row in rows]
        style = {"linewidth": 2.5, "color": "black"} if name == "edgewise" else {"alpha": 0.8}
        axis.plot(lengths, ratios, marker="o", label=label, **style)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    ticks = [1, 2, 5, 10, 20]
    axis.set_yticks(ticks, [f"{tick}x" for tick in ticks])
    axis.set_xticks(lengths := [r["n"] for r in results["sizes"] if r["backward"]], lengths)
    axis.set(xlabel="sequence length n", ylabel="time, relative to fused plain attention")
    axis.grid(alpha=0.3)
    axis.legend()
    machine = results["machine"]
    axis.set_title(f"forward and backward, {machine['threads']} threads, torch {machine['torch']}")
    figure.savefig(Path(__file__).parents[1] / "docs" / "cost.png", dpi=110)


if __name__ == "__main__":
    main()
