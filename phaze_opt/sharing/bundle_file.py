"""The file format of a bundle: a zip of plain data with a manifest; nothing in it is executed.

Equal members give equal bytes: they are sorted, with one date and one compression level. The
manifest states the size and the SHA-256 of every member, and the comment of the zip the SHA-256 of
all bytes before it, so that every altered byte is detected.

A file is refused before any of its data is used, unless it has the layout that this module writes:
members one behind the other from the first byte on, all with different and allowed names, no links
and no folders, and no member larger, unpacked, than it declares.
"""

from __future__ import annotations

import hashlib
import io
import stat
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from phaze_opt.codec import from_json, to_json
from phaze_opt.errors import InputError

FORMAT = "phaze-opt study"
VERSION = 1
"""Version of the format; it is raised when older programs cannot read new bundles."""

MANIFEST = "manifest.json"
LARGEST_FILE_BYTES = 2**28
LARGEST_CONTENT_BYTES = 2**29
"""Largest sum of all unpacked members: about twenty thousand trials."""

_COMMENT = b"phaze-opt sha256 "
_DIGITS = 64
_DATE = (1980, 1, 1, 0, 0, 0)
_REGULAR_FILE = (stat.S_IFREG | 0o644) << 16
_FOLDER = 0x10
_HEADER_BYTES = 30
_LEVEL = 6


@dataclass(frozen=True)
class MemberFacts:
    """The unpacked size and the SHA-256 of a member, in the manifest."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The description of a bundle, in the bundle.

    Attributes
    ----------
    format, version
        `FORMAT` and `VERSION`.
    spec_hash, cost_model_version
        Hash of the study's spec, and version of its cost model.
    members
        All members but the manifest, by name.
    """

    format: str
    version: int
    spec_hash: str
    cost_model_version: str
    members: Mapping[str, MemberFacts]


def pack(members: Mapping[str, bytes], *, spec_hash: str, cost_model_version: str) -> bytes:
    """Write members as the bytes of a bundle.

    Raises
    ------
    InputError
        If the members are larger than `unpack` allows.
    """
    facts = {
        name: MemberFacts(len(data), hashlib.sha256(data).hexdigest())
        for name, data in sorted(members.items())
    }
    total = sum(member.bytes for member in facts.values())
    if total > LARGEST_CONTENT_BYTES:
        raise InputError(
            f"The study has {total:,} bytes of data, but a bundle holds up to "
            f"{LARGEST_CONTENT_BYTES:,}; 'phaze-opt study copy' copies it to another database."
        )
    manifest = Manifest(FORMAT, VERSION, spec_hash, cost_model_version, facts)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in ((MANIFEST, to_json(manifest)), *sorted(members.items())):
            info = zipfile.ZipInfo(name, _DATE)
            info.create_system = 3
            info.external_attr = _REGULAR_FILE
            archive.writestr(info, data, zipfile.ZIP_DEFLATED, _LEVEL)
        archive.comment = _COMMENT + b"0" * _DIGITS
    body = stream.getvalue()[:-_DIGITS]
    return body + _digest(body)


def unpack(
    data: bytes, what: str, is_allowed: Callable[[str], bool]
) -> tuple[Manifest, dict[str, bytes]]:
    """Read the bytes of a bundle.

    Parameters
    ----------
    data
        The whole file.
    what
        Name of the file in the error's sentence (``"bundle a.zip"``).
    is_allowed
        Whether a bundle may have a member of this name.

    Returns
    -------
    manifest, members
        The manifest, and the content of the other members by name.

    Raises
    ------
    InputError
        If the file is truncated, altered or has another layout, or a newer program wrote it.
    """
    if len(data) > LARGEST_FILE_BYTES:
        raise InputError(f"The {what} is larger than the {LARGEST_FILE_BYTES:,} bytes allowed.")
    infos = _entries(data, what)
    for info in infos:
        _check_entry(info, what, is_allowed)
    if len({info.filename for info in infos}) < len(infos):
        raise InputError(f"The {what} has two members of one name.")
    total = sum(info.file_size for info in infos)
    if total > LARGEST_CONTENT_BYTES:
        raise InputError(
            f"The {what} declares {total:,} bytes of data, but up to {LARGEST_CONTENT_BYTES:,} are "
            "allowed."
        )
    if _digest(data[:-_DIGITS]) != data[-_DIGITS:]:
        raise InputError(f"The {what} was altered or cut: its checksum is another one.")
    members = _contents(data, infos, what)
    if MANIFEST not in members:
        raise InputError(f"The {what} has no {MANIFEST}, and so is no bundle of a study.")
    manifest = _manifest(members.pop(MANIFEST), what)
    _check_members(manifest, members, what)
    return manifest, members


def _entries(data: bytes, what: str) -> list[zipfile.ZipInfo]:
    """Read the list of members."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            comment, infos = archive.comment, archive.infolist()
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, OverflowError) as error:
        raise InputError(f"The {what} is truncated, or no bundle at all ({error}).") from None
    if not comment.startswith(_COMMENT) or len(comment) != len(_COMMENT) + _DIGITS:
        raise InputError(f"The {what} was not written by 'phaze-opt study export', or altered.")
    return infos


def _check_entry(info: zipfile.ZipInfo, what: str, is_allowed: Callable[[str], bool]) -> None:
    """Refuse a member that is no plain file of a known name."""
    # The name in the file; zipfile replaces and cuts some letters of it.
    name = info.orig_filename
    if name != info.filename or not (name == MANIFEST or is_allowed(name)):
        raise InputError(f"The {what} has a member {name!r}, which no bundle may have.")
    kind = stat.S_IFMT(info.external_attr >> 16)
    if info.external_attr & _FOLDER or kind not in (0, stat.S_IFREG):
        raise InputError(f"The member {name!r} of the {what} is a link or folder, but no file.")
    if info.flag_bits or info.compress_type != zipfile.ZIP_DEFLATED or info.extra or info.comment:
        raise InputError(f"The member {name!r} of the {what} is packed in a way not allowed.")


def _contents(data: bytes, infos: list[zipfile.ZipInfo], what: str) -> dict[str, bytes]:
    """Unpack the members, which must lie one behind the other."""
    members: dict[str, bytes] = {}
    place = 0
    for info in infos:
        name = info.filename.encode()
        start = place + _HEADER_BYTES + len(name)
        header = data[place:start]
        if info.header_offset != place or header[:4] != b"PK\x03\x04" or header[30:] != name:
            raise InputError(f"The members of the {what} do not lie one behind the other.")
        place = start + info.compress_size
        members[info.filename] = _inflated(data[start:place], info, what)
    return members


def _inflated(packed: bytes, info: zipfile.ZipInfo, what: str) -> bytes:
    """Unpack one member, to no more bytes than it declares."""
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        content = unpacker.decompress(packed, info.file_size + 1)
    except zlib.error as error:
        raise InputError(
            f"The member {info.filename!r} of the {what} is damaged: {error}."
        ) from None
    if len(content) != info.file_size or not unpacker.eof or unpacker.unused_data:
        raise InputError(
            f"The member {info.filename!r} of the {what} has not the {info.file_size:,} bytes that "
            "it declares."
        )
    return content


def _manifest(document: bytes, what: str) -> Manifest:
    """Read the manifest; the version is checked first, since a newer one may have other keys."""
    plain = from_json(document, dict[str, Any], f"{MANIFEST} of the {what}")
    if plain.get("format") != FORMAT:
        raise InputError(f"The {what} is no bundle of a study.")
    if plain.get("version") != VERSION:
        raise InputError(
            f"The {what} is of version {plain.get('version')!r}, but this program reads version "
            f"{VERSION}; 'pip install --upgrade phaze-opt' gets a newer one."
        )
    return from_json(document, Manifest, f"{MANIFEST} of the {what}")


def _check_members(manifest: Manifest, members: Mapping[str, bytes], what: str) -> None:
    """Compare the members with the manifest."""
    if members.keys() != manifest.members.keys():
        raise InputError(f"The {what} has other members than its {MANIFEST} lists.")
    for name, data in members.items():
        facts = manifest.members[name]
        if len(data) != facts.bytes or hashlib.sha256(data).hexdigest() != facts.sha256:
            raise InputError(f"The member {name!r} of the {what} was altered: its SHA-256 differs.")


def _digest(data: bytes) -> bytes:
    """Return the SHA-256 of all bytes as hexadecimal digits."""
    return hashlib.sha256(data).hexdigest().encode()
