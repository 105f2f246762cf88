"""Checks whether a node may make its store in a directory. A new store must not be beside or inside a store
of another owner.

For example, an Apache broker may be moved here with its old storePathRootDir, or a node may be given another
id. Without the check the node would start with an empty log, and all messages would seem to be lost.
Blocking.
"""

from __future__ import annotations

import re

from dledger.formats.entry import APACHE_MAGICS, HEADER_SIZE, unpack_header
from dledger.formats.store_files import (
    APACHE_TERM_FILE,
    DATA_DIR,
    IDENTITY_FILE,
    IMPORTING_DIR,
    CorruptFile,
    decode_identity,
    parse_segment_name,
)
from dledger.runtime import Files
from dledger.runtime.atomic_file import read_file

NODE_DIR = re.compile(r"dledger-([A-Za-z][0-9]+)")
"""Pattern for the name of a node's directory in a storePathRootDir. Other names with this beginning
(`dledger-n0.old`) are not of stores."""
COMMITLOG_DIR = "commitlog"
_ADVICE = (
    "It cannot be opened in place: `dledger import {root} <new directory>... --group <dLegerGroup>` "
    "makes stores of it (docs: Move a cluster over)"
)


def foreign_store(files: Files, root: str, node_dir: str) -> str:
    """Return the reason why no new store may be made at `root` (storePathRootDir); empty if it may."""
    if files.is_dir(f"{root}/{IMPORTING_DIR}"):
        return (
            f"{root}: an import into this directory is not finished. Run the same `dledger import` "
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


def other_node(files: Files, root: str, self_id: str) -> str:
    """Return the reason why the node `self_id` may not use `root` (storePathRootDir); empty if it may.

    Everything beside the log (ConsumeQueues, index, state) belongs to one node. Directories without an
    identity and without a log, which a refused start leaves, belong to no node.
    """
    if _holds_a_node(files, root):
        return (
            f"{root} is the directory of the node itself{_named(files, root)}: set storePathRootDir "
            "to the directory above it"
        )
    others = {
        found[1]: f"{root}/{name}"
        for name in files.listdir(root)
        if (found := NODE_DIR.fullmatch(name))
        and found[1] != self_id
        and _holds_a_node(files, f"{root}/{name}")
    }
    if not others:
        return ""
    whose, where = ", ".join(others), ", ".join(others.values())
    if _holds_a_node(files, f"{root}/dledger-{self_id}"):
        return (
            f"{root} holds the stores of {self_id} and of {whose}, and each node needs its own "
            "storePathRootDir. Find out which of them has the messages (`dledger dump DIRECTORY`), "
            f"and move the other away ({where})"
        )
    return (
        f"{root}: this store belongs to {whose} ({where}), but dLegerSelfId is {self_id}. A node "
        "keeps its id: set it back, or give the new node an empty storePathRootDir and add it by "
        "`dledger member`"
    )


def _holds_a_node(files: Files, directory: str) -> bool:
    if files.exists(f"{directory}/{IDENTITY_FILE}"):
        return True
    data = f"{directory}/{DATA_DIR}"
    return files.is_dir(data) and any(parse_segment_name(name) is not None for name in files.listdir(data))


def _named(files: Files, directory: str) -> str:
    try:
        return f", {decode_identity(read_file(files, f'{directory}/{IDENTITY_FILE}') or b'').node}"
    except CorruptFile:
        return ""


def _is_apaches(files: Files, directory: str) -> bool:
    if files.exists(f"{directory}/{APACHE_TERM_FILE}"):
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
