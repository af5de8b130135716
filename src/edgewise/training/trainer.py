"""One update: gradients of several batches, added up over all ranks, and a step of Adam."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from edgewise.data.batches import Batch, Batches
from edgewise.data.vocabulary import PAD
from edgewise.decoding.device import device_named, within_memory
from edgewise.decoding.sources import seen
from edgewise.errors import SettingError
from edgewise.model.initial import seed_of
from edgewise.model.transformer import Transformer
from edgewise.training.errors import NotFiniteError
from edgewise.training.loss import summed_loss
from edgewise.training.ranks import Ranks
from edgewise.training.schedule import learning_rate
from edgewise.training.settings import TrainingSettings


@dataclass(frozen=True)
class Update:
    """What an update was like."""

    step: int
    loss: float  # with label smoothing, per target token
    learning_rate: float
    gradient_norm: float
    source_tokens: int
    target_tokens: int


@dataclass(frozen=True)
class Totals:
    """The batches of an update, of all ranks."""

    batches: int
    source_tokens: int
    target_tokens: int

    @classmethod
    def of(cls, batches: Sequence[Batch]) -> "Totals":
        source = sum(batch.source_tokens for batch in batches)
        return cls(len(batches), source, sum(batch.target_tokens for batch in batches))


class Trainer:
    """A model, its optimiser, and how both are moved by batches."""

    def __init__(
        self, model: Transformer, settings: TrainingSettings, ranks: Ranks | None = None
    ) -> None:
        self.settings, self.ranks = settings, ranks or Ranks()
        self.device = device_of(settings, self.ranks)
        self.model = model.to(self.device)
        self.parameters = dict(model.named_parameters())
        # Adam's constants are the paper's; the learning rate is set at each update.
        self.optimizer = torch.optim.Adam(
            self.parameters.values(), lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True
        )
        # Made now, not by the first update among what it frees: that would tear the memory.
        self.restore_optimizer(self._blank())
        self._states = (
            torch.compile(model.states, dynamic=True) if settings.compile else model.states
        )

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of update number `step`."""
        settings = self.settings
        return learning_rate(
            *(step, self.model.settings.d_model, settings.warmup, settings.factor),
            decay_to=settings.steps if settings.schedule == "linear" else None,
        )

    def update(self, step: int, batches: Sequence[Batch], totals: Totals | None = None) -> Update:
        """Update number `step`, the first is 1, by the gradient over all batches of all ranks.

        batches: this rank's; number i of them is number i * size + rank of all.
        totals: what the batches of all ranks are; these are all unless given.
        """
        settings, size = self.settings, self.ranks.size
        totals = totals or Totals.of(batches)
        rate = self.learning_rate(step)
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        losses = [torch.zeros(())] * totals.batches
        for i, batch in enumerate(batches):
            index = i * size + self.ranks.rank
            # Dropout depends on where it is drawn, not on what was drawn before, nor by whom: a
            # run that is continued draws the same, on as many ranks or on others.
            torch.manual_seed(seed_of(settings.seed, step, index))
            with self._within_memory(f"batch {index + 1} of update {step}", batch):
                # Divided by the tokens of all batches, so that each token counts the same.
                loss = self._loss(batch, settings.label_smoothing) / totals.target_tokens
                loss.backward()
                losses[index] = loss.detach()
        with self._within_memory(f"update {step}", batches[-1]):
            # Read only now: reading waits for the GPU.
            of_batches = self.ranks.summed([loss.item() for loss in losses])
            total = math.fsum(of_batches)
            norm = torch.nn.utils.get_total_norm(self._gradients())
            length = norm.item()
            if not math.isfinite(total) or not math.isfinite(length):
                raise NotFiniteError(of_batches, length)
            if settings.clip is not None:
                torch.nn.utils.clip_grads_with_norm_(self.parameters.values(), settings.clip, norm)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
        return Update(step, total, rate, length, totals.source_tokens, totals.target_tokens)

    @torch.no_grad()
    def validate(self, batches: Batches) -> float:
        """Mean negative log-likelihood of the target tokens: no smoothing, no dropout."""
        self.model.eval()
        epoch = batches.epoch(0)
        losses = [0.0] * len(epoch)
        for index in range(self.ranks.rank, len(epoch), self.ranks.size):
            batch = batches.batch(epoch[index])
            with self._within_memory(f"batch {index + 1} of the validation", batch):
                losses[index] = self._loss(batch, 0.0).item()
        _, tokens = batches.tokens(epoch.order)
        return math.fsum(self.ranks.summed(losses)) / tokens

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """Adam's moments and step count, by parameter."""
        state = self.optimizer.state
        return {
            f"{kind}/{name}": state[parameter][kind].detach().cpu().contiguous()
            for name, parameter in self.parameters.items()
            for kind in sorted(state[parameter])
        }

    def restore_optimizer(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `optimizer_tensors` gave."""
        parameters = list(self.parameters)
        state: dict[int, dict[str, Tensor]] = {i: {} for i in range(len(parameters))}
        for key, tensor in tensors.items():
            kind, _, name = key.partition("/")
            state[parameters.index(name)][kind] = tensor
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})

    def spread(self) -> None:
        """Give each rank the weights and the optimiser of rank 0."""
        self.ranks.spread({name: p.data for name, p in self.parameters.items()})
        if self.ranks.size > 1:
            tensors = self.optimizer_tensors()  # on the CPU: copies, if the model is elsewhere
            self.ranks.spread(tensors)
            self.restore_optimizer(tensors)

    def _blank(self) -> dict[str, Tensor]:
        """Those of an optimiser that has made no step."""
        return {
            f"{kind}/{name}": torch.zeros(()) if kind == "step" else torch.zeros_like(parameter)
            for name, parameter in self.parameters.items()
            for kind in ("exp_avg", "exp_avg_sq", "step")
        }

    def _loss(self, batch: Batch, smoothing: float) -> Tensor:
        source, target_input, target = (
            torch.from_numpy(array).to(self.device)
            for array in (batch.source, batch.target_input, batch.target)
        )
        settings = self.model.settings
        full = settings.source_end and (batch.source != PAD).all()
        mask = None if full else seen(source, settings)
        with self._precision():
            states = self._states(source, mask, target_input)
            table, bias = self.model.output_embedding.weight, self.model.output_bias
            if bias is not None:  # as one column more, of states that are 1 there
                states = pad(states, (0, 1), value=1.0)
                table = torch.cat((table, bias[:, None]), dim=1)
            return summed_loss(states, table, target, smoothing)

    def _gradients(self) -> list[Tensor]:
        """Of all ranks, added up once an update."""
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        self.ranks.sum_gradients(gradients)
        return gradients

    @contextmanager
    def _within_memory(self, where: str, batch: Batch) -> Iterator[None]:
        """Say which batch was too large, and what to lower."""
        rows, n_source = batch.source.shape
        size, count = self.settings.batch_tokens, self.settings.batches
        with within_memory(
            f"on {self.device} in {where}, {rows} pairs of {n_source} source and "
            f"{batch.target.shape[1]} target tokens: lower training.batch_tokens (it is "
            f"{size}) and raise training.batches (it is {count}) as much, for updates of the "
            "same size, in a new run (--init-from takes the weights of this one, if any are "
            "saved)"
        ):
            yield

    def _precision(self) -> AbstractContextManager[object]:
        if self.settings.mixed_precision:
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()


def device_of(settings: TrainingSettings, ranks: Ranks) -> torch.device:
    """The device that is meant, one for each rank; SettingError if it is not there."""
    several_on_gpus = ranks.size > 1 and torch.cuda.is_available()
    if several_on_gpus and settings.device.startswith("cuda:"):
        raise SettingError(
            f"training.device must be auto, cpu or cuda where several ranks train, each "
            f"on a GPU of its own; got {settings.device!r}"
        )
    if several_on_gpus and settings.device != "cpu" and ranks.local >= torch.cuda.device_count():
        raise SettingError(
            f"each rank needs a GPU of its own; this machine has "
            f"{torch.cuda.device_count()} and more ranks (lower --nproc-per-node)"
        )
    local = ranks.local if ranks.size > 1 else None
    device = device_named(settings.device, "training.device", local)
    if settings.mixed_precision and device.type == "cpu":
        raise SettingError("training.mixed_precision is for GPUs; the device is the CPU")
    return device
