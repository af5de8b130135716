"""Files and folders on disk: replaced atomically, verified when read, never lost by accident."""

from edgewise.storage.files import open_regular, read_json, read_regular, sha256
from edgewise.storage.locks import locked
from edgewise.storage.manifest import (
    MANIFEST,
    SealedFolder,
    kind_of,
    open_sealed,
    regular_inside,
    seal,
)
from edgewise.storage.paths import utf8_path
from edgewise.storage.replace import (
    new_folder,
    output_file,
    output_files,
    recover,
    remove,
    replacing,
    resolved,
    set_aside,
    write_json,
    write_text,
)
from edgewise.storage.targets import require_free_files, require_free_folder

__all__ = [
    "MANIFEST",
    "SealedFolder",
    "kind_of",
    "locked",
    "new_folder",
    "open_regular",
    "open_sealed",
    "output_file",
    "output_files",
    "read_json",
    "read_regular",
    "recover",
    "regular_inside",
    "remove",
    "replacing",
    "require_free_files",
    "require_free_folder",
    "resolved",
    "seal",
    "set_aside",
    "sha256",
    "utf8_path",
    "write_json",
    "write_text",
]
