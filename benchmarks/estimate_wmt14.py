"""GPU hours of the paper's own tables: an estimate from the models' sizes, nothing is run.

    python benchmarks/estimate_wmt14.py

Operations of an update: 6 for each weight that a token is multiplied with (2 forward, 4 backward),
over the 25,000 source and 25,000 target tokens that the paper names; attention between tokens is
left out (at 30 tokens a sentence about 2%). Speed: Vaswani et al. 2017 trained their big model, of
the same shape, in 1.0 s an update on 8 P100: so many operations a P100 really does a second.
An A100 is given by shares of its peak: 50% to 80% of that in float32, which is what scale wmt14
trains in, as the paper did; 25% to 40% of that in bfloat16, for a scale with mixed_precision.
"""

from pathlib import Path

from edgewise.model.settings import ModelSettings
from edgewise.reproduction.cells import Cell, Changes, without_duplicates
from edgewise.reproduction.experiments import read_experiment
from edgewise.reproduction.scales import TranslationScale, read_scale
from edgewise.reproduction.study import Study

TOKENS = 25_000  # of each side, an update
SECONDS, GPUS = 1.0, 8  # of an update of the big model, on P100: Vaswani et al. 2017, section 5.2
A100 = {
    "float32": (19.5e12, 0.8, 0.5),
    "bfloat16": (312e12, 0.4, 0.25),
}  # peak by its maker, shares
TABLES = ("table1", "table2", "table3", "both")


def operations(model: ModelSettings, vocabulary: int) -> float:
    """Of one update."""
    attention, feed_forward = 4 * model.d_model**2, 2 * model.d_model * model.d_ff
    encoder = model.encoder_layers * (attention + feed_forward)
    decoder = model.decoder_layers * (2 * attention + feed_forward)
    return 6.0 * TOKENS * (encoder + decoder + vocabulary * model.d_model)


def main() -> None:
    scale = read_scale("wmt14")
    assert isinstance(scale, TranslationScale)
    cells: dict[str, list[Cell]] = {}
    for name in TABLES:
        study = Study(read_experiment(name), scale, Changes(), Path())
        cells[name] = study.cells(study.pairs, None, [1])
    big = next(cell for cell in cells["table1"] if cell.model.d_model == 1024)
    p100 = operations(big.model, scale.vocab_size) / SECONDS / GPUS
    print(f"P100: {p100 / 1e12:.1f} TFLOPS (from the big model's second an update on 8)\n")
    print("| | cells | operations | P100 hours | A100 hours, float32 | A100 hours, bfloat16 |")
    print("|---|---|---|---|---|---|")
    cells["all, each cell once"] = without_duplicates(
        cell for each in cells.values() for cell in each
    )
    for name, each in cells.items():
        total = sum(cell.training.steps * operations(cell.model, scale.vocab_size) for cell in each)
        ranges = [
            f"{total / peak / high / 3600:,.0f} to {total / peak / low / 3600:,.0f}"
            for peak, high, low in A100.values()
        ]
        hours = f"{total / p100 / 3600:,.0f} | {' | '.join(ranges)}"
        print(f"| {name} | {len(each)} | {total:.1e} | {hours} |")


if __name__ == "__main__":
    main()
