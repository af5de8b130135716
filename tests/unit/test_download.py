"""A file comes whole whatever the server does, and no byte comes twice."""

import gzip
import hashlib
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from loopback import Loopback
from messages import assert_mentions, raises

from edgewise.data.catalogue import File
from edgewise.data.download import RETRIES, MissingError, Patience, download
from edgewise.errors import DataError, SettingError

CONTENT = random.Random(1).randbytes(300_007)
OTHER = random.Random(2).randbytes(len(CONTENT))


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


FILE = File("some/a.bin", None, len(CONTENT), (f"sha256:{sha256(CONTENT)}",))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Loopback({"a.bin": CONTENT}) as server:
        yield server


class Client:
    """Downloads a.bin; remembers the pauses, and does not make them."""

    def __init__(self, server: Loopback, target: Path) -> None:
        self.address, self.target = f"{server.address}/a.bin", target
        self.part = target.with_name(f"{target.name}.part")
        self.pauses: list[float] = []
        self.told: list[tuple[str, int, int]] = []

    def get(self, file: File = FILE, timeout: float = 20.0) -> None:
        patience = Patience(timeout, self.pauses.append)
        download(file, self.address, self.target, patience=patience, progress=self.progress)

    def progress(self, *about: object) -> None:
        self.told.append(about)

    def left(self) -> list[str]:
        return sorted(path.name for path in self.target.parent.iterdir())


@pytest.fixture
def client(server: Loopback, tmp_path: Path) -> Client:
    return Client(server, tmp_path / "deep" / "a.bin")


def assert_once(server: Loopback, client: Client, content: bytes = CONTENT) -> None:
    """The file is here, nothing else is, and each byte was sent once."""
    assert client.target.read_bytes() == content
    assert client.left() == ["a.bin"]
    assert server.sent["a.bin"] == len(content)


def test_a_file_is_fetched_and_told_of(server: Loopback, client: Client) -> None:
    client.get()
    assert_once(server, client)
    size = len(CONTENT)
    (fetching, *sizes), (checking, *none) = client.told[-2:]
    assert (sizes, none) == ([size, size], [0, 0])
    assert fetching != checking
    for stage in (fetching, checking):
        assert_mentions(stage, "some/a.bin")
    assert client.pauses == []


def test_a_download_cut_off_five_times_fetches_no_byte_twice(
    server: Loopback, client: Client
) -> None:
    server.cuts = [1, 70_000, 5, 100_000, 65_536]
    client.get()
    assert_once(server, client)
    assert server.starts == [0, 1, 70_001, 70_006, 170_006, 235_542]


def test_a_download_interrupted_five_times_fetches_no_byte_twice(
    server: Loopback, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stop in (20_000, 20_001, 90_000, 210_000, 300_000):

        def interrupt(stage: str, done: int, total: int, stop: int = stop) -> None:
            if done >= stop:
                raise KeyboardInterrupt

        have = client.part.stat().st_size if client.part.exists() else 0
        server.holds = [stop - have]
        with monkeypatch.context() as patched:
            patched.setattr(client, "progress", interrupt)
            with pytest.raises(KeyboardInterrupt):
                client.get()
        assert client.part.stat().st_size == stop
    client.get()
    assert_once(server, client)


def test_more_failures_than_retries_are_fine_as_long_as_bytes_come(
    server: Loopback, client: Client
) -> None:
    server.cuts = [1000] * 20
    client.get()
    assert_once(server, client)
    assert client.pauses == [0.5] * 20


def test_pauses_grow_while_nothing_comes(server: Loopback, client: Client) -> None:
    server.cuts = [10, 0, 0, 0, 10, 0]
    client.get()
    assert_once(server, client)
    assert client.pauses == [0.5, 1, 2, 4, 0.5, 1]


def test_when_nothing_comes_any_more_the_error_says_how_far_it_came(
    server: Loopback, client: Client
) -> None:
    server.cuts = [1234] + [0] * (RETRIES + 1)
    with raises(ConnectionError, client.address, RETRIES + 1, "1,234", "300,007"):
        client.get()
    assert client.left() == ["a.bin.part", "a.bin.part.json"]
    client.get()
    assert_once(server, client)


def test_a_reset_is_survived(server: Loopback, client: Client) -> None:
    server.resets = [80_000, 80_000]
    client.get()
    assert client.target.read_bytes() == CONTENT
    assert len(server.starts) == 3


def test_a_server_that_falls_silent_is_asked_again(server: Loopback, client: Client) -> None:
    server.holds = [100]
    client.get(timeout=1.0)
    assert_once(server, client)
    assert server.starts == [0, 100]


def test_a_slow_server_that_keeps_sending_is_waited_for(server: Loopback, client: Client) -> None:
    server.chunk, server.sleep = 2250, 0.03
    client.get(timeout=3.0)  # less than the whole download takes
    assert_once(server, client)
    assert client.pauses == []


def test_errors_of_the_server_are_survived(server: Loopback, client: Client) -> None:
    server.statuses = [500, 503, 429, 408, 502]
    client.get()
    assert_once(server, client)


def test_a_server_that_cannot_be_reached_is_an_error(client: Client, server: Loopback) -> None:
    client.address = "http://127.0.0.1:9/a.bin"
    with raises(ConnectionError, client.address, "refused", RETRIES + 1, 0, "300,007"):
        client.get()
    assert len(client.pauses) == RETRIES


@pytest.mark.parametrize("status", [404, 410])
def test_what_is_not_there_is_missing_at_once(
    server: Loopback, client: Client, status: int
) -> None:
    server.statuses = [status]
    with raises(MissingError, client.address):
        client.get()
    assert (client.left(), client.pauses) == ([], [])


def test_what_is_forbidden_is_an_error_at_once(server: Loopback, client: Client) -> None:
    server.statuses = [403]
    with raises(ConnectionError, client.address, 403, "--mirror"):
        client.get()
    assert client.pauses == []


def test_wrong_bytes_are_removed_and_both_hashes_told(server: Loopback, client: Client) -> None:
    server.files["a.bin"] = OTHER
    hashes = [f"sha256:{sha256(content)}" for content in (CONTENT, OTHER)]
    with raises(DataError, client.address, *hashes, "--mirror"):
        client.get()
    assert client.left() == []
    server.files["a.bin"] = CONTENT
    client.get()
    assert client.target.read_bytes() == CONTENT


def test_a_file_of_another_size_is_refused_before_it_comes(
    server: Loopback, client: Client
) -> None:
    server.files["a.bin"] = CONTENT + b"x"
    with raises(DataError, client.address, "300,008", "300,007"):
        client.get()
    assert client.left() == []


def test_no_more_is_written_than_there_should_be(server: Loopback, client: Client) -> None:
    server.extra, server.tells_length = b"x" * 1_000_000, False
    with raises(DataError, client.address, "300,007", "--mirror"):
        client.get()
    assert client.left() == []
    assert max(done for _, done, _ in client.told) <= len(CONTENT)


def test_a_server_without_ranges_sends_all_again(server: Loopback, client: Client) -> None:
    server.ranges, server.cuts = False, [200_000, 100]
    client.get()
    assert client.target.read_bytes() == CONTENT
    assert server.starts == [0, 0, 0]


def test_a_server_without_ranges_that_never_comes_further_is_given_up(
    server: Loopback, client: Client
) -> None:
    server.ranges, server.cuts = False, [1000, 500, 900, 1000, 1, 999, 1000, 5, 7, 8]
    with raises(ConnectionError, client.address, RETRIES + 1, "1,000", "300,007"):
        client.get()


@pytest.mark.parametrize("etag", [None, 'W/"weak"', ""])
def test_a_file_that_changed_is_fetched_anew(
    server: Loopback, client: Client, etag: str | None
) -> None:
    server.files["a.bin"], server.cuts = OTHER, [200_000, *[0] * 6]
    if etag is not None:
        server.etags["a.bin"] = etag and f"{etag}1"
    with pytest.raises(ConnectionError):
        client.get()
    server.files["a.bin"] = CONTENT
    server.starts.clear()
    if etag:
        server.etags["a.bin"] = f"{etag}2"
    if etag == "":  # nothing tells the two files apart but the hash
        with raises(DataError, client.address, f"sha256:{sha256(CONTENT)}"):
            client.get()
    client.get()
    assert client.target.read_bytes() == CONTENT
    # Only a strong ETag lets the server see for itself that all must be sent.
    assert server.starts == ([0] if etag is None else [200_000, 0])


@pytest.mark.parametrize("shift", [-5, 7])
def test_another_piece_than_was_asked_for_is_not_taken(
    server: Loopback, client: Client, shift: int
) -> None:
    server.cuts, server.shift = [1000], shift
    client.get()
    assert client.target.read_bytes() == CONTENT
    assert server.starts == [0, 1000 + shift, 0]


def packed(content: bytes, level: int) -> bytes:
    return gzip.compress(content, level, mtime=0)


TEXT = bytes(random.Random(3).choices(b"abcdefgh \n", k=50_000))
KNOWN_BY_TEXT = File("some/a.gz", None, 20_000, (f"text:{sha256(TEXT)}", "md5:0"))


def test_of_a_file_that_became_shorter_nothing_is_kept(server: Loopback, client: Client) -> None:
    server.files["a.bin"], server.cuts = packed(TEXT, 0), [49_000, *[0] * 6]
    server.etags["a.bin"] = ""
    with pytest.raises(ConnectionError):
        client.get(KNOWN_BY_TEXT)
    server.files["a.bin"] = packed(TEXT, 9)
    client.get(KNOWN_BY_TEXT)  # the server answers 416 at first
    assert client.target.read_bytes() == packed(TEXT, 9)


@pytest.mark.parametrize("level", [0, 1, 9])
def test_a_text_may_be_packed_in_any_way(server: Loopback, client: Client, level: int) -> None:
    server.files["a.bin"], server.cuts = packed(TEXT, level), [7, 1000]
    client.get(KNOWN_BY_TEXT)
    assert_once(server, client, packed(TEXT, level))


def test_any_one_hash_is_enough(server: Loopback, client: Client) -> None:
    md5 = hashlib.md5(CONTENT).hexdigest()
    client.get(File("some/a.bin", None, 1, (f"text:{sha256(TEXT)}", f"md5:{md5}")))
    assert_once(server, client)


@pytest.mark.parametrize("wrong", [packed(TEXT + b"x", 9), packed(TEXT, 9)[:-9], TEXT])
def test_another_text_is_refused(server: Loopback, client: Client, wrong: bytes) -> None:
    server.files["a.bin"] = wrong
    with raises(DataError, f"text:{sha256(TEXT)}", "md5:0") as error:
        client.get(KNOWN_BY_TEXT)
    assert str(error.value).count("text:") == 2  # expected and received
    assert client.left() == []


def test_a_file_whose_size_nobody_knows_is_refused(server: Loopback, client: Client) -> None:
    server.tells_length = False
    with raises(DataError, client.address, "bytes"):
        client.get(KNOWN_BY_TEXT)


def test_what_was_complete_before_a_kill_is_not_fetched_again(
    server: Loopback, client: Client
) -> None:
    server.cuts = [300_000, *[0] * 6]
    with pytest.raises(ConnectionError):
        client.get()
    client.part.write_bytes(CONTENT)
    server.requests.clear()
    client.get()
    assert client.target.read_bytes() == CONTENT
    assert server.requests == []


def test_a_part_from_another_address_is_not_gone_on_with(server: Loopback, client: Client) -> None:
    server.files["b.bin"], server.cuts = CONTENT, [1000, *[0] * 6]
    with pytest.raises(ConnectionError):
        client.get()
    client.address = f"{server.address}/b.bin"
    client.get()
    assert client.target.read_bytes() == CONTENT
    assert server.sent["b.bin"] == len(CONTENT)


@pytest.mark.parametrize("note", ["", "[]", '{"address": 1}'])
def test_a_part_with_a_damaged_note_is_not_gone_on_with(
    server: Loopback, client: Client, note: str
) -> None:
    client.target.parent.mkdir()
    client.part.write_bytes(OTHER[:1000])
    client.part.with_name("a.bin.part.json").write_text(note)
    client.get()
    assert_once(server, client)


def test_a_file_in_the_place_of_a_part_is_named_and_left(client: Client) -> None:
    client.target.parent.mkdir()
    client.part.write_bytes(OTHER[:1000])
    with raises(SettingError, client.part):
        client.get()
    assert client.part.read_bytes() == OTHER[:1000]


def test_a_part_that_a_kill_left_before_its_note_is_begun_again(
    server: Loopback, client: Client
) -> None:
    client.target.parent.mkdir()
    client.part.write_bytes(b"")
    client.get()
    assert_once(server, client)


def test_a_redirect_is_followed_with_the_range(server: Loopback, client: Client) -> None:
    server.files["b.bin"] = server.files.pop("a.bin")
    server.moved["a.bin"] = f"{server.address}/b.bin"
    server.cuts = [1000]
    client.get()
    assert client.target.read_bytes() == CONTENT
    assert server.sent["b.bin"] == len(CONTENT)


@pytest.mark.parametrize("scheme", ["file", "ftp", "data"])
def test_a_redirect_leads_to_http_only(
    server: Loopback, client: Client, tmp_path: Path, scheme: str
) -> None:
    (tmp_path / "secret").write_bytes(CONTENT)
    server.moved["a.bin"] = f"{scheme}://{tmp_path}/secret"
    with raises(ConnectionError, client.address, 302):
        client.get()
    assert (client.left(), client.pauses) == ([], [])


def test_a_file_that_does_not_fit_is_not_begun(
    server: Loopback, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.cuts = [100_000, *[0] * 6]
    with pytest.raises(ConnectionError):
        client.get()
    room = shutil.disk_usage(client.target.parent)._replace(free=200_000)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda path: room)
        with pytest.raises(OSError, match="200,007") as error:
            client.get()
    assert_mentions(error.value.strerror, "200,007", 7)  # to come, and too many
    assert error.value.filename == str(client.target.parent)
    client.get()
    assert_once(server, client)
