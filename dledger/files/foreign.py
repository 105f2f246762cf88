"""Whether a directory without an identity holds the store of somebody else: then a node must not begin an
empty
log beside it. Blocking.

A broker of Apache's that is moved here with its old storePathRootDir would else start, empty, and its
messages would
seem to be gone.
"""

from __future__ import annotations

from dledger.formats.entry import APACHE_MAGICS, HEADER_SIZE, unpack_header
from dledger.formats.store_files import DATA_DIR, IMPORTING_DIR, parse_segment_name
from dledger.runtime import Files

COMMITLOG_DIR = "commitlog"
TERM_FILE = "currterm"
"""Where Apache's DLedger keeps term and vote."""
_ADVICE = (
    "It is not opened in place: `dledger import {root} <new directory>... --group <dLegerGroup>` makes "
    "stores of "
    "it (docs: Move a cluster over)"
)


def foreign_store(files: Files, root: str, node_dir: str) -> str:
    """Why no new store may be begun at `root` (storePathRootDir); empty when it may."""
    if files.is_dir(f"{root}/{IMPORTING_DIR}"):
        return (
            f"{root}: an import into this directory was begun and is not finished. Give the same `dledger "
            "import` "
            f"command again, or remove {root}/{IMPORTING_DIR}"
        )
    advice = _ADVICE.format(root=root)
    if any(parse_segment_name(name) is not None for name in files.listdir(f"{root}/{COMMITLOG_DIR}")):
        return f"{root}/{COMMITLOG_DIR} holds the CommitLog of a broker of Apache RocketMQ. {advice}"
    for name in files.listdir(root):
        directory = f"{root}/{name}"
        if name.startswith("dledger-") and _is_apaches(files, directory):
            return f"{directory} is the store of a broker of Apache RocketMQ in DLedger mode. {advice}"
    return ""


def _is_apaches(files: Files, directory: str) -> bool:
    if files.exists(f"{directory}/{TERM_FILE}"):
        return True
    names = [
        name for name in files.listdir(f"{directory}/{DATA_DIR}") if parse_segment_name(name) is not None
    ]
    if not names:
        return False
    file = files.open_read(f"{directory}/{DATA_DIR}/{min(names)}")
    try:
        data = file.pread(HEADER_SIZE, 0)
    finally:
        file.close()
    if len(data) < HEADER_SIZE:
        return False
    header = unpack_header(data)
    return header.magic in APACHE_MAGICS and header.chain_crc == header.body_crc == 0 and header.size > 0
