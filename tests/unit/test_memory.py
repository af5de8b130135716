"""Keeping freed memory: what the C library is told, and what comes of it."""

import platform
import subprocess
import sys

import pytest

# A tensor of 64 MB, freed, and then one that is smaller: whether the system had to map pages anew.
SCRIPT = """
import resource, sys, torch
from edgewise.training.memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
torch.set_num_threads(1)
faults = []
for smaller in range(6):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    x = torch.ones((1 << 24) - smaller * (1 << 18))
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    del x
print(min(faults))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt as we use it")
def test_memory_that_was_freed_is_not_mapped_anew() -> None:
    faults = {
        word: int(subprocess.check_output([sys.executable, "-c", SCRIPT, word]))
        for word in ("keep", "leave")
    }
    assert faults["keep"] < 10 < faults["leave"]


def test_a_system_without_mallopt_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgewise.training import memory

    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: object())
    assert memory.keep_freed_memory() is False
