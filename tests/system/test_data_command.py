"""`edgewise data list` and `data get` as processes: kills, exit codes, and what is left."""

import gzip
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from loopback import Loopback
from messages import assert_mentions
from waiting import wait_until

from edgewise.cli.main import run
from edgewise.data.corpus import Corpus

ROOT = Path(__file__).parents[2]
REAL = ROOT.parent / "shared" / "data"  # Multi30k and newstest, where somebody has put them

# The command itself, with one corpus more in its catalogue: en and de, for all three parts.
COMMAND = """
import json, signal, sys
from pathlib import Path
from edgewise.data.catalogue import CORPORA, PublicBitext, PublicCorpus, File, Text

def text(path, about):
    return Text(File(path, None, about["size"], (f"sha256:{about['sha256']}",)))

known = json.loads(Path(sys.argv[1]).read_text())
bitexts = tuple(
    PublicBitext(part, lines, ({side: text(f"tiny/{part}.{side}.gz", known[f"{part}.{side}"])
                                for side in ("en", "de")},))
    for part, lines in known["lines"].items()
)
CORPORA["tiny"] = PublicCorpus("tiny", "a small one", "https://example.org", ("en", "de"), bitexts)
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests may run where it is ignored
sys.argv = ["edgewise", *sys.argv[2:]]
from edgewise.cli.main import main
main()
"""


def lines_of(seed: int, count: int) -> str:
    """Text that cannot be packed well, so that the larger files come in several pieces."""
    letters = random.Random(seed).choices("abcdefghijklmnopqrstuvwxyzäöü", k=100 * count)
    return "".join("".join(letters[i::count]) + "\n" for i in range(count))


LINES = {"train": 2000, "valid": 30, "test": 20}
TEXTS = {
    f"{part}.{language}": lines_of(i, count)
    for i, (part, count) in enumerate(LINES.items())
    for language in ("en", "de")
}
FILES = {f"tiny/{name}.gz": gzip.compress(text.encode(), 6) for name, text in TEXTS.items()}
TRAIN = "tiny/train.en.gz"


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("catalogue") / "tiny.json"
    about = {
        name: {
            "size": len(FILES[f"tiny/{name}.gz"]),
            "sha256": hashlib.sha256(FILES[f"tiny/{name}.gz"]).hexdigest(),
        }
        for name in TEXTS
    }
    path.write_text(json.dumps({"lines": LINES, **about}))
    return path


@pytest.fixture
def server() -> Iterator[Loopback]:
    with Loopback(dict(FILES)) as server:
        yield server


class Commands:
    """Starts `edgewise data …` with a cache folder of its own."""

    def __init__(self, program: list[str], home: Path) -> None:
        self.program, self.cache = program, home / "edgewise"
        self.env = os.environ | {"XDG_CACHE_HOME": str(home), "no_proxy": "127.0.0.1"}

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, *self.program, "data", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.env,
            cwd=ROOT,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        with self.start(*arguments) as process:
            stdout, stderr = process.communicate(timeout=60)
        assert "Traceback" not in stderr
        return process.returncode, stdout, stderr

    def part(self, path: str = TRAIN) -> Path:
        return self.cache / "downloads" / f"{path}.part"

    def stop_at(self, size: int, number: int, *arguments: str) -> "subprocess.Popen[str]":
        """Start, wait for so many bytes to be here, and send a signal."""
        process = self.start(*arguments)

        def is_here() -> bool:
            assert process.poll() is None
            return self.part().exists() and self.part().stat().st_size >= size

        wait_until(is_here)
        process.send_signal(number)
        return process

    def texts(self) -> dict[str, str]:
        """What is in each file of the corpus, hidden or not."""
        paths = (self.cache / "tiny").iterdir()
        return {path.name: gzip.decompress(path.read_bytes()).decode() for path in paths}


@pytest.fixture
def data(catalogue: Path, tmp_path: Path) -> Commands:
    return Commands(["-c", COMMAND, str(catalogue)], tmp_path / "home of mine")


@pytest.fixture
def real(tmp_path: Path) -> Commands:
    """With the catalogue as it is; skipped where there is no real data."""
    if not REAL.is_dir():
        pytest.skip("needs a folder with real corpora")
    return Commands(["-m", "edgewise"], tmp_path / "home of mine")


def assert_all_once(server: Loopback, data: Commands) -> None:
    assert data.texts() == {f"{name}.gz": text for name, text in TEXTS.items()}
    assert server.sent == {path: len(content) for path, content in FILES.items()}
    left = [path for path in (data.cache / "downloads").rglob("*") if path.is_file()]
    assert sorted(path.name for path in left) == sorted(f"{name}.gz" for name in TEXTS)


def test_a_command_killed_five_times_fetches_no_byte_twice(
    server: Loopback, data: Commands
) -> None:
    arguments = ("get", "tiny", "--mirror", server.address)
    have = 0
    for more in (1, 30_000, 7, 50_000, 20_000):
        server.holds = [more]  # sent, then silence: what was sent is what is here
        have += more
        with data.stop_at(have, signal.SIGKILL, *arguments) as process:
            process.communicate()
        assert data.part().stat().st_size == have
    code, stdout, _ = data.run(*arguments)
    assert (code, stdout) == (0, f"{data.cache / 'tiny'}\n")
    assert server.starts[:6] == [0, 1, 30_001, 30_008, 80_008, 100_008]
    assert_all_once(server, data)


def test_a_command_cut_off_five_times_fetches_no_byte_twice(
    server: Loopback, data: Commands
) -> None:
    server.cuts = [3, 20_000, 1000, 60_000, 10]
    assert data.run("get", "tiny", "--mirror", server.address)[0] == 0
    assert_all_once(server, data)


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_a_command_that_is_stopped_keeps_what_came(
    server: Loopback, data: Commands, number: int, code: int, said: str
) -> None:
    server.holds = [40_000]
    with data.stop_at(40_000, number, "get", "tiny", "--mirror", server.address) as process:
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == code
    last = stderr.splitlines()[-1]
    assert last.startswith("edgewise:")
    assert_mentions(last, said)
    assert data.part().read_bytes() == FILES[TRAIN][:40_000]
    assert data.run("get", "tiny", "--mirror", server.address)[0] == 0
    assert_all_once(server, data)


def test_while_one_process_fetches_another_is_refused(server: Loopback, data: Commands) -> None:
    server.holds = [100]
    with data.stop_at(100, signal.SIGCONT, "get", "tiny", "--mirror", server.address) as first:
        code, stdout, stderr = data.run("get", "tiny", "--mirror", server.address)
        first.kill()
    assert (code, stdout) == (2, "")
    assert_mentions(stderr, data.cache, "process", "--dir")


def test_a_corrupted_file_exits_with_65_and_the_next_run_is_right(
    server: Loopback, data: Commands
) -> None:
    server.files[TRAIN] = bytes(len(FILES[TRAIN]))
    code, stdout, stderr = data.run("get", "tiny", "--mirror", server.address)
    assert (code, stdout) == (65, "")
    for content in (FILES[TRAIN], server.files[TRAIN]):
        assert f"sha256:{hashlib.sha256(content).hexdigest()}" in stderr
    assert not data.part().exists()
    server.files[TRAIN] = FILES[TRAIN]
    assert data.run("get", "tiny", "--mirror", server.address)[0] == 0
    assert data.texts()["train.en.gz"] == TEXTS["train.en"]


def test_a_slow_server_is_waited_for(server: Loopback, data: Commands) -> None:
    server.chunk, server.sleep = 8192, 0.005
    assert data.run("get", "tiny", "--mirror", server.address)[0] == 0
    assert_all_once(server, data)


def test_a_server_that_forbids_exits_with_74(server: Loopback, data: Commands) -> None:
    server.statuses = [403]
    code, stdout, stderr = data.run("get", "tiny", "--mirror", server.address)
    assert (code, stdout) == (74, "")
    assert_mentions(stderr, f"{server.address}/{TRAIN}", 403, "--mirror")


def test_what_a_mirror_lacks_exits_with_2_and_the_rest_is_ready(
    server: Loopback, data: Commands
) -> None:
    del server.files[TRAIN]
    code, stdout, stderr = data.run("get", "tiny", "--mirror", server.address)
    assert (code, stdout) == (2, "")
    missing = f"{server.address}/{TRAIN}"
    (line,) = [line for line in stderr.splitlines() if missing in line]
    assert_mentions(line.replace(missing, ""), "train")
    assert_mentions(stderr, data.cache / "tiny", "--mirror")
    assert sorted(data.texts()) == ["test.de.gz", "test.en.gz", "valid.de.gz", "valid.en.gz"]
    code, stdout, stderr = data.run("list")
    assert "valid test" in stdout
    code, stdout, stderr = data.run("get", "tiny", "--part", "valid", "test")
    assert (code, stdout) == (0, f"{data.cache / 'tiny'}\n")
    first, valid, test = stderr.splitlines()
    assert_mentions(first, "tiny")
    assert_mentions(valid, "valid", 30)
    assert_mentions(test, "test", 20)


def test_the_command_that_is_told_prepares_the_corpus(
    server: Loopback, data: Commands, tmp_path: Path
) -> None:
    _, _, stderr = data.run("get", "tiny", "--mirror", server.address)
    (told,) = [line for line in stderr.splitlines() if line.startswith("edgewise prepare ")]
    script = told.replace("edgewise", f"{sys.executable} -m edgewise", 1) + " --vocab-size 300"
    done = subprocess.run(["sh", "-ec", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    corpus = Corpus(tmp_path / "corpus-en-de")
    assert (len(corpus.train), len(corpus.valid)) == (2000, 30)


def test_a_ready_corpus_is_told_of_without_a_request(server: Loopback, data: Commands) -> None:
    assert data.run("get", "tiny", "--mirror", server.address)[0] == 0
    server.requests.clear()
    code, stdout, stderr = data.run("get", "tiny", "--mirror", server.address)
    assert (code, stdout) == (0, f"{data.cache / 'tiny'}\n")
    first, train, *_ = stderr.splitlines()
    assert_mentions(first, "tiny")
    assert_mentions(train, "train", "2,000")
    assert server.requests == []


def test_the_list_has_a_row_and_an_address_for_each_corpus(data: Commands) -> None:
    code, stdout, stderr = data.run("list")
    assert (code, stderr) == (0, "")
    rows = stdout.splitlines()
    assert rows[0].split() == ["name", "pairs", "download", "ready", "what"]
    assert rows[1].split()[:5] == ["multi30k", "29,000", "2.0", "MB", "no"]
    assert rows[3].split()[:5] == ["wmt14-en-de", "4,520,620", "1,695.0", "MB", "no"]
    assert rows[5].split()[:5] == ["wmt14-en-fr", "40,842,333", "6,655.8", "MB", "no"]
    what = rows[0].index("what")
    assert all(row[what:].startswith("https://") for row in rows[2::2])
    assert not data.cache.exists()


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["multi3k"], ("multi3k", "multi30k")),
        (["xyz"], ("xyz", "multi30k", "wmt14-en-de", "wmt14-en-fr")),
        (["multi30k", "--part", "dev"], ("--part", "dev", "valid")),
        (["multi30k", "--mirror", "none"], ("--mirror", "none")),
        ([], ("NAME",)),
    ],
)
def test_what_cannot_be_used_exits_with_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], facts: tuple[str, ...]
) -> None:
    assert run(["data", "get", *arguments, "--dir", str(tmp_path / "cache")]) == 2
    stdout, stderr = capsys.readouterr()
    assert stdout == ""
    assert_mentions(stderr, *facts)
    assert not (tmp_path / "cache").exists()


def test_neither_needs_torch(data: Commands) -> None:
    code = (
        "import sys; from edgewise.cli.main import run; run(['data', 'list']); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=data.env
    )
    modules = done.stdout.splitlines()[-1].split()
    assert "edgewise.data.fetch" in modules
    assert "torch" not in modules


def test_real_captions_come_from_a_folder_or_a_server(
    real: Commands, server: Loopback, tmp_path: Path
) -> None:
    assert real.run("get", "multi30k", "--mirror", str(REAL), "--dir", str(tmp_path))[0] == 0
    for path in (REAL / "multi30k").iterdir():
        server.files[f"multi30k/{path.name}"] = path.read_bytes()
    server.cuts = [100_000] * 5
    code, stdout, _ = real.run("get", "multi30k", "--mirror", server.address)
    assert (code, stdout) == (0, f"{real.cache / 'multi30k'}\n")
    sizes = {path: len(server.files[path]) for path in server.sent}
    assert server.sent == sizes
    assert len(sizes) == 15
    for name in ("train.en", "valid.fr", "test.de"):
        first, second = (
            gzip.decompress((folder / "multi30k" / f"{name}.gz").read_bytes())
            for folder in (tmp_path, real.cache)
        )
        assert first == second
    original = REAL / "multi30k" / "test_2016_flickr.de.gz"
    assert second == gzip.decompress(original.read_bytes())


@pytest.mark.parametrize("target", ["de", "fr"])
def test_of_the_papers_corpora_what_is_there_comes_and_the_rest_is_named(
    real: Commands, target: str
) -> None:
    name = f"wmt14-en-{target}"
    code, stdout, stderr = real.run("get", name, "--mirror", str(REAL))
    assert (code, stdout) == (2, "")
    archives = ["wmt13/training-parallel-europarl-v7.tgz", "wmt14/training-parallel-nc-v9.tgz"]
    assert_mentions(stderr, *(REAL / archive for archive in archives))
    code, stdout, stderr = real.run("get", name, "--mirror", str(REAL), "--part", "valid", "test")
    assert (code, stdout) == (0, f"{real.cache / name}\n")
    valid, test = stderr.splitlines()[-2:]
    assert_mentions(valid, "valid", "3,000")
    assert_mentions(test, "test", "3,003")
