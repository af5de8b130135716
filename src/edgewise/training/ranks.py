"""The processes that train together, one for each device, as torchrun starts them.

A process alone is one of one: everything here then does nothing. Only rank 0 writes and speaks.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from edgewise.errors import EdgewiseError, SettingError
from edgewise.training.errors import ElsewhereError
from edgewise.training.meeting import launch_store, meeting_place

# Elements of gradients that are sent at a time: large enough for the network, small beside a model.
MESSAGE = 1 << 24


@dataclass(frozen=True)
class Ranks:
    """Which process this is, of how many; `local` counts those on this machine."""

    rank: int = 0
    size: int = 1
    local: int = 0
    restarts: int = 0  # how often torchrun has started all processes anew
    launched: bool = False  # by torchrun, which sends on the signals that it gets

    @classmethod
    def of_environment(cls) -> "Ranks":
        """As torchrun says in the environment."""
        alone = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "TORCHELASTIC_RESTART_COUNT": 0}
        given = {name: os.environ.get(name, value) for name, value in alone.items()}
        try:
            rank, size, local, restarts = map(int, given.values())
        except ValueError:
            rank, size = -1, 0
        if not 0 <= rank < size:
            shown = ", ".join(f"{name}={value}" for name, value in given.items())
            raise SettingError(
                f"the environment must name a rank below the number of ranks; got {shown} "
                "(start several processes with torchrun)"
            )
        return cls(rank, size, local, restarts, "TORCHELASTIC_RUN_ID" in os.environ)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @contextmanager
    def joined(self, device: torch.device) -> Iterator[Store | None]:
        """Meet the other processes; leave them at the end.

        Gives torchrun's store if it is one that outlives restarts.
        """
        lasting = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        if self.size == 1:
            yield launch_store(0, 1) if lasting else None
            return
        backend = "gloo"
        if device.type == "cuda":
            torch.cuda.set_device(device)
            backend = "cpu:gloo,cuda:nccl"
        with _contact():
            store = launch_store(self.rank, self.size)
            place = meeting_place(store, self.rank, self.size)
            dist.init_process_group(backend, store=place, rank=self.rank, world_size=self.size)
        try:
            yield store if lasting else None
        except BaseException:
            if device.type == "cpu":  # nccl would wait for the others, who may wait for this one
                dist.destroy_process_group()
            raise
        dist.destroy_process_group()

    @contextmanager
    def together(self) -> Iterator[None]:
        """What fails on one rank fails on all of them; the lowest that failed tells why."""
        error: EdgewiseError | OSError | None = None
        try:
            yield
        except (EdgewiseError, OSError) as caught:
            error = caught
        failed = self.highest(0 if error is None else self.size - self.rank)
        if error is not None and failed == self.size - self.rank:
            raise error
        if failed:
            raise ElsewhereError

    def agreed(self, error: EdgewiseError) -> EdgewiseError:
        """What to raise where all ranks have come to the same error."""
        return error if self.is_first else ElsewhereError(error)

    def summed(self, values: Sequence[float]) -> list[float]:
        """The sum over all ranks of each of these."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def highest(self, value: int) -> int:
        """The highest of what the ranks say."""
        return int(self._reduced([float(value)], dist.ReduceOp.MAX)[0])

    def sum_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Replace each by its sum over all ranks.

        In messages that are the same each time: three or more ranks then add in the same order
        each time, and a run that is continued comes to the same bits. (PyTorch's own way orders
        its messages anew after the first update of a process.)
        """
        if self.size == 1:
            return
        for some in messages(gradients):
            joined = torch.cat([gradient.flatten() for gradient in some])
            with _contact():
                dist.all_reduce(joined)
            sizes = [gradient.numel() for gradient in some]
            for gradient, total in zip(some, joined.split(sizes), strict=True):
                gradient.copy_(total.view_as(gradient))

    def told(self, value: Any) -> Any:
        """What rank 0 says, anything JSON can hold."""
        if self.size == 1:
            return value
        text = json.dumps(value).encode() if self.is_first else b""
        length = self.highest(len(text))
        content = torch.tensor(list(text) or [0] * length, dtype=torch.uint8)
        self.spread({"": content})
        return json.loads(bytes(content.tolist()))

    def spread(self, tensors: Mapping[str, Tensor]) -> None:
        """Give each rank the values of rank 0, in place."""
        if self.size > 1:
            with _contact():
                for tensor in tensors.values():
                    dist.broadcast(tensor, src=0)

    def _reduced(self, values: Sequence[float], how: Any) -> list[float]:
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        with _contact():
            dist.all_reduce(tensor, op=how)
        result: list[float] = tensor.tolist()
        return result


def messages(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """All of them in order, together up to MESSAGE elements, or one that is larger."""
    some: list[Tensor] = []
    for gradient in gradients:
        if some and sum(x.numel() for x in some) + gradient.numel() > MESSAGE:
            yield some
            some = []
        some.append(gradient)
    yield some


@contextmanager
def _contact() -> Iterator[None]:
    """Say what it means when a message to the other ranks fails."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError) as error:
        # "[file.cc:537] Read error [address]: reset by peer. This is typically caused by …"
        said = re.sub(r"^\[\S+\] ", "", str(error).splitlines()[0]).partition(". ")[0]
        raise EdgewiseError(
            f"lost contact with the other ranks: {said} (one of them has ended or cannot be "
            "reached; the last checkpoint is whole, and the same command goes on from it)"
        ) from None
