"""Weights of other toolkits never take more memory than their files have."""

import zipfile
from pathlib import Path

import pytest
import torch
from messages import raises

from edgewise.errors import DataError
from edgewise.interop.foreign_weights import ForeignWeights, read_saved


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.save({"a": torch.arange(1000.0)}, tmp_path / "saved.pt")
    return tmp_path / "saved.pt"


def rewritten(path: Path, compression: int, storage: bytes | None = None) -> Path:
    """The same archive with other compression, and another content of its tensor."""
    new = path.with_name("rewritten.pt")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(new, "w", compression) as archive:
        for entry in old.infolist():
            content = old.read(entry)
            if storage is not None and entry.filename.endswith("/data/0"):
                content = storage
            archive.writestr(entry.filename, content)
    return new


def test_an_archive_as_torch_writes_it_is_read(saved: Path) -> None:
    found = read_saved(rewritten(saved, zipfile.ZIP_STORED))
    assert isinstance(found, dict)
    assert torch.equal(found["a"], torch.arange(1000.0))


def test_a_compressed_archive_is_not_unpacked(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*arguments: object, **options: object) -> None:
        raise AssertionError("it was unpacked")

    bomb = rewritten(saved, zipfile.ZIP_DEFLATED, storage=bytes(1 << 24))
    assert bomb.stat().st_size < 1 << 17
    monkeypatch.setattr(torch, "load", load)
    with raises(DataError, bomb, "compressed"):
        read_saved(bomb)


def test_an_archive_that_only_pytorch_can_read_is_refused(saved: Path) -> None:
    content = bytearray(saved.read_bytes())
    at = content.index(b"PK\x01\x02")  # the central directory; then the version that made it
    content[at + 6] = 200  # the version that is needed to read it
    saved.write_bytes(content)
    with raises(DataError, saved, "damaged"):
        read_saved(saved)


def test_a_huge_tensor_that_repeats_a_small_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "huge.pt"
    torch.save({"a": torch.zeros(1).expand(10**6, 10**6)}, path)
    with raises(DataError, path, "4,000,000,000,000"):
        ForeignWeights(read_saved(path), path)


def test_names_may_share_a_tensor(tmp_path: Path) -> None:
    path = tmp_path / "tied.pt"
    tensor = torch.zeros(1000, 300)
    torch.save({"a": tensor, "b": tensor, "c": tensor}, path)
    ForeignWeights(read_saved(path), path)
    many = {f"{i}": tensor for i in range(100)}
    torch.save(many, path)
    with raises(DataError, path, "120,000,000"):
        ForeignWeights(read_saved(path), path)
