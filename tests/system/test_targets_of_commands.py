"""Every command that writes, and everything that may exist where it writes: nothing is lost."""

import os
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from everything import everything
from foreign_models import opennmt_checkpoint, pieces_of, spm
from small_runs import make_corpus, write_config
from tiny_model import Command, make_model, make_vocabulary

from edgewise.cli.main import run
from edgewise.data.grammar import pairs

pytestmark = pytest.mark.usefixtures("one_thread")


# What commands read, in one folder.
SOURCE, TARGET, SHORT, MODEL, RUN, CONFIG, OPENNMT, SPM = (
    *("text.en", "text.de", "short.en", "model"),
    *("run", "config.toml", "opennmt.pt", "spm.model"),
)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = tmp_path_factory.mktemp("given")
    for path, lines in zip(
        (given / SOURCE, given / TARGET), zip(*pairs(40, 1), strict=True), strict=True
    ):
        path.write_text("".join(f"{line}\n" for line in lines))
    (given / SHORT).write_text("A child .\nThe old man sleeps .\n")
    make_model(given / MODEL, make_vocabulary(), tables="layer")
    write_config(given / CONFIG, make_corpus(given / "corpus"))
    train = ["train", f"{given}/{CONFIG}", "--out", f"{given}/{RUN}", "--training.steps", "3"]
    assert run(train) == 0
    pieces = pieces_of(model := spm("both", 400))
    (given / SPM).write_bytes(model)
    torch.save(opennmt_checkpoint(pieces, pieces), given / OPENNMT)
    return given


Arguments = Callable[[Path, Path], list[str | Path]]
FILES: dict[str, Arguments] = {
    "evaluate --out": lambda given, out: [
        *("evaluate", "--model", given / MODEL, "--source", given / SHORT),
        *("--reference", given / SHORT, "--out", out),
    ],
    "evaluate --json": lambda given, out: [
        *("evaluate", "--translations", given / SHORT, "--source", given / SHORT),
        *("--reference", given / SHORT, "--json", out),
    ],
    "translate --alignments": lambda given, out: [
        *("translate", "--model", given / MODEL, "--alignments", out)
    ],
    "data generate": lambda given, out: [
        *("data", "generate", "--pairs", "5", "--out", out.with_suffix(""))
    ],
}
FOLDERS: dict[str, Arguments] = {
    "prepare": lambda given, out: [
        *("prepare", "--source", given / SOURCE, "--target", given / TARGET, "--vocab-size", "400"),
        *("--workers", "1", "--out", out),
    ],
    "average": lambda given, out: ["average", given / RUN, "--last", "1", "--out", out],
    "export ctranslate2": lambda given, out: [
        *("export", "ctranslate2", "--model", given / MODEL, "--out", out)
    ],
    "import opennmt": lambda given, out: [
        *("import", "opennmt", given / OPENNMT, "--tokenizer", given / SPM, "--out", out)
    ],
    "train": lambda given, out: ["train", given / CONFIG, "--training.steps", "1", "--out", out],
}
SLOW_FOLDERS: dict[str, Arguments] = {
    "explain": lambda given, out: [
        *("explain", "--model", given / MODEL, "--text", "A child .", "--out", out)
    ],
    "export onnx": lambda given, out: ["export", "onnx", "--model", given / MODEL, "--out", out],
}
# What may stand at the target; those that a command may write to without and with --overwrite.
FREE = {"nothing", "an empty folder", "a link to nothing"}
OURS = {"ours", "a link to ours"}
REGULAR = {"a file", "a link to a file", "a second name of a file"}
WRITTEN_INTO = {"a FIFO", "a link to a device"}
FOREIGN = {"a folder with a file", "ours with a file of the user", "a socket", "a link to itself"}


def put(what: str, target: Path, own: Path) -> None:
    """Put something at the target. own: a folder or a file that the command has written."""
    real = target.with_name("real")
    if what == "an empty folder":
        target.mkdir()
    elif what == "a folder with a file":
        target.mkdir()
        (target / "manifest.json").write_text('{"name": "mine"}')
    elif what in ("ours", "a link to ours", "ours with a file of the user"):
        where = real if "link" in what else target
        if own.is_dir():
            shutil.copytree(own, where, symlinks=True)
        else:
            shutil.copyfile(own, where)
        if where == real:
            target.symlink_to("real")
        if "user" in what:
            (target / "notes.txt").write_text("mine")
    elif what == "a file":
        target.write_text("mine")
    elif what == "a link to a file":
        real.write_text("mine")
        target.symlink_to("real")
    elif what == "a second name of a file":
        real.write_text("mine")
        target.hardlink_to(real)
    elif what == "a link to nothing":
        target.symlink_to("real")
    elif what == "a link to itself":
        target.symlink_to(target.name)
    elif what == "a link to a device":
        target.symlink_to(os.devnull)
    elif what == "a FIFO":
        os.mkfifo(target)
    elif what == "a socket":
        before = Path.cwd()
        os.chdir(target.parent)  # the path of a socket has at most 108 bytes
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(target.name)
        os.chdir(before)


def beside(case: Path) -> None:
    """Put files of the user beside the target, named as temporary files might be."""
    for name in (".target.en.old-backup-2023", ".target.en.new-1", ".edgewise-new-mine", "other"):
        (case / name).mkdir(parents=True)
        (case / name / "mine").write_text(name)


def check(
    command: Command, arguments: list[str | Path], case: Path, what: str, own: Path, allowed: bool
) -> None:
    """Run a command on what is there, and see that nothing was changed but what is allowed."""
    beside(case)
    target = case / "target.en"
    put(what, target, own)
    before = everything(case)
    reader = None
    if what == "a FIFO" and allowed:
        reader = threading.Thread(target=target.read_bytes)
        reader.start()
    result = command(*arguments, stdin="A child .\n")
    if reader is not None:
        reader.join()
    after = everything(case)
    about = f"{what}: exit {result.code}, {result.said}"
    assert (result.code == 0) == allowed, about
    if allowed:
        written = {"target.en", "target.de"}
        if "link" in what:
            written = {"real", "target.de"}
        before, after = (
            {name: entry for name, entry in each.items() if name.split("/")[0] not in written}
            for each in (before, after)
        )
        if what in WRITTEN_INTO:
            assert target.is_fifo() or target.is_char_device()
        else:
            assert target.exists(), about
    else:
        assert result.code in (2, 74), about
        assert "Traceback" not in result.said
        if what in WRITTEN_INTO:
            assert "--overwrite replaces it" not in result.said
    assert before == after, about


def check_all(given: Path, name: str, tmp_path: Path) -> None:
    command = Command(tmp_path)
    is_file = name in FILES
    arguments = {**FILES, **FOLDERS, **SLOW_FOLDERS}[name]
    own = tmp_path / "own" / "target.en"
    result = command(*arguments(given, own), stdin="A child .\n")
    assert result.code == 0, result.said
    for overwrite in (False, True):
        may = FREE - {"an empty folder"} | WRITTEN_INTO if is_file else set(FREE)
        if name == "train":
            # A run is gone on with, or begun anew beside what the user has put there.
            may |= OURS | {"ours with a file of the user"}
        elif overwrite:
            may |= OURS | REGULAR if is_file else OURS
        everywhere = FREE | OURS | REGULAR | WRITTEN_INTO | FOREIGN
        if is_file:  # it has no files in it
            everywhere -= {"ours with a file of the user"}
        for number, what in enumerate(sorted(everywhere)):
            case = tmp_path / f"case-{overwrite}-{number}"
            flags = ["--overwrite"] if overwrite else []
            told = [*arguments(given, case / "target.en"), *flags]
            check(command, told, case, what, own, what in may)
            if name == "train" and what == "ours with a file of the user":
                assert (case / "target.en" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", [*FILES, *FOLDERS])
def test_nothing_is_lost_where_a_command_writes(name: str, given: Path, tmp_path: Path) -> None:
    check_all(given, name, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", SLOW_FOLDERS)
def test_nothing_is_lost_where_a_slow_command_writes(
    name: str, given: Path, tmp_path: Path
) -> None:
    check_all(given, name, tmp_path)
