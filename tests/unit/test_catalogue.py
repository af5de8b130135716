"""The catalogue is sound, and its corpora come out as text that can be prepared."""

import fcntl
import gzip
import hashlib
import io
import os
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from loopback import Loopback
from messages import assert_mentions, raises

from edgewise.data import fetch as fetching
from edgewise.data.catalogue import CORPORA, PARTS, File, PublicBitext, PublicCorpus, Text
from edgewise.data.fetch import cache_folder, fetch, is_ready
from edgewise.errors import DataError, SettingError

ENGLISH = "Standard & Poor's\na\u2028b\r\n\nlast\n".encode()
GERMAN = b"eins\nzwei\ndrei\nvier"  # its last line has no end
FRENCH = b"un\ndeux\ntrois\nquatre\n"
SGM = {
    "en": '<srcset setid="x" srclang="any">\n<doc id="1">\n<p>\n'
    '<seg id="1">S&P  &amp; &quot;co&quot;\u00a0</seg>\n'
    "<seg id='2'> AT&T &lt;b&gt; &amp;lt; </seg></p>\n</doc>\n</srcset>\n",
    "de": '<seg id="1">S&P</seg>\n<seg id="2">größer</seg>\n',
}


def files_of(corpus: PublicCorpus) -> list[File]:
    return [text.file for bitext in corpus.bitexts for way in bitext.ways for text in way.values()]


ALL = {file for corpus in CORPORA.values() for file in files_of(corpus)}


def test_the_papers_corpora_have_as_many_pairs_as_it_says() -> None:
    assert {name: corpus.pairs for name, corpus in CORPORA.items()} == {
        "multi30k": 29_000,
        "wmt14-en-de": 4_520_620,
        "wmt14-en-fr": 40_842_333,
    }


def test_what_is_fetched_is_counted_once() -> None:
    archives = 657_632_379 + 918_311_367 + 80_418_416 + 38_654_961
    assert CORPORA["wmt14-en-de"].size == archives
    assert CORPORA["wmt14-en-fr"].size == archives + 2_365_634_246 + 2_595_102_720


def test_every_file_has_hashes_and_a_place_of_its_own() -> None:
    lengths = {"sha256": 64, "text": 64, "md5": 32}
    for file in ALL:
        assert file.hashes
        for known in file.hashes:
            kind, _, digest = known.partition(":")
            assert re.fullmatch(f"[0-9a-f]{{{lengths[kind]}}}", digest)
        assert file.address is None or file.address.startswith("https://")
        assert not {"", ".", ".."} & {*file.path.split("/")}
    assert len({file.path for file in ALL}) == len(ALL)
    assert len({file.address for file in ALL if file.address}) == sum(
        file.address is not None for file in ALL
    )


def test_an_archive_is_in_a_mirror_where_it_is_at_its_public_host() -> None:
    archives = [file for file in ALL if file.exact]
    assert len(archives) == 6
    for file in archives:
        assert file.address in (
            f"https://www.statmt.org/{file.path}",
            f"https://data.statmt.org/{file.path}",
        )


@pytest.mark.parametrize("corpus", CORPORA.values(), ids=lambda corpus: corpus.name)
def test_every_corpus_has_all_parts_in_all_its_languages(corpus: PublicCorpus) -> None:
    assert {bitext.part for bitext in corpus.bitexts} == {*PARTS}
    assert len({bitext.name for bitext in corpus.bitexts}) == len(corpus.bitexts)
    for bitext in corpus.bitexts:
        assert all(tuple(way) == corpus.languages for way in bitext.ways)
        assert any(text.file.address for text in bitext.ways[-1].values())


def packed(name: str, members: Mapping[str, bytes]) -> bytes:
    """A tar archive, gzipped if its name says so, with other things in it too."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz" if name.endswith("gz") else "w") as archive:
        folder = tarfile.TarInfo("training")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for member, content in {"../../escape": b"x", **members, "after": b"y" * 99_999}.items():
            entry = tarfile.TarInfo(member)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def file_of(path: str, content: bytes) -> File:
    return File(path, None, len(content), (f"sha256:{hashlib.sha256(content).hexdigest()}",))


CONTENTS = {
    "wmt13/europarl.tgz": packed(
        "europarl.tgz",
        {
            "training/e.fr-en.fr": FRENCH,
            "./training/e.de-en.de": GERMAN,
            "training/e.fr-en.en": ENGLISH,
            "training/e.de-en.en": ENGLISH,
        },
    ),
    "wmt10/giga.tar": packed(
        "giga.tar", {"g.en.gz": gzip.compress(ENGLISH), "g.fr.gz": gzip.compress(FRENCH)}
    ),
    "dev.tgz": packed("dev.tgz", {f"dev/{k}.sgm": text.encode() for k, text in SGM.items()}),
    "news/a.en.gz": gzip.compress(b"one\ntwo\n"),
    "news/a.de.gz": gzip.compress(b"eins\nzwei\n"),
}
EUROPARL, GIGA, DEV, NEWS_EN, NEWS_DE = (file_of(*entry) for entry in CONTENTS.items())


def members(file: File, **names: str) -> dict[str, Text]:
    return {language: Text(file, name) for language, name in names.items()}


EN_DE = PublicCorpus(
    "en-de",
    "",
    "",
    ("en", "de"),
    (
        PublicBitext(
            "train.e", 4, (members(EUROPARL, en="training/e.de-en.en", de="training/e.de-en.de"),)
        ),
        PublicBitext(
            "valid",
            2,
            (
                {"en": Text(NEWS_EN), "de": Text(NEWS_DE)},
                members(DEV, en="dev/en.sgm", de="dev/de.sgm"),
            ),
        ),
    ),
)
EN_FR = PublicCorpus(
    "en-fr",
    "",
    "",
    ("en", "fr"),
    (
        PublicBitext(
            "train.e", 4, (members(EUROPARL, en="training/e.fr-en.en", fr="training/e.fr-en.fr"),)
        ),
        PublicBitext("train.g", 4, (members(GIGA, en="g.en.gz", fr="g.fr.gz"),)),
    ),
)


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    """A folder with all files."""
    for path, content in CONTENTS.items():
        (tmp_path / "mirror" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mirror" / path).write_bytes(content)
    return tmp_path / "mirror"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Loopback(dict(CONTENTS)) as server:
        yield server


def texts(folder: Path) -> dict[str, bytes]:
    """What is in each file, hidden or not."""
    return {path.name: gzip.decompress(path.read_bytes()) for path in folder.iterdir()}


def one(way: dict[str, Text], lines: int = 4) -> PublicCorpus:
    """A corpus of one bitext."""
    return PublicCorpus("one", "", "", tuple(way), (PublicBitext("train", lines, (way,)),))


def test_a_corpus_comes_out_of_archives_line_by_line(mirror: Path, tmp_path: Path) -> None:
    out = fetch(EN_FR, tmp_path / "cache", mirror=str(mirror))
    assert out == tmp_path / "cache" / "en-fr"
    assert texts(out) == {
        "train.e.en.gz": ENGLISH,
        "train.e.fr.gz": FRENCH,
        "train.g.en.gz": ENGLISH,
        "train.g.fr.gz": FRENCH,
    }


def test_a_last_line_gets_its_end(mirror: Path, tmp_path: Path) -> None:
    out = fetch(EN_DE, tmp_path / "cache", mirror=str(mirror))
    assert texts(out)["train.e.de.gz"] == GERMAN + b"\n"


def test_plain_files_come_before_the_archive_that_has_them_too(
    mirror: Path, tmp_path: Path
) -> None:
    out = fetch(EN_DE, tmp_path / "cache", mirror=str(mirror), parts=["valid"])
    assert texts(out) == {"valid.en.gz": b"one\ntwo\n", "valid.de.gz": b"eins\nzwei\n"}


def test_segments_become_lines_with_single_spaces_and_no_entities(
    mirror: Path, tmp_path: Path
) -> None:
    (mirror / "news" / "a.de.gz").unlink()
    out = fetch(EN_DE, tmp_path / "cache", mirror=str(mirror), parts=["valid"])
    assert texts(out) == {
        "valid.en.gz": b'S&P & "co"\nAT&T <b> &lt;\n',
        "valid.de.gz": "S&P\ngrößer\n".encode(),
    }


def test_ready_files_are_the_same_bytes_each_time(mirror: Path, tmp_path: Path) -> None:
    first, second = (fetch(EN_FR, tmp_path / name, mirror=str(mirror)) for name in "ab")
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes()
        assert path.read_bytes()[4:8] == bytes(4)  # no time is kept


def test_a_mirror_folder_is_read_in_place_and_left_as_it_is(mirror: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in mirror.rglob("*") if path.is_file()}
    for path in (mirror, *mirror.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    fetch(EN_FR, tmp_path / "cache", mirror=str(mirror))
    assert {path: path.read_bytes() for path in mirror.rglob("*") if path.is_file()} == before
    assert not (tmp_path / "cache" / "downloads").exists()
    for path in (mirror, *mirror.rglob("*")):
        path.chmod(0o755)


def test_an_archive_of_two_corpora_is_fetched_once(server: Loopback, tmp_path: Path) -> None:
    for corpus in (EN_DE, EN_FR):
        fetch(corpus, tmp_path, mirror=f"{server.address}/")
    assert server.sent == {path: len(CONTENTS[path]) for path in server.sent}
    assert {*server.sent} == {*CONTENTS} - {"dev.tgz"}
    assert texts(tmp_path / "en-fr")["train.g.fr.gz"] == FRENCH


def test_what_was_downloaded_can_be_a_mirror(server: Loopback, tmp_path: Path) -> None:
    first = fetch(EN_FR, tmp_path / "a", mirror=server.address)
    second = fetch(EN_FR, tmp_path / "b", mirror=str(tmp_path / "a" / "downloads"))
    assert texts(first) == texts(second)


def test_a_ready_corpus_is_left_alone(server: Loopback, mirror: Path, tmp_path: Path) -> None:
    out = fetch(EN_FR, tmp_path / "cache", mirror=str(mirror))
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    assert fetch(EN_FR, tmp_path / "cache", mirror=server.address) == out
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before
    assert server.requests == []


def test_a_kept_file_that_is_another_one_is_named_and_left(
    server: Loopback, tmp_path: Path
) -> None:
    kept = tmp_path / "downloads" / "wmt10" / "giga.tar"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(CONTENTS["wmt10/giga.tar"][:-1])
    with raises(DataError, kept, *GIGA.hashes, "remove"):
        fetch(EN_FR, tmp_path, mirror=server.address)
    assert kept.read_bytes() == CONTENTS["wmt10/giga.tar"][:-1]
    kept.unlink()
    fetch(EN_FR, tmp_path, mirror=server.address)
    assert kept.read_bytes() == CONTENTS["wmt10/giga.tar"]


def test_a_file_without_that_of_the_other_language_is_named_and_left(
    mirror: Path, tmp_path: Path
) -> None:
    out = tmp_path / "cache" / "en-fr"
    out.mkdir(parents=True)
    path = out / "train.e.en.gz"
    path.write_bytes(gzip.compress(b"mine"))
    with raises(SettingError, path):
        fetch(EN_FR, tmp_path / "cache", mirror=str(mirror))
    assert texts(out) == {"train.e.en.gz": b"mine"}
    path.unlink()
    fetch(EN_FR, tmp_path / "cache", mirror=str(mirror))
    assert len(texts(out)) == 4


@pytest.mark.parametrize("from_server", [True, False])
def test_what_a_mirror_has_is_made_ready_and_what_it_lacks_is_named(
    mirror: Path, server: Loopback, tmp_path: Path, from_server: bool
) -> None:
    (mirror / "wmt13" / "europarl.tgz").unlink()
    del server.files["wmt13/europarl.tgz"]
    source = server.address if from_server else str(mirror)
    out, lacking = tmp_path / "cache" / "en-de", f"{source}/wmt13/europarl.tgz"
    with raises(SettingError, "en-de", out, "valid", lacking, "--mirror") as error:
        fetch(EN_DE, tmp_path / "cache", mirror=source)
    (line,) = (line for line in str(error.value).splitlines() if lacking in line)
    assert_mentions(line, "train.e")
    assert "valid" not in line
    assert [is_ready(bitext, out) for bitext in EN_DE.bitexts] == [False, True]
    assert fetch(EN_DE, tmp_path / "cache", mirror=source, parts=["valid"]) == out


def test_every_place_that_was_looked_at_is_named(mirror: Path, tmp_path: Path) -> None:
    (mirror / "news" / "a.en.gz").unlink()
    (mirror / "dev.tgz").unlink()
    with raises(SettingError, mirror / "news" / "a.en.gz", mirror / "dev.tgz"):
        fetch(EN_DE, tmp_path / "cache", mirror=str(mirror))


def test_a_wrong_file_of_a_mirror_is_refused_and_left(mirror: Path, tmp_path: Path) -> None:
    (mirror / "wmt10" / "giga.tar").write_bytes(b"other")
    received = file_of("giga.tar", b"other").hashes
    with raises(DataError, mirror / "wmt10" / "giga.tar", *GIGA.hashes, *received):
        fetch(EN_FR, tmp_path / "cache", mirror=str(mirror))
    assert (mirror / "wmt10" / "giga.tar").read_bytes() == b"other"
    assert {*texts(tmp_path / "cache" / "en-fr")} == {"train.e.en.gz", "train.e.fr.gz"}


def put(mirror: Path, path: str, content: bytes) -> File:
    (mirror / path).write_bytes(content)
    return file_of(path, content)


def test_a_member_that_is_not_there_is_named(mirror: Path, tmp_path: Path) -> None:
    corpus = one(members(GIGA, en="g.en.gz", fr="g.fra.gz"))
    with raises(DataError, mirror / "wmt10" / "giga.tar", "g.fra.gz"):
        fetch(corpus, tmp_path / "cache", mirror=str(mirror))
    assert texts(tmp_path / "cache" / "one") == {}


def test_a_member_that_is_a_link_is_not_followed(mirror: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(ENGLISH)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        link = tarfile.TarInfo("en")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret")
        archive.addfile(link)
    file = put(mirror, "link.tar", out.getvalue())
    with raises(DataError, mirror / "link.tar", "en"):
        fetch(one(members(file, en="en")), tmp_path / "cache", mirror=str(mirror))


@pytest.mark.parametrize("keep", [0.3, 0.9])
@pytest.mark.parametrize("path", ["wmt13/europarl.tgz", "wmt10/giga.tar", "news/a.en.gz"])
def test_a_damaged_archive_is_an_error_and_leaves_nothing(
    mirror: Path, tmp_path: Path, path: str, keep: float
) -> None:
    content = CONTENTS[path]
    file = put(mirror, path, content[: int(len(content) * keep)])
    member = {"wmt13/europarl.tgz": "after", "wmt10/giga.tar": "after"}.get(path)
    with raises(DataError, mirror / path) as error:
        fetch(one({"en": Text(file, member)}, 0), tmp_path / "cache", mirror=str(mirror))
    # Cut within a member, or before the one that is asked for.
    assert re.search(r"\b(damaged|after)\b", str(error.value))
    assert texts(tmp_path / "cache" / "one") == {}


def test_sides_must_have_as_many_lines_as_each_other(mirror: Path, tmp_path: Path) -> None:
    file = put(mirror, "a.tar", packed("a.tar", {"en": ENGLISH + b"more\n", "de": GERMAN}))
    with raises(DataError, "train", 5, "en", 4, "de"):
        fetch(one(members(file, en="en", de="de"), 4), tmp_path / "c", mirror=str(mirror))
    assert texts(tmp_path / "c" / "one") == {}


@pytest.mark.parametrize("change", [lambda kept: kept[:-1] + b"!", lambda kept: kept[:99]])
def test_a_kept_file_that_has_changed_is_not_used_and_left(
    mirror: Path, tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    kept = tmp_path / "cache" / "downloads" / EUROPARL.path
    kept.parent.mkdir(parents=True)
    kept.write_bytes(change(CONTENTS[EUROPARL.path]))
    wanted = one(members(EUROPARL, en="training/e.de-en.en", de="training/e.de-en.de"))
    fetch(wanted, tmp_path / "cache", mirror=str(mirror))
    assert set(texts(tmp_path / "cache" / "one").values()) == {ENGLISH, GERMAN + b"\n"}
    assert kept.read_bytes() == change(CONTENTS[EUROPARL.path])


def test_two_processes_do_not_fetch_into_one_folder(mirror: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with raises(SettingError, folder, "--dir"):
        fetch(EN_FR, folder, mirror=str(mirror))
    os.close(descriptor)
    fetch(EN_FR, folder, mirror=str(mirror))


@pytest.mark.parametrize(
    ("mirror", "expected"),
    [
        ("nowhere", ()),
        ("ftp://a.b/c", ("http://", "https://")),
        ("file:///etc", ("http://", "https://")),
    ],
)
def test_a_mirror_is_a_folder_or_a_server(
    tmp_path: Path, mirror: str, expected: tuple[str, ...]
) -> None:
    with raises(SettingError, "--mirror", mirror, *expected):
        fetch(EN_FR, tmp_path / "cache", mirror=mirror)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("/x/y", "/x/y/edgewise"),
        ("rel", "/home/me/.cache/edgewise"),
        ("", "/home/me/.cache/edgewise"),
    ],
)
def test_the_cache_is_where_xdg_says(
    monkeypatch: pytest.MonkeyPatch, variable: str, expected: str
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", variable)
    assert cache_folder() == Path(expected)
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path(expected if variable != "/x/y" else "/home/me/.cache/edgewise")


def test_text_is_streamed_in_blocks(
    mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_BLOCK", 3)
    out = fetch(EN_FR, tmp_path / "cache", mirror=str(mirror))
    assert texts(out)["train.g.en.gz"] == ENGLISH
