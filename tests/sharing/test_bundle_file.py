"""The file of a bundle: what was packed comes back, and nothing else is taken."""

from __future__ import annotations

import hashlib
import io
import stat
import warnings
import zipfile
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import phaze_opt.sharing.bundle_file as bundle_file_module
from phaze_opt.errors import InputError
from phaze_opt.sharing.bundle_file import pack, unpack

NAMES = ("a.json", "b.jsonl", "deep/c.json")
MEMBERS = {"a.json": b'{"x": 1}', "b.jsonl": b"1\n2\n" * 50, "deep/c.json": b""}
FACTS = {"spec_hash": "0" * 64, "cost_model_version": "1"}
COMMENT = b"phaze-opt sha256 "


def is_allowed(name: str) -> bool:
    """Whether a name is one of this test's."""
    return name in NAMES


def packed(members: dict[str, bytes] = MEMBERS) -> bytes:
    """Return the bytes of a bundle of some members."""
    return pack(members, **FACTS)


def signed(change: Callable[[zipfile.ZipFile], None], base: bytes | None = None) -> bytes:
    """Return a zip that somebody made, with a checksum that is right."""
    stream = io.BytesIO(base or b"")
    with warnings.catch_warnings(), zipfile.ZipFile(stream, "a", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")  # that a name is there twice
        change(archive)
        archive.comment = COMMENT + b"0" * 64
    return resigned(stream.getvalue())


def resigned(data: bytes) -> bytes:
    """Return altered bytes with a checksum that is right."""
    return data[:-64] + hashlib.sha256(data[:-64]).hexdigest().encode()


@given(st.dictionaries(st.sampled_from(NAMES), st.binary(max_size=2000)))
@settings(deadline=None)
def test_what_was_packed_comes_back(members: dict[str, bytes]) -> None:
    """Bytes by name, whatever the order; equal members are equal bytes."""
    manifest, unpacked = unpack(packed(members), "bundle", is_allowed)
    assert unpacked == members
    assert manifest.spec_hash == FACTS["spec_hash"]
    assert packed(dict(reversed(members.items()))) == packed(members)


@given(st.data())
@settings(deadline=None, max_examples=150)
def test_no_altered_byte_goes_unnoticed(data: st.DataObject) -> None:
    """Wherever it is: in a member, in a name, in a date, in the checksum."""
    bundle = bytearray(packed())
    place = data.draw(st.integers(0, len(bundle) - 1))
    bundle[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(InputError):
        unpack(bytes(bundle), "bundle", is_allowed)


@given(st.integers(0, len(packed()) - 1))
@settings(deadline=None, max_examples=60)
def test_a_part_of_a_bundle_is_none(length: int) -> None:
    """A download that was cut, and a bundle with something behind it, are refused."""
    with pytest.raises(InputError):
        unpack(packed()[:length], "bundle", is_allowed)
    with pytest.raises(InputError):
        unpack(packed() + packed()[:length] + b"x", "bundle", is_allowed)


def link(archive: zipfile.ZipFile) -> None:
    """Add a symbolic link."""
    info = zipfile.ZipInfo("a.json", (1980, 1, 1, 0, 0, 0))
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    archive.writestr(info, "/etc/passwd")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda archive: archive.writestr("../a.json", "x"), "no bundle may have"),
        (lambda archive: archive.writestr("deep/../../a.json", "x"), "no bundle may have"),
        (lambda archive: archive.writestr("/etc/passwd", "x"), "no bundle may have"),
        (lambda archive: archive.writestr("C:\\a.json", "x"), "no bundle may have"),
        (lambda archive: archive.mkdir("deep"), "no bundle may have"),
        (lambda archive: archive.writestr("deep/", ""), "no bundle may have"),
        (link, "is a link"),
        (lambda archive: archive.writestr("a.json", "x", zipfile.ZIP_STORED), "packed in a way"),
        (lambda archive: archive.writestr("a.json", "x", zipfile.ZIP_LZMA), "packed in a way"),
        (lambda archive: archive.writestr("a.json", "x"), "has no manifest.json"),
        (lambda archive: [archive.writestr("a.json", "x") for _ in "12"], "two members"),
        (lambda archive: archive.writestr("manifest.json", "{}"), "is no bundle"),
    ],
)
def test_odd_members_are_refused(change: Callable[[zipfile.ZipFile], None], sentence: str) -> None:
    """Whoever makes a file with the right checksum still cannot put anything else in."""
    with pytest.raises(InputError, match=sentence):
        unpack(signed(change), "bundle", is_allowed)


def test_more_than_declared_is_refused() -> None:
    """A member that unpacks to more, or less, than its entry says is never unpacked further."""
    bundle = packed({"a.json": b"0" * 100_000})
    for size in (99_999, 100_001, 10):
        old, new = (100_000).to_bytes(4, "little"), size.to_bytes(4, "little")
        with pytest.raises(InputError, match=r"has not the .* bytes that it declares"):
            unpack(resigned(bundle.replace(old, new)), "bundle", is_allowed)


def test_bombs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What declares too much is refused before it is unpacked, and never written."""
    bundle = packed({"a.json": b"0" * 100_000})
    monkeypatch.setattr(bundle_file_module, "LARGEST_CONTENT_BYTES", 50_000)
    monkeypatch.setattr(bundle_file_module, "_contents", lambda *arguments: pytest.fail("unpacked"))
    with pytest.raises(InputError, match="declares 100,"):
        unpack(bundle, "bundle", is_allowed)
    with pytest.raises(InputError, match="a bundle holds up to"):
        packed({"a.json": b"0" * 100_000})
    monkeypatch.setattr(bundle_file_module, "LARGEST_FILE_BYTES", 100)
    with pytest.raises(InputError, match="larger than"):
        unpack(bundle, "bundle", is_allowed)


def test_members_that_share_bytes_are_refused() -> None:
    """Entries that point into one another unpack to much more than the file holds."""
    bundle = packed()
    entry = bundle.index(b"b.jsonl", bundle.index(b"PK\x01\x02")) - 4
    overlapping = bundle[:entry] + (0).to_bytes(4, "little") + bundle[entry + 4 :]
    with pytest.raises(InputError, match="one behind the other"):
        unpack(resigned(overlapping), "bundle", is_allowed)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (b'"version":1', b'"version":2', "pip install --upgrade"),
        (b'"phaze-opt study"', b'"another format!"', "is no bundle of a study"),
        (b'"bytes":8', b'"bytes":7', "SHA-256 differs"),
        (b'"a.json":', b'"d.json":', "other members"),
    ],
)
def test_the_manifest_decides(old: bytes, new: bytes, sentence: str) -> None:
    """A newer version, and a member that is not what the manifest says of it, are refused."""
    _, members = unpack(packed(), "bundle", is_allowed)
    with zipfile.ZipFile(io.BytesIO(packed())) as archive:
        manifest = archive.read("manifest.json")
    assert old in manifest

    def rebuild(archive: zipfile.ZipFile) -> None:
        for name, data in {"manifest.json": manifest.replace(old, new), **members}.items():
            archive.writestr(name, data)

    with pytest.raises(InputError, match=sentence):
        unpack(signed(rebuild), "bundle", is_allowed)
