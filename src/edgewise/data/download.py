"""One file, fetched whole or continued where it was cut off, and checked by its hash."""

import errno
import gzip
import hashlib
import http.client
import os
import re
import shutil
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any, NoReturn
from urllib import request
from urllib.error import HTTPError
from urllib.parse import urlsplit

from edgewise.data.catalogue import File
from edgewise.errors import DataError, SettingError
from edgewise.storage import read_json, recover, write_json

RETRIES = 5  # one after the other, each without a new byte
_BLOCK = 1 << 18
Progress = Callable[[str, int, int], None]  # what is being done, how far, of how much


class MissingError(SettingError):
    """What was asked for is not at that place."""


class _CutOffError(Exception):
    """An attempt ended early; another may go on."""


@dataclass(frozen=True)
class Patience:
    """How many seconds a server may be silent, and how to wait before it is asked again."""

    timeout: float = 60.0
    pause: Callable[[float], None] = time.sleep


PATIENT = Patience()


def download(
    file: File,
    address: str,
    target: Path,
    *,
    patience: Patience = PATIENT,
    progress: Progress = lambda stage, done, total: None,
) -> None:
    """Fetch a file, going on from what is there; `target` appears when its hash is right."""
    target.parent.mkdir(parents=True, exist_ok=True)
    recover(target.parent)
    part = _Part(file, address, target)
    most, failures = part.have, 0
    while not part.complete:
        try:
            _receive(part, patience.timeout, progress)
        except _CutOffError as error:
            # Against the most there ever was: a server that always starts anew makes no progress.
            failures = 0 if part.have > most else failures + 1
            most = max(most, part.have)
            if failures > RETRIES:
                raise ConnectionError(
                    f"{address}: {error}, {failures} times in a row; {part.have:,} bytes "
                    f"{f'of {part.total:,} ' if part.total else ''}are here, and the same command "
                    "goes on from there"
                ) from None
            patience.pause(0.5 * 2**failures)
    progress(f"checking {file.path}", 0, 0)
    try:
        check(part.path, file, address)
    except DataError:
        part.discard()  # going on from wrong bytes would never end well
        raise
    part.finish(target)


def check(path: Path, file: File, origin: str) -> None:
    """Raise DataError unless one of the file's hashes is that of `path`."""
    found = []
    for known in file.hashes:
        kind, _, expected = known.partition(":")
        digest = _digest(path, kind)
        if digest == expected:
            return
        found.append(f"{kind}:{digest}")
    raise DataError(
        f"{origin} is not what it should be: expected {' or '.join(file.hashes)}; got "
        f"{' and '.join(found)}: try again, or take another --mirror"
    )


def _digest(path: Path, kind: str) -> str:
    try:
        with gzip.open(path) if kind == "text" else path.open("rb") as content:
            name = "sha256" if kind == "text" else kind
            return hashlib.file_digest(content, name).hexdigest()
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return "none, it is no gzip or a damaged one"


class _Part:
    """What is here of a file, and a note of which file at the server it is a part of."""

    def __init__(self, file: File, address: str, target: Path) -> None:
        self.file, self.address = file, address
        self.path = target.with_name(f"{target.name}.part")
        self.note = target.with_name(f"{target.name}.part.json")
        self.total: int | None = file.size if file.exact else None
        self.have = 0
        self.marks: dict[str, str] = {}
        if self.note.is_file() and self.path.is_file():
            self._recall()
        elif os.path.lexists(self.path) and not _is_empty(self.path):
            raise SettingError(
                f"{self.path} was not begun by edgewise, and is not overwritten: move it away"
            )

    def _recall(self) -> None:
        try:
            noted = read_json(self.note)
            address, total, marks = noted["address"], int(noted["bytes"]), dict(noted["marks"])
        except (DataError, KeyError, TypeError, ValueError):
            return
        have = self.path.stat().st_size
        if address == self.address and self.total in (None, total) and have <= total:
            self.total, self.marks, self.have = total, marks, have

    @property
    def complete(self) -> bool:
        return self.have == self.total

    def require_room(self) -> None:
        needed = (self.total or 0) - self.have
        lacking = needed - shutil.disk_usage(self.path.parent).free
        if lacking > 0:
            message = f"{needed:,} bytes are still to come, {lacking:,} more than there is room for"
            raise OSError(errno.ENOSPC, message, str(self.path.parent))

    def headers(self) -> dict[str, str]:
        """What asks for the rest, or for all if the server's file has changed."""
        if not self.have:
            return {}
        # A weak ETag says nothing of bytes, hence servers do not take it here.
        mark = self.marks.get("ETag", "W/")
        mark = self.marks.get("Last-Modified", "") if mark.startswith("W/") else mark
        return {"Range": f"bytes={self.have}-"} | ({"If-Range": mark} if mark else {})

    def start(self, headers: Message) -> None:
        """Begin anew with the file that these headers describe."""
        length = headers["Content-Length"]
        total = int(length) if length and length.isdecimal() else self.total
        if total is None:
            raise DataError(f"{self.address} does not say how many bytes it has")
        if self.file.exact and total != self.file.size:
            raise DataError(
                f"{self.address} has {total:,} bytes; expected {self.file.size:,}: the file is "
                "another one now, try another --mirror"
            )
        # Emptied before the note is written: a kill in between leaves no note of another file.
        self.path.write_bytes(b"")
        self.have, self.total, self.marks = 0, total, _marks(headers)
        write_json(self.note, {"address": self.address, "bytes": total, "marks": self.marks})

    def continued_by(self, headers: Message) -> bool:
        """Whether what comes is the rest of what is here."""
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", headers["Content-Range"] or "")
        if not self.have or found is None or int(found[1]) != self.have:
            return False
        now = _marks(headers)
        same = all(now.get(name, mark) == mark for name, mark in self.marks.items())
        return same and found[2] in ("*", str(self.total))

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)
        self.have = 0

    def finish(self, target: Path) -> None:
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
        self.path.replace(target)
        self.note.unlink(missing_ok=True)


def _is_empty(path: Path) -> bool:
    """Whether a regular file is empty: as a kill leaves it before its note is written."""
    return path.is_file() and not path.stat().st_size


def _marks(headers: Message) -> dict[str, str]:
    return {name: headers[name] for name in ("ETag", "Last-Modified") if headers[name]}


def _receive(part: _Part, timeout: float, progress: Progress) -> None:
    """One request, and all that comes of it."""
    part.require_room()
    asked = request.Request(part.address, headers={"User-Agent": "edgewise"} | part.headers())
    try:
        response = _OPENER.open(asked, timeout=timeout)
    except HTTPError as error:
        with error:
            _refused(part, error)
    except (OSError, http.client.HTTPException) as error:
        raise _CutOffError(_reason(error)) from None
    with response:
        if response.status != 206:
            part.start(response.headers)
        elif not part.continued_by(response.headers):
            part.discard()
            raise _CutOffError("the server sends another piece than it was asked for")
        part.require_room()
        assert part.total is not None
        with part.path.open("ab") as out:
            while block := _read(response):
                if part.have + len(block) > part.total:
                    part.discard()
                    raise DataError(
                        f"{part.address} sends more than the {part.total:,} bytes that it should "
                        "have: try again, or take another --mirror"
                    )
                out.write(block)
                out.flush()  # so that a kill loses nothing that came
                part.have += len(block)
                progress(f"fetching {part.file.path}", part.have, part.total)
    if not part.complete:
        raise _CutOffError("the connection ended early")


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read1(_BLOCK)
    except (OSError, http.client.HTTPException) as error:
        raise _CutOffError(_reason(error)) from None


def _refused(part: _Part, error: HTTPError) -> NoReturn:
    status = f"{error.code} {error.reason}"
    if error.code in (404, 410):
        raise MissingError(part.address) from None
    if error.code == 416:
        part.discard()
    if error.code in (408, 416, 429) or error.code >= 500:
        raise _CutOffError(f"the server answers {status}") from None
    raise ConnectionError(
        f"{part.address}: the server answers {status}; --mirror takes another source"
    ) from None


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", error)) or type(error).__name__


class _Redirects(request.HTTPRedirectHandler):
    """Redirects to http and https only."""

    def redirect_request(
        self,
        req: request.Request,
        fp: Any,
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> request.Request | None:
        if urlsplit(newurl).scheme not in ("http", "https"):
            raise HTTPError(req.full_url, code, f"and leads to {newurl}", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_OPENER = request.build_opener(_Redirects)
