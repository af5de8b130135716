"""One update: gradients of several batches, added up, and a step of Adam."""

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.data.batches import Batch, Batches
from edgewise.data.vocabulary import PAD
from edgewise.errors import EdgewiseError, SettingError
from edgewise.model.initial import seed_of
from edgewise.model.transformer import Transformer
from edgewise.training.loss import summed_loss
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


class Trainer:
    """A model, its optimiser, and how both are moved by batches."""

    def __init__(self, model: Transformer, settings: TrainingSettings) -> None:
        self.settings = settings
        self.device = device_of(settings)
        self.model = model.to(self.device)
        self.parameters = dict(model.named_parameters())
        # Adam's constants are the paper's; the learning rate is set at each update.
        self.optimizer = torch.optim.Adam(
            self.parameters.values(), lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True
        )
        self._logits = torch.compile(model, dynamic=True) if settings.compile else model

    def update(self, step: int, batches: Sequence[Batch]) -> Update:
        """Update number `step`, the first is 1, by the gradient over all these batches."""
        settings = self.settings
        source_tokens = sum(batch.source_tokens for batch in batches)
        target_tokens = sum(batch.target_tokens for batch in batches)
        rate = learning_rate(step, self.model.settings.d_model, settings.warmup, settings.factor)
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for index, batch in enumerate(batches):
            # Dropout depends on where it is drawn, not on what was drawn before: a run that is
            # continued draws the same.
            torch.manual_seed(seed_of(settings.seed, step, index))
            # Divided by the tokens of all batches, so that each token counts the same.
            loss = self._loss(batch, settings.label_smoothing) / target_tokens
            loss.backward()
            total += loss.item()
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        length = norm.item()
        if not math.isfinite(total) or not math.isfinite(length):
            raise EdgewiseError(
                f"update {step} is not made: its loss is {total}, the gradient's length {length}; "
                "the last checkpoint is from before (a lower training.factor, a longer "
                "training.warmup or training.clip may help)"
            )
        if settings.clip is not None:
            torch.nn.utils.clip_grads_with_norm_(self.parameters.values(), settings.clip, norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        return Update(step, total, rate, length, source_tokens, target_tokens)

    @torch.no_grad()
    def validate(self, batches: Batches) -> float:
        """Mean negative log-likelihood of the target tokens: no smoothing, no dropout."""
        self.model.eval()
        epoch = batches.epoch(0)
        losses, tokens = [], 0
        for index in range(len(epoch)):
            batch = batches.batch(epoch[index])
            losses.append(self._loss(batch, 0.0).item())
            tokens += batch.target_tokens
        return math.fsum(losses) / tokens

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

    def _loss(self, batch: Batch, smoothing: float) -> Tensor:
        source, target_input, target = (
            torch.from_numpy(array).to(self.device, non_blocking=True)
            for array in (batch.source, batch.target_input, batch.target)
        )
        mask = None if (batch.source != PAD).all() else source != PAD
        with self._precision():
            return summed_loss(self._logits(source, mask, target_input), target, smoothing)

    def _precision(self) -> AbstractContextManager[object]:
        if self.settings.mixed_precision:
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()


def device_of(settings: TrainingSettings) -> torch.device:
    """The device that is meant; SettingError if it is not there."""
    name = settings.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        raise SettingError(
            f"training.device must be auto, cpu, or a GPU of this machine such as cuda:0; got "
            f"{settings.device!r}: {str(error).splitlines()[0]}"
        ) from None
    if settings.mixed_precision and device.type == "cpu":
        raise SettingError("training.mixed_precision is for GPUs; the device is the CPU")
    return device
