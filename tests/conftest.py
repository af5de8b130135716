"""Shared by the tests: inputs of any shape, and the run of a path with all its gradients."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

# Results must not depend on the user's environment: colours, proxies, settings, the width of the
# terminal, a GPU, a home directory in which matplotlib can cache fonts. Set before importing torch.
for _name in list(os.environ):
    if _name.startswith("EDGEWISE_") or _name.lower().endswith("_proxy"):
        del os.environ[_name]
for _name in ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE"):
    os.environ.pop(_name, None)
os.environ |= {"COLUMNS": "200", "CUDA_VISIBLE_DEVICES": ""}
os.environ.setdefault(
    "MPLCONFIGDIR", str(Path(tempfile.gettempdir()) / f"edgewise-matplotlib-{os.getuid()}")
)

import torch
from hypothesis import settings
from torch import Tensor
from torch.nn.functional import linear

from edgewise import RelativePositions, relation_attention

# One profile: the same cases each time, so that a failure can be seen again.
settings.register_profile("edgewise", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("edgewise")

# These take the longest, and start first, so that no worker is left with one of them at the end.
# Files that are not listed follow in the order of their names.
SLOWEST_FILES = (
    *("test_serve_page.py", "test_walk.py", "test_faults.py", "test_ranks.py", "test_engines.py"),
    *("test_reproduce_command.py", "test_compile.py", "test_translate_command.py"),
    *("test_explain_command.py", "test_clutrr_command.py", "test_serve_load.py", "test_onnx.py"),
    *("test_data_command.py", "test_training_compile.py", "test_serve_api.py"),
    *("test_ctranslate2.py", "test_steps.py", "test_translator.py", "test_import_marian.py"),
    *("test_graphs.py", "test_results.py", "test_import_opennmt.py"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the slowest files first; system tests run without the shape-checking hook."""
    rank = {name: i for i, name in enumerate(SLOWEST_FILES)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))
    for item in items:
        if item.path.parent.name == "system":
            item.add_marker("unhooked")


def record_context(name: str) -> None:
    """Tell coverage, if it is measured, which test runs (see inject_faults.py)."""
    if "coverage" in sys.modules and (coverage := sys.modules["coverage"].Coverage.current()):
        coverage.switch_context(name)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    record_context(f"{item.nodeid} (setup)")  # a fixture may serve the whole file


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    record_context(item.nodeid)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Tensors of small models are only slowed down by more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def require_cpp_compiler() -> None:
    """Skip the test if torch.compile has no C++ compiler."""
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if shutil.which(os.environ.get("CXX", "g++")) is None or not header.exists():
        pytest.skip(f"torch.compile needs a C++ compiler (g++) and {header}")


def require_rows_alike(rows: Sequence[int], inner: Sequence[int]) -> None:
    """Skip the test if the bits of a row of `linear` depend on the number of rows.

    MKL on Intel CPUs chooses its algorithm by the number of rows and threads.
    """
    generator = torch.Generator().manual_seed(0)
    for size in inner:
        weight, x = (torch.randn(n, size, generator=generator) for n in (512, 1024))
        whole = linear(x, weight)
        for count in rows:
            if not torch.equal(linear(x[:count], weight), whole[:count]):
                reason = (
                    f"not tested on this CPU: that results do not depend on the batch, with "
                    f"{torch.get_num_threads()} threads; here the bits of linear() differ between "
                    f"{count} and 1024 rows of width {size} (docs/log.md)"
                )
                print(reason)
                pytest.skip(reason)


@pytest.fixture
def not_utf8(tmp_path: Path) -> Path:
    """A folder whose name is not UTF-8."""
    folder = tmp_path / os.fsdecode(b"not-utf8-\xff")
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"names must be UTF-8 here: {error}")
    return folder


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mount a disk of the given number of megabytes; a second call resizes it."""
    disk, mounted = tmp_path / "disk", False

    def of_size(megabytes: int) -> Path:
        nonlocal mounted
        disk.mkdir(exist_ok=True)
        how = "remount," if mounted else ""
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"{how}size={megabytes}m", "tmpfs", str(disk)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            reason = f"a disk that is soon full cannot be mounted here: {done.stderr.strip()}"
            print(reason)
            pytest.skip(reason)
        mounted = True
        return disk

    if shutil.which("mount") is None:
        pytest.skip("a disk that is soon full cannot be mounted here: there is no mount")
    yield of_size
    if mounted:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


# The backends for the dot product with relative positions, and those for any query_offset.
METHODS = ("gather", "chunked_gather", "diagonal", "blockwise")
OFFSET_METHODS = tuple(method for method in METHODS if method != "diagonal")


class Inputs:
    """Random inputs of `relation_attention`, made from a seed."""

    def __init__(
        self,
        batch: int,
        heads: int,
        n_query: int,
        n_key: int,
        d_head: int,
        relations: RelativePositions | None,
        *,
        on_keys: bool = True,
        on_values: bool = True,
        per_head: bool = False,
        mask: Tensor | None = None,
        causal: bool = False,
        scale: float | None = None,
        dtype: torch.dtype = torch.float64,
        seed: int = 0,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)

        self.relations, self.mask, self.causal, self.scale = relations, mask, causal, scale
        self.tensors = {"query": random(batch, heads, n_query, d_head)}
        self.tensors["key"], self.tensors["value"] = (
            random(batch, heads, n_key, d_head) for _ in range(2)
        )
        if relations is not None:
            shape = (relations.n_labels, d_head)
            shape = (heads, *shape) if per_head else shape
            if on_keys:
                self.tensors["key_table"] = random(*shape)
            if on_values:
                self.tensors["value_table"] = random(*shape)
        self.grad = random(batch, heads, n_query, d_head)

    def output(self, method: str = "auto", **changes: object) -> Tensor:
        arguments = {
            "relations": self.relations,
            "mask": self.mask,
            "causal": self.causal,
            "scale": self.scale,
            "method": method,
            **self.tensors,
            **changes,
        }
        return relation_attention(**arguments)

    def results(self, method: str, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """The output and the gradient of every input."""
        leaves = {
            name: x.to(dtype or x.dtype, copy=True).requires_grad_()
            for name, x in self.tensors.items()
        }
        output = self.output(method, **leaves)
        grads = torch.autograd.grad(output, list(leaves.values()), self.grad.to(output.dtype))
        return {"output": output.detach(), **dict(zip(leaves, grads, strict=True))}


def assert_same(
    actual: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-10
) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            actual[name], value, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )
