"""The learning rate, the loss, and an update of several batches."""

import copy
import math
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from messages import raises
from torch import Tensor
from torch.nn.functional import cross_entropy

from edgewise.data.batches import Batch, Batches, padded
from edgewise.data.corpus import Corpus
from edgewise.data.prepare import Bitext, prepare
from edgewise.data.text import TextFile
from edgewise.data.vocabulary import BEGIN, END, PAD
from edgewise.errors import EdgewiseError
from edgewise.model.initial import initialise
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer
from edgewise.training import loss
from edgewise.training.loss import summed_loss
from edgewise.training.schedule import learning_rate
from edgewise.training.settings import RunSettings, TrainingSettings
from edgewise.training.trainer import Trainer

CONFIGS = Path(__file__).parents[2] / "configs"
VOCABULARY = 17


pytestmark = pytest.mark.usefixtures("one_thread")


# The learning rate.


@pytest.mark.parametrize(
    ("step", "expected"),
    # d_model = 64, warmup = 16: 1/8 · min(t^-1/2, t / 64)
    [(1, 1 / 512), (4, 1 / 128), (16, 1 / 32), (64, 1 / 64), (400, 1 / 160)],
)
@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_the_learning_rate_at_points_computed_by_hand(
    step: int, expected: float, factor: float
) -> None:
    actual = learning_rate(step, d_model=64, warmup=16, factor=factor)
    assert actual == pytest.approx(factor * expected, rel=1e-12)


def test_the_learning_rate_has_its_peak_at_the_end_of_the_warm_up() -> None:
    rates = [learning_rate(step, d_model=48, warmup=37) for step in range(1, 200)]
    assert rates.index(max(rates)) + 1 == 37
    assert rates[:37] == sorted(rates[:37])
    assert rates[36:] == sorted(rates[36:], reverse=True)


def test_the_linear_schedule_decays_from_the_same_peak_to_zero_after_the_last_update() -> None:
    # d_model = 64, warmup = 16, 20 updates: the peak is 1/32, the steps down are fifths of it.
    rates = [learning_rate(step, d_model=64, warmup=16, decay_to=20) for step in range(1, 23)]
    assert rates[:16] == [learning_rate(step, d_model=64, warmup=16) for step in range(1, 17)]
    expected = [1 / 32, 4 / 160, 3 / 160, 2 / 160, 1 / 160, 0, 0]
    assert rates[15:] == pytest.approx(expected, rel=1e-12, abs=0)


def test_training_uses_the_schedule_that_is_set() -> None:
    from edgewise.model.settings import ModelSettings
    from edgewise.model.transformer import Transformer
    from edgewise.training.trainer import Trainer

    model = Transformer(ModelSettings(d_model=64, heads=2, d_ff=8), 300)
    for schedule, expected in (("inverse_sqrt", 18**-0.5 / 8), ("linear", 3 / 160)):
        settings = TrainingSettings(steps=20, warmup=16, schedule=schedule)
        trainer = Trainer(model, settings)
        assert trainer.learning_rate(18) == pytest.approx(expected, rel=1e-12)


def test_the_papers_peak_is_that_of_its_formula() -> None:
    settings = TrainingSettings()
    rate = learning_rate(settings.warmup, 512, settings.warmup, settings.factor)
    assert rate == pytest.approx((512 * 4000) ** -0.5, rel=1e-12)


def test_the_recipe_of_multi30k_has_its_peak_of_0_005() -> None:
    settings = RunSettings(**tomllib.loads((CONFIGS / "multi30k.toml").read_text()))
    training = settings.training
    rate = learning_rate(
        *(training.warmup, settings.model.d_model, training.warmup, training.factor)
    )
    assert rate == pytest.approx(0.005, rel=1e-6)


# The loss.


def example(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(3, 5, 7, generator=generator, dtype=torch.float64)
    target = torch.randint(1, 7, (3, 5), generator=generator)
    target[0, 3:] = target[2, 4:] = PAD
    return logits, target


def by_hand(logits: Tensor, target: Tensor, smoothing: float) -> tuple[float, Tensor]:
    """The loss and its gradient by the formula, token by token."""
    pieces = logits.shape[-1]
    loss, gradient = 0.0, torch.zeros_like(logits)
    for row in range(len(logits)):
        for i in range(logits.shape[1]):
            if target[row, i] == PAD:
                continue
            values = logits[row, i].tolist()
            total = math.fsum(math.exp(value) for value in values)
            for piece, value in enumerate(values):
                wanted = smoothing / pieces
                wanted += 1 - smoothing if piece == target[row, i] else 0.0
                probability = math.exp(value) / total
                loss -= wanted * math.log(probability)
                gradient[row, i, piece] = probability - wanted
    return loss, gradient


def loss_by_logits(logits: Tensor, target: Tensor, smoothing: float = 0.0) -> Tensor:
    """The states are the logits where the table is the identity."""
    return summed_loss(logits, torch.eye(logits.shape[-1]).to(logits), target, smoothing)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.45])
def test_the_loss_and_its_gradient_are_those_of_the_formula(smoothing: float) -> None:
    logits, target = example()
    logits.requires_grad_()
    loss = loss_by_logits(logits, target, smoothing)
    loss.backward()
    expected, gradient = by_hand(logits.detach(), target, smoothing)
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, gradient, rtol=0, atol=1e-6)


def test_padding_adds_nothing_to_loss_or_gradient() -> None:
    logits, target = example()
    logits.requires_grad_()
    loss_by_logits(logits, target, 0.1).backward()
    assert logits.grad is not None
    assert not logits.grad[target == PAD].any()
    assert logits.grad[target != PAD].any(-1).all()
    longer = torch.cat((logits.detach(), torch.full((3, 2, 7), 50.0)), dim=1)
    padding = torch.full((3, 2), PAD)
    same = loss_by_logits(longer, torch.cat((target, padding), dim=1), 0.1)
    torch.testing.assert_close(same, loss_by_logits(logits.detach(), target, 0.1))


def test_without_smoothing_it_is_the_negative_log_likelihood() -> None:
    logits, target = example()
    log = logits.log_softmax(-1).gather(-1, target[..., None])[..., 0]
    expected = -log[target != PAD].sum()
    torch.testing.assert_close(loss_by_logits(logits, target).double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows", [1, 4, 100])
def test_in_slices_it_is_pytorch_s_loss_of_all_logits_with_the_same_gradients(
    rows: int, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces, width = 11, 5
    monkeypatch.setattr(loss, "SLICE", rows * pieces)
    random = torch.Generator().manual_seed(2)
    shapes = ((3, 7, width), (pieces, width))
    leaves = [
        (3 * torch.randn(shape, dtype=torch.float64, generator=random)).requires_grad_()
        for shape in shapes
    ]
    target = torch.randint(0, pieces, (3, 7), generator=random)
    target[1, 4:] = PAD

    def expected(states: Tensor, table: Tensor) -> Tensor:
        return cross_entropy(
            *((states @ table.T).flatten(0, 1), target.flatten()),
            ignore_index=PAD,
            label_smoothing=smoothing,
            reduction="sum",
        )

    values = []
    for function in (lambda *x: summed_loss(*x, target, smoothing), expected):
        value = function(*leaves)
        # As it is used: divided, and its embeddings used elsewhere as well.
        whole = value / 3 + leaves[1].square().sum()
        values.append((value, *torch.autograd.grad(whole, leaves)))
    for actual, wanted in zip(*values, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        without = summed_loss(*leaves, target, smoothing)
    torch.testing.assert_close(without, values[0][0], rtol=1e-12, atol=0)


def test_a_probability_too_small_for_a_float_still_has_its_logarithm() -> None:
    logits = torch.tensor([[[0.0, 0.0, 0.0, 0.0, -900.0, 700.0]]])
    loss = loss_by_logits(logits, torch.tensor([[4]]))
    assert loss.item() == pytest.approx(1600.0)


def test_the_gradient_can_be_taken_once() -> None:
    logits, target = example()
    value = loss_by_logits(logits.requires_grad_(), target)
    value.backward(retain_graph=True)
    with raises(EdgewiseError, "loss"):
        value.backward()


def test_under_autocast_products_are_half_and_the_loss_is_single() -> None:
    random = torch.Generator().manual_seed(1)
    states, table = (torch.randn(size, generator=random) for size in ((2, 9, 16), (50, 16)))
    target = torch.randint(1, 50, (2, 9), generator=random)
    leaves = [states.requires_grad_(), table.requires_grad_()]
    expected = torch.autograd.grad(summed_loss(*leaves, target, 0.1), leaves)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = summed_loss(*leaves, target, 0.1)
    assert loss.dtype == torch.float32
    exact = summed_loss(*leaves, target, 0.1)
    assert loss != exact
    torch.testing.assert_close(loss, exact, rtol=2**-8, atol=0)
    for actual, wanted in zip(torch.autograd.grad(loss, leaves), expected, strict=True):
        assert actual.dtype == torch.float32
        assert (actual - wanted).norm() < 2**-6 * wanted.norm()


def test_the_loss_of_low_precision_logits_is_summed_in_single_precision() -> None:
    logits, target = example()
    loss = loss_by_logits(logits.bfloat16(), target, 0.1)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, loss_by_logits(logits.bfloat16().float(), target, 0.1))


# An update.


def model_of(**changes: float) -> Transformer:
    settings = ModelSettings(
        **{"encoder_layers": 1, "decoder_layers": 2, "d_model": 12, "heads": 3, "d_ff": 20},
        **{"dropout": 0.0, "max_distance": 2, **changes},
    )
    model = Transformer(settings, VOCABULARY)
    initialise(model, 3)
    return model.double()


def batch_of(rows: int, n_source: int, n_target: int, seed: int) -> Batch:
    """Rows of different lengths, padded."""
    random = np.random.default_rng(seed)

    def sentences(n: int) -> list[list[int]]:
        return [random.integers(4, VOCABULARY, max(1, n - row)).tolist() for row in range(rows)]

    source, target = padded(sentences(n_source)), padded(sentences(n_target))
    target_input = np.full_like(target, BEGIN)
    target_input[:, 1:] = np.where(target[:, :-1] == END, PAD, target[:, :-1])
    return Batch(source, target_input, target)


BATCHES = [batch_of(2, 5, 3, 0), batch_of(4, 6, 7, 1), batch_of(3, 4, 5, 2)]


def loss_of(model: Transformer, batch: Batch, smoothing: float) -> Tensor:
    source, target_input, target = map(
        torch.from_numpy, (batch.source, batch.target_input, batch.target)
    )
    logits = model(source, source != PAD, target_input).flatten(0, 1)
    return torch.nn.functional.cross_entropy(
        logits, target.flatten(), ignore_index=PAD, reduction="sum", label_smoothing=smoothing
    )


def gradients_of(model: Transformer) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("changes", [{}, {"bias": True, "share_embeddings": False}])
def test_an_update_takes_the_gradient_of_the_loss_per_token_of_all_its_batches(
    changes: dict[str, bool],
) -> None:
    trainer, model = (
        Trainer(model_of(**changes), TrainingSettings(device="cpu")),
        model_of(**changes),
    )
    update = trainer.update(1, BATCHES)
    tokens = [int((batch.target != PAD).sum()) for batch in BATCHES]
    assert len(set(tokens)) == 3
    losses = [loss_of(model, batch, 0.1) for batch in BATCHES]
    (torch.stack(losses).sum() / sum(tokens)).backward()
    expected, actual = gradients_of(model), gradients_of(trainer.model)
    assert actual.keys() == expected.keys() == dict(model.named_parameters()).keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, rtol=1e-6, atol=1e-8, msg=name)
    total = sum(loss.item() for loss in losses)
    assert update.loss == pytest.approx(total / sum(tokens), rel=1e-6)
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in expected.values()))
    assert update.gradient_norm == pytest.approx(norm, rel=1e-6)
    assert update.target_tokens == sum(tokens)
    assert update.source_tokens == sum(int((batch.source != PAD).sum()) for batch in BATCHES)
    # Means of batches, averaged, would be something else.
    means = sum(loss.item() / count for loss, count in zip(losses, tokens, strict=True)) / 3
    assert update.loss != pytest.approx(means, rel=1e-3)


def test_updates_are_adam_s_with_the_papers_constants() -> None:
    settings = TrainingSettings(device="cpu", warmup=4, factor=0.7)
    trainer = Trainer(model_of(), settings)
    (group,) = trainer.optimizer.param_groups
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.9, 0.98), 1e-9, 0)
    first = {name: torch.zeros_like(p) for name, p in trainer.parameters.items()}
    second = copy.deepcopy(first)
    for step in (1, 2, 3):
        before = {name: p.detach().clone() for name, p in trainer.parameters.items()}
        update = trainer.update(step, BATCHES[step - 1 :])
        rate = 0.7 * 12**-0.5 * step * 4**-1.5
        assert update.learning_rate == pytest.approx(rate, rel=1e-12)
        assert update.step == step
        for name, gradient in gradients_of(trainer.model).items():
            first[name] = 0.9 * first[name] + 0.1 * gradient
            second[name] = 0.98 * second[name] + 0.02 * gradient**2
            mean, square = first[name] / (1 - 0.9**step), second[name] / (1 - 0.98**step)
            expected = before[name] - rate * mean / (square.sqrt() + 1e-9)
            actual = trainer.parameters[name].detach()
            torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12, msg=name)


def test_dropout_depends_on_seed_update_and_batch_and_on_nothing_else() -> None:
    def loss(step: int, batches: list[Batch], seed: int = 1) -> float:
        trainer = Trainer(model_of(dropout=0.5), TrainingSettings(device="cpu", seed=seed))
        return trainer.update(step, batches).loss

    one = [BATCHES[0]]
    assert loss(1, one) == loss(1, one)
    assert len({loss(1, one), loss(2, one), loss(1, one, seed=2)}) == 3
    # Two equal batches in one update have different dropout masks.
    assert loss(1, one * 2) != pytest.approx(loss(1, one), rel=1e-6)


def test_gradients_are_clipped_to_their_longest_length_and_told_as_they_were() -> None:
    free = Trainer(model_of(), TrainingSettings(device="cpu")).update(1, BATCHES)
    limit = free.gradient_norm / 3
    trainer = Trainer(model_of(), TrainingSettings(device="cpu", clip=limit))
    assert trainer.update(1, BATCHES).gradient_norm == pytest.approx(free.gradient_norm)
    gradients = gradients_of(trainer.model).values()
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
    assert norm == pytest.approx(limit, rel=1e-4)


def test_an_optimizer_that_is_restored_goes_on_the_same_way() -> None:
    settings = TrainingSettings(device="cpu", warmup=4)
    trainer = Trainer(model_of(), settings)
    trainer.update(1, BATCHES)
    again = Trainer(copy.deepcopy(trainer.model), settings)
    again.restore_optimizer(copy.deepcopy(trainer.optimizer_tensors()))
    fresh = Trainer(copy.deepcopy(trainer.model), settings)
    for other in (trainer, again, fresh):
        other.update(2, BATCHES)
    for name, parameter in trainer.parameters.items():
        assert torch.equal(parameter, again.parameters[name]), name
        assert not torch.equal(parameter, fresh.parameters[name]), name


def test_validation_is_the_mean_over_tokens_without_smoothing_or_dropout(tmp_path: Path) -> None:
    lines = [("a b", "c"), ("b", "c b a c b a c"), ("c c a b", "b a"), ("a", "a b c")]
    for side, name in enumerate(("source", "target")):
        (tmp_path / name).write_text("".join(f"{line[side]}\n" for line in lines))
    bitext = Bitext(TextFile(tmp_path / "source"), TextFile(tmp_path / "target"))
    prepare(tmp_path / "corpus", [bitext], vocab=266)
    corpus = Corpus(tmp_path / "corpus")
    settings = ModelSettings(
        **{"encoder_layers": 1, "decoder_layers": 1, "d_model": 12, "heads": 3, "d_ff": 20},
        dropout=0.5,
    )
    model = Transformer(settings, corpus.vocabulary.size)
    initialise(model, 3)
    batches = Batches(corpus.train, 20, seed=0)
    assert len(batches.epoch(0)) > 1
    trainer = Trainer(model, TrainingSettings(device="cpu"))
    model.train()
    actual = trainer.validate(batches)
    model.eval()
    with torch.no_grad():
        pairs = [batches.batch(np.array([index])) for index in range(4)]
        losses = [loss_of(model, pair, 0.0).item() for pair in pairs]
    tokens = sum(pair.target_tokens for pair in pairs)
    assert actual == pytest.approx(sum(losses) / tokens, rel=1e-5)
