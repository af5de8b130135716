"""How this process asks the system for memory."""

import ctypes

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
