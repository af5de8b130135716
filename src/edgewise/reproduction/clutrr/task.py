"""The task of kinship graphs: train on few hops, answer questions with more."""

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from edgewise.errors import SettingError
from edgewise.reproduction.cells import Cell
from edgewise.reproduction.clutrr.model import GraphTransformer
from edgewise.reproduction.clutrr.questions import Encoder, Question, QuestionSet, read_set
from edgewise.reproduction.clutrr.settings import (
    GraphModelSettings,
    GraphScale,
    GraphTrainingSettings,
)
from edgewise.reproduction.measurements import CEILING, CLUSTER, Measurements
from edgewise.reproduction.results import Outcome
from edgewise.reproduction.scales import Scale
from edgewise.reproduction.task import PreparedData, Say
from edgewise.training.reporter import Reporter

WARM_UP = 0.1  # of the updates


class Graphs:
    """Cells that answer questions about graphs."""

    def prepare(
        self, scale: Scale, pair: str, data: Path | None, out: Path, say: Say
    ) -> PreparedData:
        assert isinstance(scale, GraphScale)
        folder = scale.sets[pair].folder
        if data is None:
            raise SettingError(
                f"{scale.name} needs {scale.title}: give --data, the folder with {folder}"
            )
        return PreparedData(data / folder, read_set(data / folder).files)

    def run(
        self, cell: Cell, data: PreparedData, folder: Path, reporter: Reporter | None
    ) -> Outcome:
        def report(epoch: int) -> None:  # the progress of translation cells has the same form
            with (folder / "run" / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"kind": "epoch", "step": epoch, "of": cell.budget}) + "\n")

        (folder / "run").mkdir(exist_ok=True)
        (folder / "run" / "metrics.jsonl").unlink(missing_ok=True)
        return train_and_answer(cell, read_set(data.folder), report)


def train_and_answer(
    cell: Cell, questions: QuestionSet, report: Callable[[int], None] = lambda epoch: None
) -> Outcome:
    """Train and answer the tests."""
    assert isinstance(cell.model, GraphModelSettings)
    torch.manual_seed(cell.seed)
    start = time.monotonic()
    encoder = Encoder(questions)
    model = GraphTransformer(cell.model, encoder.n_labels, encoder.n_answers)
    updates = train(model, encoder, questions.train, cell.training, report)
    seconds = time.monotonic() - start
    return Outcome(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        updates=updates,
        losses=[],
        tests=answer(model, encoder, [q for test in questions.tests.values() for q in test]),
        about={"training_seconds": round(seconds)},
    )


def train(
    model: GraphTransformer,
    encoder: Encoder,
    questions: Sequence[Question],
    settings: GraphTrainingSettings,
    report: Callable[[int], None],
) -> int:
    """Train for all epochs, without selecting a checkpoint; return the number of updates."""
    graphs = [encoder.graph(question) for question in questions]
    updates = settings.epochs * -(-len(questions) // settings.batch)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda update: min((update + 1) / (WARM_UP * updates), (updates - update) / updates),
    )
    model.train()
    for epoch in range(settings.epochs):
        for index in torch.randperm(len(questions)).split(settings.batch):
            chosen = index.tolist()
            batch = encoder.encode([questions[i] for i in chosen], [graphs[i] for i in chosen])
            loss = cross_entropy(model(batch), batch.answers)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        report(epoch + 1)
    return updates


@torch.no_grad()
def answer(
    model: GraphTransformer, encoder: Encoder, questions: Sequence[Question]
) -> dict[str, Measurements]:
    """Return the measurements of all questions, and of those without a short cut.

    Hops are the edges of a graph; in a graph with a short cut the two people are nearer than that.
    """
    model.eval()
    correct = []
    for start in range(0, len(questions), 1024):
        encoded = encoder.encode(questions[start : start + 1024])
        correct += (model(encoded).argmax(-1) == encoded.answers).tolist()
    return measurements(questions, correct)


def measurements(questions: Sequence[Question], correct: Sequence[bool]) -> dict[str, Measurements]:
    """Return the columns of part `test`, and of part `direct` without short cuts.

    Questions about the same graph are one cluster. The best possible answer to them is their most
    frequent one.
    """
    numbers: dict[tuple[object, ...], int] = {}
    graphs = [numbers.setdefault(question.graph, len(numbers)) for question in questions]
    counts: dict[int, Counter[str]] = {}
    for graph, question in zip(graphs, questions, strict=True):
        counts.setdefault(graph, Counter())[question.answer] += 1
    best = {graph: count.most_common(1)[0][0] for graph, count in counts.items()}
    possible = [best[graph] == q.answer for graph, q in zip(graphs, questions, strict=True)]
    hops = np.array([len(question.edges) for question in questions])
    columns = {
        CLUSTER: np.array(graphs),
        "hops": hops,
        "correct": np.array(correct, dtype=np.int64),
        CEILING: np.array(possible, dtype=np.int64),
    }
    direct = hops == np.array([question.distance for question in questions])
    return {
        "test": Measurements(columns),
        "direct": Measurements({name: values[direct] for name, values in columns.items()}),
    }
