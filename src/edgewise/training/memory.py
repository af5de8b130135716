"""Memory of the system, and how this process asks for it."""

import ctypes
import os

# mallopt's parameters, of malloc.h.
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> bool:
    """Let the C library keep what is freed; False where its allocator cannot be told (no glibc).

    A step frees and asks again for the same gigabytes. By default large tensors are mapped afresh,
    and the system clears their pages one by one.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    never = -1  # the largest number there is, to mallopt
    wanted = ((MMAP_MAX, 0), (TRIM_THRESHOLD, never), (TOP_PAD, 64 << 20))
    done = [mallopt(parameter, value) for parameter, value in wanted]
    return all(answer == 1 for answer in done)


def physical_memory() -> int | None:
    """Return the bytes of memory that the machine has; None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
