"""The module ``torch.tpu.compilation_cache``: what the cache of compiled programs did and holds.

A program is looked for in the process's memory, in files given to :func:`preload`, in the
machine's shared memory, and in the persistent folder or bucket: see docs/compilation_cache.md.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, TypeAlias, TypedDict

from torch_tpu import _C, stored_programs
from torch_tpu.stored_programs import STORED_TIERS, StoredTier, TierUsage, read_members

Tier: TypeAlias = Literal["process", "machine", "persistent"]


class TierStats(TypedDict):
    """What one tier outside of the process's memory did."""

    hits: int
    """Lookups that it answered."""
    stores: int
    """Entries that this process put there."""
    bytes_read: int
    bytes_written: int
    read_seconds: float


class ProcessStats(TypedDict):
    """What the process's memory did."""

    hits: int
    """Calls whose program was known."""
    programs: int
    """Signatures in memory now."""


class CacheStats(TypedDict):
    """Counters since the start of the process."""

    requests: int
    """Lookups: the hits of all tiers and the misses. A call that the process does not know looks
    for two entries, one that says how it is computed and the program."""
    process: ProcessStats
    archive: TierStats
    """Files given to :func:`preload`."""
    machine: TierStats
    persistent: TierStats
    misses: dict[str, int]
    """Lookups that no tier could answer, by reason: ``absent``, or what was wrong."""
    loads: int
    """Programs that came from a tier instead of the compiler."""
    load_seconds: float
    """Time the plugin took to load them."""
    compiles: int
    compile_seconds: float
    waits: int
    """Times that another process was already compiling what was looked for."""
    wait_seconds: float
    late_hits: int
    """Entries of a slow tier that came after the program was being compiled; not in requests."""
    dropped_entries: int
    """Unusable entries that were found."""
    refused_entries: int
    """Entries that the plugin could not load."""
    dropped_stores: int
    """Entries not written because too many were waiting to be."""


def stats() -> CacheStats:
    """Counters of lookups, hits, misses, compiles and bytes."""
    process = _C.statistics()
    cache = _C.cache_statistics()
    return {
        "requests": process["cache_hits"] + cache["finds"],
        "process": {"hits": process["cache_hits"], "programs": _C.program_count()},
        "archive": cache["tiers"]["archive"],
        "machine": cache["tiers"]["machine"],
        "persistent": cache["tiers"]["persistent"],
        "misses": cache["misses"],
        "loads": process["loads"],
        "load_seconds": process["load_seconds"],
        "compiles": process["compiles"],
        "compile_seconds": process["compile_seconds"],
        "waits": cache["waits"],
        "wait_seconds": cache["wait_seconds"],
        "late_hits": cache["late_hits"],
        "dropped_entries": cache["dropped_entries"],
        "refused_entries": cache["refused_entries"],
        "dropped_stores": cache["dropped_stores"],
    }


class ProgramRecord(TypedDict):
    """A program that this process compiled or loaded."""

    what: str
    """The operation and its signature."""
    compiled: bool
    """False: loaded from a tier."""
    seconds: float
    """That this took."""
    when: datetime
    """Local time."""


def programs() -> list[ProgramRecord]:
    """The programs this process compiled or loaded, in order: tells what keeps compiling.

    At most the latest 10,000.
    """
    return [
        {
            "what": what,
            "compiled": compiled,
            "seconds": seconds,
            "when": datetime.fromtimestamp(when),
        }
        for what, compiled, seconds, when in _C.program_history()
    ]


def usage(tier: StoredTier) -> TierUsage:
    """What a tier holds. Lists it: this takes a while for a big folder or a remote one."""
    return stored_programs.usage(tier)


def path(tier: StoredTier = "persistent") -> str | None:
    """The folder or URL in which a tier keeps its entries; None when it is off."""
    return stored_programs.location(tier)


def clear(tier: Tier | Literal["all"] = "all") -> int:
    """Forget compiled programs; returns how many entries were removed outside of memory.

    Clearing a shared tier clears it for everybody. Files given to :func:`preload` stay in use.
    """
    if tier not in ("all", "process", *STORED_TIERS):
        raise ValueError(
            f"clear: expected 'all', 'process', 'machine' or 'persistent', got {tier!r}"
        )
    _C.cache_flush(60.0)
    removed = 0
    for stored in STORED_TIERS:
        if tier in ("all", stored):
            removed += stored_programs.clear(stored)
    if tier in ("all", "process"):
        _C.clear_programs()
    return removed


def export(path: str | os.PathLike[str], *, everything: bool = False) -> int:
    """Write the stored entries to one file, for :func:`preload`; returns how many.

    The entries are those made by this environment (versions, plugin, kind of device), which starts
    the device to know it; with `everything`, all. The file appears whole or not at all, readable by
    its owner alone. Entries that are unusable, or not signed as they should be, are left out.
    """
    if everything:
        return stored_programs.export(path)
    scopes = _C.cache_scopes()
    return stored_programs.export(path, fits=lambda entry: entry["scope"] == scopes[entry["kind"]])


def preload(path: str | os.PathLike[str]) -> int:
    """Let programs come from a file that :func:`export` wrote; returns how many fit this process.

    The file is read in place and has to stay. An executable is code: a file that others could have
    written is refused, unless a key is configured with which its entries are signed. Starts the
    device, to know what fits it.
    """
    usable, problems = _C.cache_add_archive(os.fspath(path), read_members(path))
    if problems:
        import logging

        name, problem = next(iter(problems.items()))
        logging.getLogger("torch_tpu.cache").warning(
            "%s: %d entries are unusable, the first (%s...): %s",
            os.fspath(path), len(problems), name[:12], problem,
        )  # fmt: skip
    return usable


@dataclass(frozen=True)
class _ProgramStats:
    """One program, counted once: when it was made."""

    name: str
    read_count: int
    compilation_duration: timedelta
    """Zero when it was loaded."""
    last_read: datetime


@dataclass(frozen=True)
class _CacheCounters:
    num_cache_reqs: int
    num_cache_hits: int
    per_entry_stats: list[_ProgramStats]


def _get_cache_stats() -> _CacheCounters:
    """What vLLM reads, under the names it expects. Other code has :func:`stats` and more."""
    now = stats()
    return _CacheCounters(
        num_cache_reqs=now["requests"],
        num_cache_hits=now["requests"] - sum(now["misses"].values()),
        per_entry_stats=[
            _ProgramStats(
                name=record["what"],
                read_count=1,
                compilation_duration=timedelta(
                    seconds=record["seconds"] if record["compiled"] else 0
                ),
                last_read=record["when"],
            )
            for record in programs()
        ],
    )
