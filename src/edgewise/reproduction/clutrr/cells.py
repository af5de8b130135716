"""A cell: one row of the table, one set, one seed. What is asked, and what was measured."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64

from edgewise.errors import DataError, SettingError
from edgewise.reproduction.clutrr.settings import (
    GraphExperiment,
    GraphModelSettings,
    GraphRow,
    GraphSet,
    GraphTrainingSettings,
)
from edgewise.reproduction.results import changed
from edgewise.storage import read_json, write_json

VERSION = 1


@dataclass(frozen=True)
class GraphCell:
    """What is asked for."""

    set_name: str
    row_name: str
    seed: int
    model: GraphModelSettings
    training: GraphTrainingSettings

    @classmethod
    def of(
        cls, experiment: GraphExperiment, each: GraphSet, row: GraphRow, seed: int
    ) -> "GraphCell":
        model = experiment.model_of(row)
        return cls(each.name, row.name, seed, model, experiment.training)

    @property
    def name(self) -> str:
        return f"clutrr/{self.set_name}/{self.row_name}/seed{self.seed}"

    @property
    def threads(self) -> int:
        """One: the graphs are small, and the last bits depend on it."""
        return 1

    def result(self, out: Path) -> Path:
        """Where what was measured is stored."""
        return out / "cells" / f"{self.name}.json"

    def work(self, out: Path) -> Path:
        """Where it is run."""
        return out / "work" / self.name

    def command(self, folder: Path) -> list[str]:
        """What runs it, after the name of Python."""
        command = ["-m", "edgewise", "reproduce", "graph-cell", str(folder)]
        return [*command, "--parent", str(os.getpid())]

    def asked(self) -> dict[str, Any]:
        return {
            "set": self.set_name,
            "row": self.row_name,
            "seed": self.seed,
            "model": self.model.model_dump(mode="json"),
            "training": self.training.model_dump(mode="json"),
        }


@dataclass(frozen=True)
class Answers:
    """To the questions of one test."""

    graphs: Int64[np.ndarray, "question"]  # which one each is of
    distances: Int64[np.ndarray, "question"]  # edges of the shortest path between the two
    correct: Bool[np.ndarray, "question"]
    best_possible: float  # accuracy of the most frequent answer of each graph

    @property
    def accuracy(self) -> float:
        return float(self.correct.mean())

    @property
    def n_graphs(self) -> int:
        return int(self.graphs.max()) + 1

    def part(self, chosen: Bool[np.ndarray, "question"]) -> "Answers":
        """Some of the questions; their graphs are numbered anew, what is possible is not known."""
        _, graphs = np.unique(self.graphs[chosen], return_inverse=True)
        return Answers(graphs, self.distances[chosen], self.correct[chosen], float("nan"))

    def content(self) -> dict[str, Any]:
        """For JSON; what there is of each question is a string of numbers, so that it is short."""
        columns = {"graph": self.graphs, "distance": self.distances, "correct": self.correct}
        return {
            "accuracy": self.accuracy,
            "best_possible": self.best_possible,
            **{name: " ".join(str(int(x)) for x in column) for name, column in columns.items()},
        }

    @classmethod
    def read(cls, content: dict[str, Any]) -> "Answers":
        """ValueError if they cannot be."""
        graphs, distances, correct = (
            np.array(content[name].split(), dtype=np.int64)
            for name in ("graph", "distance", "correct")
        )
        found = cls(graphs, distances, correct.astype(bool), float(content["best_possible"]))
        numbered = len(graphs) > 0 and set(graphs.tolist()) == set(range(found.n_graphs))
        same = len(graphs) == len(distances) == len(correct)
        if not (numbered and same and set(correct.tolist()) <= {0, 1}):
            raise ValueError
        if abs(found.accuracy - content["accuracy"]) > 1e-9:
            raise ValueError
        return found


@dataclass(frozen=True)
class GraphResult:
    """A finished cell; `about` says when and how long, and is no part of a report."""

    asked: dict[str, Any]
    corpus: dict[str, str]  # sha256 of each file
    trained_hops: list[int]
    parameters: int
    tests: dict[int, Answers]  # by number of hops
    hardware: str
    about: dict[str, Any]

    @property
    def of(self) -> str:
        """Which cell it is of, for a message."""
        return f"clutrr/{self.asked['set']}/{self.asked['row']}/seed{self.asked['seed']}"

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        tests = {str(hops): test.content() for hops, test in self.tests.items()}
        write_json(path, {"version": VERSION, **vars(self), "tests": tests})

    @classmethod
    def read(cls, path: Path) -> "GraphResult":
        content = read_json(path)
        try:
            if content["version"] != VERSION:
                raise DataError(
                    f"{path} has version {content['version']} of its format; this edgewise reads "
                    f"version {VERSION}"
                )
            tests = {int(hops): Answers.read(test) for hops, test in content["tests"].items()}
            if not tests:
                raise ValueError
            return cls(
                dict(content["asked"]),
                dict(content["corpus"]),
                [int(hops) for hops in content["trained_hops"]],
                int(content["parameters"]),
                tests,
                str(content["hardware"]),
                dict(content["about"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise DataError(
                f"{path} is damaged: it is no result of a cell (move it away)"
            ) from None


def finished(cell: GraphCell, out: Path) -> GraphResult | None:
    """The result of a cell, if it is there; SettingError if it is of other settings."""
    path = cell.result(out)
    if not path.is_file():
        return None
    result = GraphResult.read(path)
    if differs := changed(result.asked, cell.asked()):
        raise SettingError(
            f"{path} was measured with other settings: {differs} (remove it, or give another --out)"
        )
    return result
