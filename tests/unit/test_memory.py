"""`keep_freed_memory`: the C library's allocator keeps what is freed."""

import ctypes
import platform
import subprocess
import sys

import pytest

# A block of 64 MiB is allocated and freed. Printed: how much of it was mapped outside of the heap,
# and by how much the heap has grown once it is freed.
SCRIPT = """
import ctypes, sys
from edgewise.training.memory import keep_freed_memory

class Mallinfo(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    _fields_ = [(name, ctypes.c_size_t) for name in names]

libc = ctypes.CDLL(None)
mallinfo, libc.malloc.restype = libc.mallinfo2, ctypes.c_void_p
mallinfo.restype = Mallinfo
if sys.argv[1] == "keep":
    assert keep_freed_memory()
before = mallinfo()
block = libc.malloc(ctypes.c_size_t(64 << 20))
mapped = mallinfo().hblkhd - before.hblkhd
libc.free(ctypes.c_void_p(block))
print(mapped, mallinfo().arena - before.arena)
"""
SIZE = 64 << 20


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="mallinfo2 needs glibc 2.33"
)
def test_a_large_block_is_taken_from_the_heap_and_stays_there_when_freed() -> None:
    mapped, kept = (
        [int(n) for n in subprocess.check_output([sys.executable, "-c", SCRIPT, word]).split()]
        for word in ("leave", "keep")
    )
    assert mapped[0] >= SIZE and mapped[1] < SIZE
    assert kept[0] < SIZE <= kept[1]


def test_a_system_without_mallopt_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgewise.training import memory

    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: object())
    assert memory.keep_freed_memory() is False
