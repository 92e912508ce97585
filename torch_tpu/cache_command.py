"""``python -m torch_tpu cache``: looks after the stored compiled programs.

Needs no device, and no torch, whose import would take most of the time.
"""

from __future__ import annotations

import argparse
import atexit
import json
import re
import struct
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from torch_tpu.stored_programs import (
    STORED_TIERS,
    StoredTier,
    clear,
    engine,
    export,
    import_archive,
    limit,
    location,
    usage,
)

if TYPE_CHECKING:
    from torch_tpu._cache import StoredEntry

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

_OPERATION = re.compile(rb"\bstablehlo\.(\w+)")
_RESULT = re.compile(rb"func\.func public @main\(.*?\) -> \(?(?:tensor<([^>]*)>)?", re.DOTALL)
_MODULE = re.compile(rb'module @("[^"]*"|\S+)')
# The operations that name a program best, where it has one of them.
_TELLING = ("custom_call", "convolution", "dot_general", "sort", "fft", "scatter", "gather")


# The time of an entry's last use is noted once an hour.
_LAST_USE_IS_LATE = 3600


class Entry(TypedDict):
    """One row of the list."""

    name: str
    tier: StoredTier
    size: int
    last_used: int
    """Seconds since 1970."""
    kind: str
    """Empty when the entry was not read, or has a problem."""
    program: str
    platform: str
    problem: str


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    cache = commands.add_parser(
        "cache",
        help="look after the compiled programs that are kept on this machine and beyond",
        description="Looks after the compiled programs that are kept. The same variables choose "
        "them as in a program: TORCH_TPU_TIER2_COMPILATION_CACHE (the machine's shared memory), "
        "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT (the persistent folder or URL) and "
        "TORCH_TPU_CACHE_HMAC_KEY_FILE.",
        epilog="Exit status: 0 done, 1 unusable entries were found, 2 it could not be done.",
    )
    actions = cache.add_subparsers(title="actions", metavar="ACTION", required=True)

    def action(
        name: str, run: Callable[[argparse.Namespace], int], text: str, *, tiers: bool = True
    ) -> argparse.ArgumentParser:
        parser = actions.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        parser.set_defaults(run=lambda options: _run(run, options))
        parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
        if tiers:
            parser.add_argument(
                "--tier", choices=("machine", "persistent", "all"), default="all",
                help="which tier (default: all)",
            )  # fmt: skip
        return parser

    action("path", _path, "show where each tier keeps its entries")
    action("stats", _stats, "count the entries and bytes of each tier, by kind and platform")

    listing = action("list", _list, "list the entries, those in both tiers once for each")
    listing.add_argument(
        "--sort", choices=("name", "kind", "program", "size", "age"), default="age",
        help="order; size: the largest first, age: the latest first (default: age)",
    )  # fmt: skip
    listing.add_argument("--limit", type=_count, metavar="N", help="show the first N only")
    listing.add_argument(
        "--brief", action="store_true",
        help="do not read the entries (for big or remote tiers): without kind, program, platform",
    )  # fmt: skip
    _add_selection(listing)

    verify = action("verify", _verify, "check every entry")
    verify.add_argument("--delete", action="store_true", help="remove the unusable ones")

    prune = action(
        "prune", _prune, "remove old entries and what dead writers left, to the configured size"
    )
    prune.add_argument(
        "--max-size", type=_size, metavar="SIZE",
        help="leave at most this much in each tier: 500M, 2G (default: the tier's own limit)",
    )  # fmt: skip
    prune.add_argument(
        "--older-than", type=_duration, metavar="AGE",
        help="remove what was not used for this long: 12h, 30d",
    )  # fmt: skip
    prune.add_argument("--dry-run", action="store_true", help="only say what would be removed")

    clearing = action("clear", _clear, "remove all entries")
    clearing.add_argument("--yes", "-y", action="store_true", help="do not ask")

    exporting = action(
        "export", _export, "write entries to one file, to preload or import: all, or those selected"
    )
    exporting.add_argument("file")
    _add_selection(exporting)
    import_ = action(
        "import", _import, "add the entries of an exported file to every tier", tiers=False
    )
    import_.add_argument("file")


def _add_selection(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "which entries",
        "With several, those for which all hold. To have exactly what a job needs, run it with "
        "tiers of its own (the variables above).",
    )
    group.add_argument(
        "--since", type=_duration, metavar="AGE",
        help="used within this time: 2h, 7d; the time of use is noted once an hour, so those of up "
        "to an hour before are taken too",
    )  # fmt: skip
    group.add_argument(
        "--match",
        metavar="TEXT",
        help="with this in the column 'program' of the list: the operator of a call, or the "
        "telling operation, number of operations and result of a program",
    )
    group.add_argument(
        "--kind", choices=("program", "call"),
        help="executables, or how an operator's call is computed",
    )  # fmt: skip
    group.add_argument("--platform", metavar="NAME", help="compiled for this one: tpu, cpu")


# --- Actions.


def _run(action: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    if "torch_tpu._C" not in sys.modules:  # else the process has seen to it
        from torch_tpu import remote_cache

        engine.set_remote_stores(remote_cache.RemoteStore)
        atexit.register(engine.leave_python)
    return action(options)


def _path(options: argparse.Namespace) -> int:
    paths = {tier: location(tier) for tier in _tiers(options)}
    if options.json:
        return _print_json(paths)
    for tier, path in paths.items():
        print(f"{tier:<11} {path or 'off'}")
    return 0


def _stats(options: argparse.Namespace) -> int:
    result: dict[str, Any] = {}
    for tier in _tiers(options):
        if location(tier) is None or _is_remote(tier):
            result[tier] = {**usage(tier), "groups": []}
            continue
        groups: dict[tuple[str, str], list[int]] = {}
        entries = list(map(_read, _entries([tier])))
        for entry in filter(None, entries):
            key = (entry["kind"] or f"unusable: {entry['problem']}", entry["platform"])
            groups.setdefault(key, []).append(entry["size"])
        result[tier] = {
            "location": location(tier),
            "entries": sum(map(len, groups.values())),
            "bytes": sum(map(sum, groups.values())),
            "limit": limit(tier),
            "groups": [
                {"kind": kind, "platform": platform, "entries": len(sizes), "bytes": sum(sizes)}
                for (kind, platform), sizes in sorted(groups.items())
            ],
        }
    if options.json:
        return _print_json(result)
    rows: list[tuple[str, ...]] = []
    for tier_name, held in result.items():
        most = _human_size(held["limit"]) if held["limit"] else "none"
        total = f"{held['entries']:,}", _human_size(held["bytes"])
        rows.append((tier_name, "", "", *total, most, held["location"] or "off"))
        for group in held["groups"]:
            size = _human_size(group["bytes"])
            rows.append(("", group["kind"], group["platform"], f"{group['entries']:,}", size))
    _print_table(("tier", "kind", "platform", "#entries", "#size", "#limit", "location"), rows)
    return 0


def _list(options: argparse.Namespace) -> int:
    selection = Selection.of(options)
    if options.brief and selection.needs_content:
        raise ValueError(
            "cache list: --match, --kind and --platform read the entries; drop --brief"
        )
    entries = [e for e in _entries(_tiers(options)) if selection.is_recent(e["last_used"])]
    read_all = not options.brief and (
        selection.needs_content or options.sort in ("kind", "program")
    )
    if read_all:
        entries = [e for e in map(_read, entries) if e is not None and selection.fits(e)]
    key: Callable[[Entry], Any] = {
        "name": lambda e: e["name"],
        "kind": lambda e: (e["kind"], e["program"], e["name"]),
        "program": lambda e: (e["program"], e["name"]),
        "size": lambda e: (-e["size"], e["name"]),
        "age": lambda e: (-e["last_used"], e["name"]),
    }[options.sort]
    entries.sort(key=key)
    shown = entries[: options.limit]
    if not options.brief and not read_all:
        shown = [e for e in map(_read, shown) if e is not None]
    if options.json:
        return _print_json(shown)
    now = time.time()
    _print_table(
        ("name", "kind", "program", "platform", "#size", "#age", "tier"),
        [
            (
                e["name"][:12],
                e["kind"],
                e["program"] or (f"unusable: {e['problem']}" if e["problem"] else ""),
                e["platform"],
                _human_size(e["size"]),
                _human_age(now - e["last_used"]) if e["last_used"] else "",
                e["tier"],
            )
            for e in shown
        ],
    )
    total = f"{len(entries):,} entries, {_human_size(sum(e['size'] for e in entries))}"
    distinct = len({e["name"] for e in entries})
    if distinct < len(entries):
        total += f"; {distinct:,} different ones: what is in both tiers is listed for each"
    print(total if len(shown) == len(entries) else f"{len(shown):,} of {total}")
    return 0


def _verify(options: argparse.Namespace) -> int:
    rows, checked = [], 0
    for tier in _tiers(options, only_used=True):
        names = [name for name, _, _ in engine.cache_entries(tier)]
        checked += len(names)
        for name, problem in engine.cache_verify(tier).items():
            if options.delete:
                engine.cache_remove(tier, name)
            rows.append({"name": name, "tier": tier, "problem": problem})
    if options.json:
        _print_json({"checked": checked, "unusable": rows, "deleted": options.delete})
    else:
        if rows:
            _print_table(
                ("name", "tier", "problem"),
                [(row["name"][:12], row["tier"], row["problem"]) for row in rows],
            )
        removed = ", removed" if rows and options.delete else ""
        print(f"{checked:,} entries checked, {len(rows):,} unusable{removed}")
    return 1 if rows else 0


def _prune(options: argparse.Namespace) -> int:
    now = time.time()
    result = {}
    for tier in _tiers(options, only_used=True):
        entries = sorted(engine.cache_entries(tier), key=lambda entry: (entry[2], entry[0]))
        total = sum(size for _, size, _ in entries)
        most = options.max_size
        if most is None and options.older_than is None:
            most = limit(tier) or None
        removed = freed = 0
        for name, size, last_used in entries:
            too_old = options.older_than is not None and now - last_used > options.older_than
            if not too_old and (most is None or total - freed <= most):
                continue
            if not options.dry_run:
                engine.cache_remove(tier, name)
            removed += 1
            freed += size
        leftovers = 0 if options.dry_run else engine.cache_prune(tier, 0)["leftovers_removed"]
        result[tier] = {
            "entries_removed": removed,
            "bytes_removed": freed,
            "entries_kept": len(entries) - removed,
            "bytes_kept": total - freed,
            "leftovers_removed": leftovers,
        }
    if options.json:
        return _print_json({"dry_run": options.dry_run, **result})
    for tier, counts in result.items():
        print(
            f"{tier:<11} {'would remove' if options.dry_run else 'removed'} "
            f"{counts['entries_removed']:,} entries ({_human_size(counts['bytes_removed'])}), "
            f"{counts['entries_kept']:,} ({_human_size(counts['bytes_kept'])}) stay"
        )
    return 0


def _clear(options: argparse.Namespace) -> int:
    tiers = _tiers(options, only_used=True)
    if not options.yes:
        if not sys.stdin.isatty():
            raise ValueError("cache clear: nobody is there to be asked; say --yes")
        for tier in tiers:
            held = usage(tier)
            size = _human_size(held["bytes"])
            print(f"{tier:<11} {held['entries']:,} entries, {size}, in {held['location']}")
        if input("Remove them all? [y/N] ").strip().lower() not in ("y", "yes"):
            print("nothing was removed")
            return 0
    removed = {tier: clear(tier) for tier in tiers}
    if options.json:
        return _print_json({"removed": removed})
    for tier, count in removed.items():
        print(f"{tier:<11} removed {count:,} entries")
    return 0


def _export(options: argparse.Namespace) -> int:
    selection = Selection.of(options)
    count = export(
        options.file,
        tiers=_tiers(options),
        recent=selection.is_recent,
        fits=lambda entry: selection.fits(_described(entry)),
    )
    if options.json:
        return _print_json({"file": options.file, "entries": count})
    print(f"{options.file}: {count:,} entries")
    return 0


def _import(options: argparse.Namespace) -> int:
    count, problems = import_archive(options.file)
    if options.json:
        _print_json({"file": options.file, "entries": count, "unusable": problems})
    else:
        if problems:
            _print_table(
                ("name", "problem"), [(name[:12], problem) for name, problem in problems.items()]
            )
        print(f"{count:,} entries imported, {len(problems):,} unusable")
    return 1 if problems else 0


# --- What entries are.


def describe(kind: str, material: bytes) -> str:
    """What an entry was made from, in a few words."""
    if kind == "call":
        return material.partition(b"\n")[0].decode(errors="replace")
    if len(material) < 8:
        return ""
    (options_size,) = struct.unpack_from("<Q", material)
    text = material[8 + options_size :]
    operations = [operation.decode() for operation in _OPERATION.findall(text)]
    module = _MODULE.match(text)
    name = module[1].decode(errors="replace").strip('"') if module else ""
    if name in ("", "torch_tpu"):
        computing = [op for op in operations if op != "constant"] or operations or ["nothing"]
        name = next((op for op in _TELLING if op in computing), computing[0])
    result = _RESULT.search(text)
    shape = f" -> {result[1].decode()}" if result and result[1] else ""
    ops = "1 op" if len(operations) == 1 else f"{len(operations):,} ops"
    return f"{name} ({ops}){shape}"


class Description(TypedDict):
    """What an entry says of itself."""

    kind: str
    program: str
    platform: str


def _described(entry: StoredEntry) -> Description:
    return {
        "kind": entry["kind"],
        "program": describe(entry["kind"], entry["material"]),
        "platform": _field(entry["scope"], "platform"),
    }


@dataclass(frozen=True)
class Selection:
    """The conditions that an entry is to meet; None: any."""

    used_after: float | None
    match: str | None
    kind: str | None
    platform: str | None

    @classmethod
    def of(cls, options: argparse.Namespace) -> Selection:
        """Those of the command line."""
        after = None if options.since is None else time.time() - options.since - _LAST_USE_IS_LATE
        return cls(after, options.match, options.kind, options.platform)

    @property
    def needs_content(self) -> bool:
        """Whether entries must be read."""
        return (self.match, self.kind, self.platform) != (None, None, None)

    def is_recent(self, last_used: int) -> bool:
        """The condition on an entry that was not read."""
        return self.used_after is None or last_used >= self.used_after

    def fits(self, entry: Description | Entry) -> bool:
        """The others."""
        return (
            (self.match is None or self.match in entry["program"])
            and self.kind in (None, entry["kind"])
            and self.platform in (None, entry["platform"])
        )


def _entries(tiers: Iterable[StoredTier]) -> list[Entry]:
    """The entries, unread."""
    return [
        {
            "name": name, "tier": tier, "size": size, "last_used": last_used,
            "kind": "", "program": "", "platform": "", "problem": "",
        }
        for tier in tiers
        if location(tier)
        for name, size, last_used in engine.cache_entries(tier)
    ]  # fmt: skip


def _read(row: Entry) -> Entry | None:
    """The entry with what it holds; None when it was removed in the meantime."""
    entry = engine.cache_entry(row["tier"], row["name"])
    if entry is None:
        return None
    if entry["problem"]:
        return {**row, "problem": entry["problem"]}
    return {**row, **_described(entry)}


def _field(scope: bytes, name: str) -> str:
    for line in scope.decode(errors="replace").splitlines():
        key, _, value = line.partition(": ")
        if key == name:
            return value
    return ""


def _tiers(options: argparse.Namespace, *, only_used: bool = False) -> list[StoredTier]:
    tiers = [tier for tier in STORED_TIERS if options.tier in ("all", tier)]
    if only_used:
        tiers = [tier for tier in tiers if location(tier)]
        if not tiers and options.tier != "all":
            raise ValueError(f"cache: the {options.tier} tier is off")
    return tiers


def _is_remote(tier: StoredTier) -> bool:
    return tier == "persistent" and engine.cache_settings()["persistent_is_remote"]


# --- Arguments and output.


def _size(text: str) -> int:
    try:
        return engine.parse_bytes("SIZE", text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("SIZE: ")) from None


def _duration(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    if not match:
        raise argparse.ArgumentTypeError(f"expected an age such as 12h or 30d, got {text!r}")
    return float(match[1]) * _SECONDS[match[2]]


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}")
    return int(text)


def _human_size(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _human_age(seconds: float) -> str:
    for most, unit, text in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < most:
            return f"{max(seconds, 0) / unit:.0f} {text}"
    return f"{seconds / 86400:.0f} d"


def _print_json(value: Any) -> int:
    json.dump(value, sys.stdout, indent=2)
    print()
    return 0


def _print_table(columns: Iterable[str], rows: Iterable[tuple[str, ...]]) -> None:
    """A column whose title begins with # holds numbers."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in columns:
        table.add_column(
            title.removeprefix("#"),
            justify="right" if title.startswith("#") else "left",
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    # Without a terminal there is no width to keep to.
    Console(width=None if sys.stdout.isatty() else 200).print(table)
