"""Files and folders appear complete or not at all, and a kill loses nothing."""

import errno
import itertools
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from everything import contents, everything
from messages import raises

from edgewise.errors import DataError, SettingError
from edgewise.storage import (
    new_folder,
    output_file,
    output_files,
    read_json,
    recover,
    remove,
    replace,
    require_free_folder,
    seal,
    set_aside,
    write_json,
    write_text,
)
from edgewise.storage.replace import JOURNAL


class StopHereError(Exception):
    """Raised in the middle of writing."""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def killed(code: str, folder: Path) -> None:
    """Run code in a process that kills itself at `die()`, in a folder."""
    program = (
        "import os, signal\nfrom pathlib import Path\nfrom edgewise.storage import *\n"
        "def die(*arguments, **options): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program + code], cwd=folder, check=False)
    assert done.returncode == -signal.SIGKILL


def test_a_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with new_folder(out) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "a").write_text("one")
        assert not out.exists()
    assert contents(tmp_path / "deep") == {"out": None, "out/inner": None, "out/inner/a": b"one"}


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Record each fsync: the inode, and whether the target existed at that moment."""
    calls: list[tuple[int, bool]] = []
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        calls.append((os.fstat(descriptor).st_ino, Path("target").exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    return calls


def test_a_folder_is_flushed_to_the_disk_before_it_appears_and_its_parent_after(
    tmp_path: Path, flushed: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with new_folder(Path("target")) as folder:
        (folder / "inner").mkdir()
        (folder / "a.bin").write_bytes(b"abc")
        (folder / "inner" / "b.bin").write_bytes(b"def")
    before = {inode for inode, there in flushed if not there}
    paths = [Path("target"), *Path("target").rglob("*")]
    assert {path.stat().st_ino for path in paths} <= before
    assert (tmp_path.stat().st_ino, True) in flushed


def test_a_text_is_flushed_to_the_disk_before_it_appears(
    tmp_path: Path, flushed: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_json(Path("target"), 1)
    assert (Path("target").stat().st_ino, False) in flushed


def test_what_was_there_is_replaced_as_a_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "old").write_text("old")
    with new_folder(out) as folder:
        (folder / "new").write_text("new")
        assert contents(out) == {"old": b"old"}
    assert contents(tmp_path) == {"out": None, "out/new": b"new"}


@pytest.mark.parametrize("error", [StopHereError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("existing", [True, False])
def test_an_error_leaves_the_target_as_it_was_and_nothing_else(
    tmp_path: Path, existing: bool, error: type[BaseException]
) -> None:
    out = tmp_path / "out"
    if existing:
        out.mkdir()
        (out / "old").write_text("old")
    before = everything(tmp_path)

    def write() -> None:
        with new_folder(out) as folder:
            (folder / "new").write_text("new")
            raise error

    with pytest.raises(error):
        write()
    assert everything(tmp_path) == before


def test_names_that_look_temporary_are_not_touched(tmp_path: Path) -> None:
    ours = [".out.old-1", ".out.new-1", ".edgewise-new-1", ".edgewise-old-0123456789abcdef"]
    for name in ours:
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").write_text("mine")
    (tmp_path / f"{JOURNAL}0123456789abcdef").write_text("mine")
    before = everything(tmp_path)
    recover(tmp_path)
    assert everything(tmp_path) == before
    for _ in range(2):
        with new_folder(tmp_path / "out") as new:
            (new / "a").write_text("new")
    assert contents(tmp_path / "out") == {"a": b"new"}
    found = everything(tmp_path)
    assert before == {name: found[name] for name in before}


@pytest.mark.parametrize("again", ["a writer", "recover"])
def test_what_a_killed_writer_left_is_removed(tmp_path: Path, again: str) -> None:
    killed("with new_folder(Path('out')) as new:\n (new / 'half').touch()\n die()", tmp_path)
    killed("with output_file(Path('file')) as new:\n new.write(b'half')\n die()", tmp_path)
    assert len(names(tmp_path)) == 4  # two journals, a folder and a file
    if again == "recover":
        recover(tmp_path)
        assert names(tmp_path) == []
    else:
        with new_folder(tmp_path / "out"), output_file(tmp_path / "file"):
            pass
        assert names(tmp_path) == ["file", "out"]


def test_a_kill_before_anything_is_recorded_leaves_nothing_after_recovery(tmp_path: Path) -> None:
    killed("os.fsync = die\nwith new_folder(Path('out')): pass", tmp_path)
    (journal,) = tmp_path.iterdir()
    journal.write_bytes(b"")
    recover(tmp_path)
    assert names(tmp_path) == []


AT_RENAME = """
rename = Path.rename
def counted(path, target):
    if {condition}: die()
    return rename(path, target)
Path.rename = Path.replace = counted
"""


@pytest.mark.parametrize(
    "condition",
    ["path.name == 'out'", "target.name == 'out'", "False"],
    ids=["before the old is moved away", "between the renames", "after them"],
)
def test_a_kill_at_any_rename_leaves_the_old_or_the_new(tmp_path: Path, condition: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").write_text("old")
    code = AT_RENAME.format(condition=condition)
    if condition == "False":
        code += "import shutil; shutil.rmtree = die\n"
    code += "with new_folder(Path('out')) as new: (new / 'a').write_text('new')"
    killed(code, tmp_path)
    expected = b"new" if condition == "False" else b"old"
    recover(tmp_path)
    assert contents(tmp_path) == {"out": None, "out/a": expected}


def test_a_folder_that_a_killed_writer_moved_away_is_no_free_place(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").write_text("old")
    seal(tmp_path / "out", "thing", 1)
    before = contents(tmp_path)
    code = AT_RENAME.format(condition="target.name == 'out'")
    killed(f"{code}with new_folder(Path('out')) as new: (new / 'a').write_text('new')", tmp_path)
    assert not (tmp_path / "out").exists()
    with raises(SettingError, tmp_path / "out", "--overwrite"):
        require_free_folder(tmp_path / "out", "thing", overwrite=False)
    assert contents(tmp_path) == before


def test_a_journal_that_names_something_else_removes_nothing(tmp_path: Path) -> None:
    killed("with new_folder(Path('out')): die()", tmp_path)
    (journal,) = tmp_path.glob(f"{JOURNAL}*")
    (tmp_path / "mine").mkdir()
    journal.write_text(json.dumps(json.loads(journal.read_text()) | {"names": ["mine", "../x"]}))
    recover(tmp_path)
    with raises(DataError, journal), new_folder(tmp_path / "out"):
        raise AssertionError
    assert (tmp_path / "mine").is_dir()


def test_a_link_to_a_folder_is_replaced_without_a_trace(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with new_folder(tmp_path / "link") as folder:
        (folder / "new").write_text("new")
    assert (tmp_path / "link" / "new").read_text() == "new"
    assert names(tmp_path) == ["link", "real"]


def test_two_writers_of_one_folder_do_not_disturb_each_other(tmp_path: Path) -> None:
    with new_folder(tmp_path / "out") as first:
        (first / "a").write_text("first")
        with raises(SettingError, tmp_path / "out", "process"), new_folder(tmp_path / "out"):
            raise AssertionError
        with raises(SettingError, tmp_path / "out", "process"):
            recover(tmp_path)
        assert (first / "a").read_text() == "first"
    assert contents(tmp_path) == {"out": None, "out/a": b"first"}


def test_what_somebody_else_puts_there_meanwhile_stays(tmp_path: Path) -> None:
    def write() -> None:
        with new_folder(tmp_path / "out"):
            (tmp_path / "out").mkdir()
            (tmp_path / "out" / "a").write_text("theirs")

    with raises(SettingError, tmp_path / "out", "another process"):
        write()
    assert contents(tmp_path) == {"out": None, "out/a": b"theirs"}


def test_a_name_of_the_greatest_length_can_be_written(tmp_path: Path) -> None:
    longest = "n" * os.pathconf(tmp_path, "PC_NAME_MAX")
    write_text(tmp_path / longest, "x")
    (tmp_path / longest).unlink()
    with new_folder(tmp_path / longest):
        pass
    assert names(tmp_path) == [longest]


def test_a_folder_is_removed_whole_or_not_at_all(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "inner").write_text(name)
    remove(tmp_path / "a")
    assert names(tmp_path) == ["b"]
    killed("import shutil; shutil.rmtree = die; remove(Path('b'))", tmp_path)
    assert "b" not in names(tmp_path)
    recover(tmp_path)
    assert names(tmp_path) == []


ENTRIES = {"main": None, "main/x": b"old", "b": b"old", "c": None, "c/y": b"old", "mine": b"mine"}


@pytest.fixture
def entries(tmp_path: Path) -> Path:
    for name, content in ENTRIES.items():
        if content is None:
            (tmp_path / name).mkdir()
        else:
            (tmp_path / name).write_bytes(content)
    return tmp_path


def test_entries_set_aside_are_removed_when_the_new_ones_are_there(entries: Path) -> None:
    with set_aside(entries / "main", ["b", "c", "not there"]):
        assert not (entries / "main").exists() and not (entries / "c").exists()
        (entries / "b").write_text("new")
        (entries / "main").mkdir()
    assert contents(entries) == {"main": None, "b": b"new", "mine": b"mine"}


def test_entries_set_aside_are_put_back_after_an_error(entries: Path) -> None:
    before = everything(entries)

    def write() -> None:
        with set_aside(entries / "main", ["b", "c"]):
            (entries / "b").write_text("new")
            (entries / "c").mkdir()
            raise StopHereError

    with pytest.raises(StopHereError):
        write()
    assert everything(entries) == before


@pytest.mark.parametrize("at", ["path.name == 'b'", "False"])
def test_entries_set_aside_are_put_back_after_a_kill(entries: Path, at: str) -> None:
    before = everything(entries)
    code = AT_RENAME.format(condition=at)
    code += "with set_aside(Path('main'), ['b', 'c']):\n Path('b').write_text('new')\n die()"
    killed(code, entries)
    recover(entries)
    assert everything(entries) == before


def test_json_comes_back_and_is_readable_text(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    value = {"name": "größer", "numbers": [1, 2.5, None, True]}
    write_json(path, value)
    assert read_json(path) == value
    assert "größer" in path.read_text(encoding="utf-8")
    assert path.read_bytes().endswith(b"}\n")


def test_json_with_a_name_that_is_not_utf8_can_be_written(tmp_path: Path) -> None:
    name = b"a\xff.en".decode(errors="surrogateescape")  # as Python gives names of files
    write_json(tmp_path / "a.json", {"source": name})
    assert read_json(tmp_path / "a.json") == {"source": name}


def test_json_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"old": 1})
    with path.open() as reader:  # who has it open still reads all of the old one
        write_json(path, {"new": 2})
        assert json.load(reader) == {"old": 1}
    assert read_json(path) == {"new": 2}
    assert names(tmp_path) == ["a.json"]


def test_json_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"old": 1})
    with pytest.raises(TypeError):
        write_json(path, {"long enough to be written in part": ["x"] * 10_000, "no": object()})
    assert contents(tmp_path) == {"a.json": b'{\n "old": 1\n}\n'}


def test_a_file_keeps_its_mode_and_links_to_it(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "link").symlink_to("real")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "real").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "real").stat().st_mode) == 0o640
    assert (tmp_path / "link").is_symlink()


def test_a_link_to_nothing_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "real").read_text() == "new"
    assert (tmp_path / "link").is_symlink()


def test_a_fifo_is_written_into(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "fifo").read_text()))
    reader.start()
    write_text(tmp_path / "fifo", "text")
    reader.join()
    assert read == ["text"]
    assert stat.S_ISFIFO((tmp_path / "fifo").stat().st_mode)


def test_a_fifo_that_nobody_reads_any_more_is_an_error_of_the_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    closing = threading.Timer(0.1, os.close, [reader])
    closing.start()
    with pytest.raises(OSError, match="reader has closed") as caught:
        write_text(tmp_path / "fifo", "x" * 1_000_000)
    closing.join()
    assert not isinstance(caught.value, BrokenPipeError)


def test_a_device_is_written_into_and_stays() -> None:
    before = os.stat(os.devnull)
    write_text(Path(os.devnull), "text")
    after = os.stat(os.devnull)
    assert stat.S_ISCHR(after.st_mode) and after.st_ino == before.st_ino


def test_a_pipe_behind_a_link_of_the_system_is_written_into() -> None:
    reader, writer = os.pipe()
    write_text(Path(f"/dev/fd/{writer}"), "text")
    os.close(writer)
    with os.fdopen(reader) as file:
        assert file.read() == "text"


def test_several_files_are_replaced_together_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / name for name in ("a", "b", "c")]
    for path in paths[:2]:
        path.write_text("old")
    before = everything(tmp_path)

    def write() -> None:
        with output_files(*paths) as files:
            for file in files:
                file.write(b"new")

    flush = replace._flush

    def full(path: Path) -> None:
        # The second of the new files.
        if path.is_file() and path.read_bytes() == b"new" and next(numbers) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(path)

    numbers = itertools.count()
    with monkeypatch.context() as patch:
        patch.setattr(replace, "_flush", full)
        with pytest.raises(OSError, match="No space"):
            write()
    assert everything(tmp_path) == before
    write()
    assert contents(tmp_path) == dict.fromkeys("abc", b"new")


@pytest.mark.parametrize("how", ["replace", "set aside"])
def test_an_interrupted_clean_up_is_finished_later(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").write_text("old")
    (tmp_path / "b").write_text("old")
    before = contents(tmp_path)

    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    def write() -> None:
        with new_folder(tmp_path / "out") as new:
            (new / "a").write_text("new")

    def fail() -> None:
        with set_aside(tmp_path / "out", ["b"]):
            (tmp_path / "b").write_text("new")
            raise StopHereError

    with monkeypatch.context() as patch:
        patch.setattr(
            replace.shutil if how == "replace" else replace,
            {"replace": "rmtree", "set aside": "_delete"}[how],
            interrupted,
        )
        with pytest.raises(KeyboardInterrupt):
            write() if how == "replace" else fail()
    assert len(names(tmp_path)) > 2
    recover(tmp_path)
    expected = before | {"out/a": b"new"} if how == "replace" else before
    assert contents(tmp_path) == expected


def test_what_appears_between_the_renames_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "a").write_text("old")
    rename = Path.rename

    def disturbed(path: Path, target: Path) -> Path:
        renamed = rename(path, target)
        if path == out:
            out.mkdir()
            (out / "a").write_text("theirs")
        return renamed

    def write() -> None:
        with new_folder(out) as new:
            (new / "a").write_text("new")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", disturbed)
        with pytest.raises(OSError, match="not empty"):
            write()
    assert sorted(path.read_text() for path in tmp_path.rglob("a")) == ["new", "old", "theirs"]
    with raises(SettingError, "journal", "move"):
        write()


def test_a_journal_is_shortened_when_it_is_written_again(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    killed("os.fsync = lambda n: None\nwith new_folder(Path('out')): die()", tmp_path)
    removing = (
        "import shutil; rmtree = shutil.rmtree\n"
        "shutil.rmtree = lambda path, **o: die() if 'removed' in path.name else rmtree(path, **o)\n"
        "remove(Path('out'))"
    )
    killed(removing, tmp_path)
    recover(tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize("target", ["..", "a/b", "", "\0"])
def test_a_journal_of_a_target_elsewhere_is_none(tmp_path: Path, target: str) -> None:
    journal = tmp_path / f"{JOURNAL}{'0' * 16}"
    content = {"target": target.encode().hex(), "names": [f".edgewise-new-{'0' * 16}"]}
    journal.write_text(json.dumps(content))
    recover(tmp_path)
    assert journal.exists()
