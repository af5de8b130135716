"""What is measured of each sentence of a test, and the metrics that are computed from it.

A metric is a function of sums over sentences. It can therefore be computed for any subset of the
sentences, for several tests together and for bootstrap resamples, without the text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, Num
from numpy.typing import NDArray

from edgewise.evaluation.bootstrap import bleu_of, resampled_sums

# The counts of a sentence that BLEU is computed from. A translation of n tokens has n 1-grams,
# n - 1 2-grams, …
BLEU_COLUMNS = ("tokens", "reference_tokens", *(f"matching_{n}_grams" for n in range(1, 5)))
LOG_PROBABILITY = "reference_log_probability"
LOG_COLUMNS = (LOG_PROBABILITY, "reference_pieces")
CLUSTER = "graph"  # sentences with the same value are resampled together
CEILING = "possible"  # 1 if a perfect model could be right: some questions have two answers
FLAGS = ("exact", "exact_with_length", "correct", CEILING)

Columns = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Metric:
    """`statistics` gives a row for each sentence, `from_sums` the metric of sums of such rows."""

    name: str
    columns: tuple[str, ...]
    digits: int  # decimals in reports
    limits: tuple[float, float]
    from_sums: Callable[[Num[np.ndarray, "corpus statistic"]], Float[np.ndarray, "corpus"]]
    unit: str = ""

    @property
    def title(self) -> str:
        return self.name + self.unit

    def statistics(self, columns: Columns) -> Num[np.ndarray, "sentence statistic"]:
        """Return what is summed over sentences."""
        chosen = [columns[name] for name in self.columns]
        if self.columns == BLEU_COLUMNS:
            chosen += [np.maximum(columns["tokens"] - n, 0) for n in range(4)]
        if len(chosen) == 1:
            chosen.append(np.ones_like(chosen[0]))
        return np.stack(chosen, axis=1)


def _ratio(sums: Num[np.ndarray, "corpus statistic"]) -> Float[np.ndarray, "corpus"]:
    ratios: NDArray[np.float64] = sums[:, 0] / np.maximum(sums[:, 1], 1)
    return ratios


METRICS = {
    metric.name: metric
    for metric in (
        Metric("BLEU", BLEU_COLUMNS, 2, (0.0, 100.0), bleu_of),
        Metric("log-probability", LOG_COLUMNS, 3, (-np.inf, 0.0), _ratio, " per piece (nats)"),
        Metric("exact match", ("exact",), 3, (0.0, 1.0), _ratio),
        Metric("exact match, length given", ("exact_with_length",), 3, (0.0, 1.0), _ratio),
        Metric("accuracy", ("correct",), 3, (0.0, 1.0), _ratio),
    )
}


@dataclass(frozen=True)
class Sample:
    """The statistics of one metric on one test, summed over clusters of sentences."""

    metric: Metric
    statistics: Num[np.ndarray, "cluster statistic"]

    @property
    def value(self) -> float:
        return float(self.metric.from_sums(self.statistics.sum(axis=0, keepdims=True))[0])

    @property
    def least_variance(self) -> float:
        """Return the variance of a share of 0 or 1, whose interval is 3 / n: the rule of three."""
        return (3 / 1.96 / len(self.statistics)) ** 2 if self.metric.limits == (0, 1) else 0.0

    def resampled(self) -> Float[np.ndarray, "resample"]:
        """Return the metric on clusters drawn with replacement.

        The draws depend only on the number of clusters: they are the same for every model.
        """
        return self.metric.from_sums(resampled_sums(self.statistics))


@dataclass(frozen=True)
class Measurements:
    """One model on one test: numbers for each sentence, and no text."""

    columns: Columns
    summary: dict[str, Any] = field(default_factory=dict)  # figures of the whole test, signatures

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def clusters(self) -> int:
        """Return the number of clusters: graphs if there are any, otherwise sentences."""
        return len(np.unique(self.columns[CLUSTER])) if CLUSTER in self.columns else len(self)

    def sample(self, metric: str) -> Sample:
        """Return the statistics of a metric."""
        found = METRICS[metric]
        statistics = found.statistics(self.columns)
        if CLUSTER in self.columns:
            _, cluster = np.unique(self.columns[CLUSTER], return_inverse=True)
            sums = np.zeros((cluster.max() + 1, statistics.shape[1]), statistics.dtype)
            np.add.at(sums, cluster, statistics)
            statistics = sums
        return Sample(found, statistics)

    def subset(self, column: str, first: int, last: int) -> "Measurements":
        """Return the sentences whose value in a column is from `first` to `last`."""
        chosen = (self.columns[column] >= first) & (self.columns[column] <= last)
        return Measurements({name: values[chosen] for name, values in self.columns.items()})

    def as_json(self, metrics: Sequence[str]) -> dict[str, Any]:
        """Return the content of a result file; a column is one string, so that it is short."""
        return {
            "sentences": len(self),
            "metrics": {name: self.sample(name).value for name in metrics},
            **self.summary,
            "by_sentence": {
                name: " ".join(map(str, values.tolist())) for name, values in self.columns.items()
            },
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Measurements":
        """Read the content of a result file; ValueError if it is inconsistent."""
        columns = {
            name: np.array(values.split(), np.float64 if name == LOG_PROBABILITY else np.int64)
            for name, values in content["by_sentence"].items()
        }
        known = {"sentences", "metrics", "by_sentence"}
        summary = {name: value for name, value in content.items() if name not in known}
        found = cls(columns, summary)
        lengths = {len(values) for values in columns.values()}
        if lengths != {content["sentences"]} or lengths == {0}:
            raise ValueError("columns of different lengths, or none")
        limits = {LOG_PROBABILITY: (-1e9, 0.0), **dict.fromkeys(FLAGS, (0, 1))}
        for name, values in columns.items():
            least, most = limits.get(name, (0, np.inf))
            if not ((values >= least) & (values <= most)).all():  # also if one is not a number
                raise ValueError(f"{name} must be from {least} to {most}")
        for name, value in content.get("metrics", {}).items():
            if not abs(found.sample(name).value - value) <= 1e-6:  # also if it is not a number
                raise ValueError("a metric that differs from its counts")
        return found


def pooled(parts: Sequence[Measurements]) -> Measurements:
    """Return several tests as one."""
    if len(parts) == 1:
        return parts[0]
    columns = {
        name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns
    }
    return Measurements(columns)
