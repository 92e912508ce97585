"""The programs that are kept outside of the process: their places, and files of them.

What `torch.tpu.compilation_cache` and the command line have in common. Needs neither torch nor a
device.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import zipfile
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, TypeAlias, TypedDict

from torch_tpu import __version__
from torch_tpu.replaced_file import replacing

if TYPE_CHECKING:
    from torch_tpu import _cache as engine
    from torch_tpu._cache import StoredEntry
elif "torch_tpu._C" in sys.modules:  # the process's own cache
    from torch_tpu import _C as engine  # noqa: N811
else:
    from torch_tpu import _cache as engine

StoredTier: TypeAlias = Literal["machine", "persistent"]

STORED_TIERS: tuple[StoredTier, ...] = ("machine", "persistent")

_MANIFEST = "manifest.json"
# Bytes of a zip file's local header before the member's name: its last two fields are the lengths
# of the name and of the extra field.
_LOCAL_HEADER = struct.Struct("<4s22xHH")


class TierUsage(TypedDict):
    """What a tier holds."""

    location: str | None
    """A folder or a URL; None when the tier is off."""
    entries: int
    bytes: int
    limit: int
    """Beyond this many bytes the least recently used entries are removed; 0: no limit."""


def location(tier: StoredTier) -> str | None:
    """The folder or URL in which a tier keeps its entries; None when it is off."""
    return engine.cache_location(tier)


def limit(tier: StoredTier) -> int:
    """The bytes that a tier may hold; 0: no limit."""
    settings = engine.cache_settings()
    return settings["machine_bytes" if tier == "machine" else "persistent_bytes"]


def usage(tier: StoredTier) -> TierUsage:
    """What a tier holds. Lists it: this takes a while for a big folder or a remote one."""
    place = location(tier)
    entries = engine.cache_entries(tier) if place else []
    return {
        "location": place,
        "entries": len(entries),
        "bytes": sum(size for _, size, _ in entries),
        "limit": limit(tier),
    }


def clear(tier: StoredTier) -> int:
    """Remove a tier's entries; returns how many there were."""
    return engine.cache_clear(tier) if location(tier) else 0


def export(
    path: str | os.PathLike[str],
    *,
    tiers: Iterable[StoredTier] = STORED_TIERS,
    recent: Callable[[int], bool] = lambda last_used: True,
    fits: Callable[[StoredEntry], bool] = lambda entry: True,
) -> int:
    """Write entries to one file, those for which both conditions hold; returns how many.

    The file appears whole or not at all, readable by its owner alone. Entries that are unusable, or
    not signed as they should be, are left out.
    """
    used = [tier for tier in tiers if engine.cache_location(tier)]
    if not used:
        raise ValueError(
            "export: there is nothing to export, because these tiers are off: "
            f"{', '.join(tiers)}; unset TORCH_TPU_TIER2_COMPILATION_CACHE or "
            "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT"
        )
    engine.cache_flush(60.0)
    places: dict[str, list[StoredTier]] = {}
    wanted: set[str] = set()
    for tier in used:
        for name, _, last_used in engine.cache_entries(tier):
            places.setdefault(name, []).append(tier)
            if recent(last_used):
                wanted.add(name)
    with replacing(Path(path), 0o600) as file:
        count = _write_archive(file, {name: places[name] for name in sorted(wanted)}, fits)
        file.flush()
        os.fsync(file.fileno())
    return count


def _write_archive(
    file: BinaryIO, places: dict[str, list[StoredTier]], fits: Callable[[StoredEntry], bool]
) -> int:
    count = 0
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, tiers in places.items():
            for tier in tiers:
                entry = engine.cache_entry(tier, name, with_content=True)
                if entry is not None and not entry["problem"]:
                    if fits(entry):
                        archive.writestr(zipfile.ZipInfo(name), entry["content"])
                        count += 1
                    break
        manifest = {
            "format": "torch_tpu compilation cache",
            "torch_tpu": __version__,
            "torch": metadata.version("torch"),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "entries": count,
        }
        archive.writestr(zipfile.ZipInfo(_MANIFEST), json.dumps(manifest, indent=2) + "\n")
    return count


def import_archive(path: str | os.PathLike[str]) -> tuple[int, dict[str, str]]:
    """Copy the entries of a file that :func:`export` wrote to the machine and persistent tiers.

    Returns how many, and by name what was wrong with the others.
    """
    result = engine.cache_import_archive(os.fspath(path), read_members(path))
    engine.cache_flush(600.0)
    return result


def read_members(path: str | os.PathLike[str]) -> list[tuple[str, int, int]]:
    """Name, offset and size of the entries in a file that :func:`export` wrote."""
    try:
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
            if _MANIFEST not in archive.namelist():
                raise ValueError("it has no manifest")
            return [_member(file, info) for info in infos if info.filename != _MANIFEST]
    except (zipfile.BadZipFile, ValueError, struct.error) as error:
        raise ValueError(
            f"{os.fspath(path)}: expected a file written by torch.tpu.compilation_cache.export, "
            f"got something else: {error}"
        ) from error


def _member(file: BinaryIO, info: zipfile.ZipInfo) -> tuple[str, int, int]:
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        raise ValueError(f"{info.filename} is compressed")
    file.seek(info.header_offset)
    magic, name_size, extra_size = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    if magic != b"PK\3\4":
        raise ValueError(f"{info.filename} is not where the directory says")
    offset = info.header_offset + _LOCAL_HEADER.size + name_size + extra_size
    return info.filename, offset, info.file_size


__all__ = [
    "STORED_TIERS",
    "StoredTier",
    "TierUsage",
    "clear",
    "engine",
    "export",
    "import_archive",
    "limit",
    "location",
    "read_members",
    "usage",
]
