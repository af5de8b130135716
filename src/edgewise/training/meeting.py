"""How the processes of a run find each other, also after some have died.

torchrun gives the store of processes that have died to those it starts anew (pytorch#135712), and
whoever looks there for the address of another may find that of the dead. Its count of restarts does
not help: each machine counts its own. Hence rank 0 names a new part of the store, and answers each
one that asks, under a name that nobody had before.
"""

import time
import uuid

from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

NAME = "edgewise"  # what is ours in torchrun's store
PATIENCE = 1800  # seconds, as PyTorch's for messages


def launch_store(rank: int, size: int) -> Store:
    """Torchrun's: it lasts as long as torchrun, over all restarts."""
    store, _, _ = next(rendezvous("env://", rank, size))
    return PrefixStore(NAME, store)


def meeting_place(store: Store, rank: int, size: int) -> Store:
    """A part of that store which is of these very processes."""
    if rank > 0:
        me = uuid.uuid4().hex
        store.set(str(rank), me)
        room = store.get(me).decode()  # waits until it is there
        store.set(f"{room}/{rank}", "")
        return PrefixStore(room, store)
    room, waiting = uuid.uuid4().hex, set(range(1, size))
    end = time.monotonic() + PATIENCE
    while waiting and time.monotonic() < end:
        for other in [*waiting]:
            if store.check([str(other)]):
                store.set(store.get(str(other)).decode(), room)
            if store.check([f"{room}/{other}"]):
                waiting.remove(other)
        time.sleep(0.01)
    if waiting:
        raise RuntimeError(f"ranks {sorted(waiting)} did not come within {PATIENCE} seconds")
    return PrefixStore(room, store)
