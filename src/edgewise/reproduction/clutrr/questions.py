"""Questions of CLUTRR: a graph of relatives, and how two of them are related.

A set is a folder with one file to train on, such as 1.2,1.3,1.4_train.jsonl.gz, and a test for
each number of hops, such as 1.5_test.jsonl.gz: gzip, a question a line.
"""

import gzip
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from edgewise.attention import EdgeList
from edgewise.errors import DataError
from edgewise.storage import sha256

TEST = re.compile(r"1\.(\d+)_test\.jsonl\.gz")
MOST_NODES = 64


class Question(NamedTuple):
    """Edges (i, j, relation): j is the relation of i. Asked is what `to` is of `of`."""

    edges: tuple[tuple[int, int, str], ...]
    of: int
    to: int
    answer: str

    @property
    def n_nodes(self) -> int:
        return 1 + max(self.of, self.to, *(max(i, j) for i, j, _ in self.edges))

    @property
    def graph(self) -> tuple[object, ...]:
        """Return what identifies the graph: equal graphs should get equal answers."""
        return self.edges, self.of, self.to

    @property
    def distance(self) -> int:
        """Return the edges of the shortest path between the two, in any direction; 0: none."""
        reached, distance = {self.of}, 0
        while self.to not in reached:
            further = {j for i, j, _ in self.edges if i in reached}
            further |= {i for i, j, _ in self.edges if j in reached}
            if further <= reached:
                return 0
            reached, distance = reached | further, distance + 1
        return distance


@dataclass(frozen=True)
class QuestionSet:
    """Training questions, and tests by number of hops."""

    train: list[Question]
    tests: dict[int, list[Question]]
    files: dict[str, str]  # sha256 of each

    @property
    def relations(self) -> list[str]:
        """Return the relations of edges, sorted."""
        return sorted({relation for q in self.train for _, _, relation in q.edges})

    @property
    def answers(self) -> list[str]:
        """Return the answers of training questions, sorted."""
        return sorted({question.answer for question in self.train})


def read_set(folder: Path) -> QuestionSet:
    """Read a set; DataError if there is none, or a test has a relation that training lacks."""
    trains = sorted(folder.glob("*_train.jsonl.gz"))
    tests = {int(m[1]): p for p in folder.glob("*.gz") if (m := TEST.fullmatch(p.name))}
    if len(trains) != 1 or not tests:
        raise DataError(
            f"{folder} has {len(trains)} files *_train.jsonl.gz and {len(tests)} files "
            "1.HOPS_test.jsonl.gz; expected one and one or more (--data is the folder that has "
            "data_db9b8f04 and data_089907f8)"
        )
    paths = [trains[0], *(tests[hops] for hops in sorted(tests))]
    found = QuestionSet(
        read_questions(trains[0]),
        {hops: read_questions(tests[hops]) for hops in sorted(tests)},
        {path.name: sha256(path) for path in paths},
    )
    if not any(len(q.edges) == q.distance for test in found.tests.values() for q in test):
        raise DataError(f"{folder}: every question of the tests has a short cut")
    relations = set(found.relations)
    for hops, questions in found.tests.items():
        for question in questions:
            if unknown := {relation for *_, relation in question.edges} - relations:
                raise DataError(
                    f"{tests[hops]}: no edge of the training is of relation {sorted(unknown)[0]}"
                )
    return found


def read_questions(path: Path) -> list[Question]:
    """Read the questions of a file; DataError names an invalid line."""
    try:
        with gzip.open(path, "rb") as file:
            lines = file.read().removesuffix(b"\n").split(b"\n")
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if lines == [b""]:
        raise DataError(f"{path} has no questions")
    questions = []
    for number, line in enumerate(lines, 1):
        try:
            questions.append(_question(json.loads(line)))
        except (ValueError, KeyError, TypeError, RecursionError):
            raise DataError(
                f"{path}, line {number}: no question (edges between two people, types, query and "
                f"target, with up to {MOST_NODES} people)"
            ) from None
    return questions


def _question(content: Any) -> Question:
    ends, types, (of, to) = content["edges"], content["types"], content["query"]
    edges = tuple((i, j, relation) for (i, j), relation in zip(ends, types, strict=True))
    question = Question(edges, of, to, content["target"])
    nodes = [of, to, *(node for i, j, _ in edges for node in (i, j))]
    texts = [question.answer, *(relation for *_, relation in edges)]
    if not edges or of == to or any(i == j for i, j, _ in edges):
        raise ValueError
    if not all(isinstance(text, str) for text in texts):
        raise ValueError
    if not all(type(node) is int and 0 <= node < MOST_NODES for node in nodes):
        raise ValueError
    return question


@dataclass(frozen=True)
class Encoded:
    """Questions as one graph of many parts.

    For an edge from i to j with relation r, j attends to i with label r, and i to j with label
    r + n_relations; a node attends to itself with the last label, 2 n_relations.
    """

    graph: EdgeList
    of: Int64[Tensor, " question"]
    to: Int64[Tensor, " question"]
    answers: Int64[Tensor, " question"]  # -1: one that is not in the training


class Encoder:
    """Numbers relations and answers as in training."""

    def __init__(self, questions: QuestionSet) -> None:
        self._relations = {name: i for i, name in enumerate(questions.relations)}
        self._answers = {name: i for i, name in enumerate(questions.answers)}
        self.n_labels, self.n_answers = 2 * len(self._relations) + 1, len(self._answers)

    def graph(self, question: Question) -> EdgeList:
        """Return the graph of one question; two edges between the same people are both kept."""
        count, edges = len(self._relations), []
        for i, j, relation in question.edges:
            label = self._relations[relation]
            edges += [(j, i, label), (i, j, label + count)]
        edges += [(i, i, 2 * count) for i in range(question.n_nodes)]
        queries, keys, labels = torch.tensor(edges).unbind(1)
        return EdgeList(queries, keys, labels, n_nodes=question.n_nodes)

    def encode(
        self, questions: Sequence[Question], graphs: Sequence[EdgeList] | None = None
    ) -> Encoded:
        """Return several questions as one graph. graphs: those of the questions, if made before."""
        graphs = [self.graph(question) for question in questions] if graphs is None else graphs
        sizes = torch.tensor([question.n_nodes for question in questions])
        starts = sizes.cumsum(0) - sizes
        return Encoded(
            EdgeList.union(graphs),
            starts + torch.tensor([question.of for question in questions]),
            starts + torch.tensor([question.to for question in questions]),
            torch.tensor([self._answers.get(question.answer, -1) for question in questions]),
        )
