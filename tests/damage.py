"""Ways to damage a model folder, drawn at random: what disks, downloads and strangers do to one."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgewise.storage import MANIFEST, seal

ABSURD_SIZE = 1 << 40
NUMBERS: tuple[Any, ...] = (
    *(0, -1, 10**9, 10**18, 10**30, 0.5, 1e308, float("inf"), float("nan")),
    *(None, True, "", "x", [], {}, [[]] * 3),
)
Damage = Callable[[Path, Path, random.Random], None]


def damage(folder: Path, kind: str, version: int, rng: random.Random) -> str:
    """Damage one file of a folder; return what was done to it.

    kind, version: of the folder. Half of the damages of JSON and of headers are sealed again, so
    that what they change is read.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = rng.choice(files)
    ways = {**REPLACEMENTS, **CHANGES}
    if path.suffix == ".json":
        ways |= dict.fromkeys(("a value", "another value", "a third value"), change_value)
    if path.suffix == ".safetensors":
        ways |= dict.fromkeys(("another type", "a header"), change_header)
    name = rng.choice(sorted(ways))
    ways[name](path, folder, rng)
    inside = path.suffix == ".json" or ways[name] is change_header
    sealed = inside and name not in REPLACEMENTS and path.name != MANIFEST and rng.random() < 0.5
    if sealed:
        (folder / MANIFEST).unlink()
        seal(folder, kind, version)
    return f"{name}: {path.relative_to(folder)}{', sealed' if sealed else ''}"


def truncate(path: Path, folder: Path, rng: random.Random) -> None:
    os.truncate(path, rng.choice([0, rng.randrange(path.stat().st_size + 1)]))


def flip(path: Path, folder: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def append(path: Path, folder: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.randrange(1, 100)))


def noise(path: Path, folder: Path, rng: random.Random) -> None:
    path.write_bytes(rng.randbytes(rng.choice([1, 8, path.stat().st_size])))


def absurd_size(path: Path, folder: Path, rng: random.Random) -> None:
    os.truncate(path, ABSURD_SIZE)  # sparse: it takes no room


def missing(path: Path, folder: Path, rng: random.Random) -> None:
    path.unlink()


def directory(path: Path, folder: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()


def fifo(path: Path, folder: Path, rng: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def link(path: Path, folder: Path, rng: random.Random) -> None:
    outside = folder.with_name(f"{folder.name}-outside")
    shutil.copyfile(path, outside)
    others = [each for each in folder.rglob("*") if each.is_file() and each != path]
    path.unlink()
    path.symlink_to(
        rng.choice(["/dev/zero", "/dev/tty", path, "nothing", outside, folder, rng.choice(others)])
    )


def exchange(path: Path, folder: Path, rng: random.Random) -> None:
    other = rng.choice([each for each in sorted(folder.rglob("*")) if each.is_file()])
    one, two = path.read_bytes(), other.read_bytes()
    path.write_bytes(two)
    other.write_bytes(one)


CHANGES: dict[str, Damage] = {
    "truncated": truncate,
    "a flipped bit": flip,
    "another flipped bit": flip,
    "bytes appended": append,
    "noise": noise,
}
REPLACEMENTS: dict[str, Damage] = {
    "absurd size": absurd_size,
    "missing": missing,
    "a directory": directory,
    "a FIFO": fifo,
    "a link": link,
    "exchanged with another file": exchange,
}


def change_value(path: Path, folder: Path, rng: random.Random) -> None:
    """Put another value into a JSON file, anywhere in it."""
    content = json.loads(path.read_bytes())
    at = content
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return
        key = rng.choice(keys)
        inner = at[key]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.2:
            break
        at = inner
    if isinstance(at, dict) and rng.random() < 0.15:
        del at[key]
    else:
        at[key] = rng.choice(NUMBERS)
    path.write_text(json.dumps(content))


def change_header(path: Path, folder: Path, rng: random.Random) -> None:
    """Change types, shapes, names or offsets in the header of a safetensors file."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    names = [name for name in header if name != "__metadata__"]
    name = rng.choice(names)
    entry = header[name]
    way = rng.randrange(6)
    if way == 0:
        for each in names if rng.random() < 0.5 else [name]:
            header[each]["dtype"] = rng.choice(["I32", "U32", "F64", "F16", "BF16", "BOOL", "X9"])
    elif way == 1:
        entry["shape"] = rng.choice(
            [[*entry["shape"], 1], entry["shape"][::-1], [10**18, 10**18], [-1], [], [2**64]]
        )
    elif way == 2:
        header[f"{name}.{rng.randrange(99)}"] = header.pop(name)
    elif way == 3:
        entry["data_offsets"] = [rng.choice([0, 8, 2**63]), rng.choice([0, 64, 2**64 - 1])]
    elif way == 4:
        other = header[rng.choice(names)]
        entry["data_offsets"], other["data_offsets"] = other["data_offsets"], entry["data_offsets"]
    else:
        del header[name]
    new = json.dumps(header).encode()
    length = rng.choice([len(new)] * 9 + [2**62]).to_bytes(8, "little")
    path.write_bytes(length + new + content[8 + size :])
