"""`training.compile`: the compiled model trains as the plain one does."""

from functools import partial

import numpy as np
import pytest
import torch
from conftest import require_cpp_compiler

from edgewise.data.batches import Batch, padded
from edgewise.data.vocabulary import BEGIN, END, PAD
from edgewise.model.initial import initialise
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer
from edgewise.training.settings import TrainingSettings
from edgewise.training.trainer import Trainer

pytestmark = pytest.mark.unhooked


def batch(rows: int, n_source: int, n_target: int) -> Batch:
    random = np.random.default_rng(rows)
    source = padded([random.integers(4, 50, n_source - i % 2) for i in range(rows)])
    target = padded([random.integers(4, 50, n_target) for _ in range(rows)])
    begins = np.full((rows, 1), BEGIN)
    target_input = np.concatenate((begins, np.where(target == END, PAD, target)[:, :-1]), axis=1)
    return Batch(source, target_input, target)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
def test_compiled_updates_are_the_plain_ones(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if backend == "inductor":
        require_cpp_compiler()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    settings = ModelSettings(
        encoder_layers=1, decoder_layers=1, d_model=16, heads=2, d_ff=24, dropout=0, max_distance=3
    )
    losses = []
    with torch._inductor.utils.fresh_cache():
        for compiled in (False, True):
            model = Transformer(settings, 50)
            initialise(model, seed=1)
            trainer = Trainer(model, TrainingSettings(compile=compiled, warmup=10, device="cpu"))
            steps = [(3, 5, 7), (4, 6, 9), (2, 8, 5)]
            losses.append([trainer.update(i + 1, [batch(*s)]).loss for i, s in enumerate(steps)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
