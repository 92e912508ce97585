"""The stored programs, as Python sees them; the engine has the same functions."""

from collections.abc import Callable
from typing import Any, Literal, TypedDict

from torch_tpu.stored_programs import StoredTier

class _CacheSettings(TypedDict):
    memory_bytes: int
    machine_bytes: int
    persistent_bytes: int
    persistent_is_remote: bool
    is_signed: bool

# The other fields are there only when problem is empty, and content when it was asked for.
class StoredEntry(TypedDict):
    problem: str
    kind: Literal["program", "call"]
    scope: bytes
    material: bytes
    is_signed: bool
    content: bytes

class _PruneResult(TypedDict):
    entries_removed: int
    bytes_removed: int
    entries_kept: int
    bytes_kept: int
    leftovers_removed: int

def set_remote_stores(open: Callable[[str], Any]) -> None: ...  # noqa: A002
def leave_python() -> None: ...
def parse_bytes(name: str, text: str) -> int: ...
def cache_settings() -> _CacheSettings: ...
def cache_location(tier: StoredTier) -> str | None: ...
def cache_entries(tier: StoredTier) -> list[tuple[str, int, int]]: ...
def cache_entry(tier: StoredTier, name: str, with_content: bool = False) -> StoredEntry | None: ...
def cache_remove(tier: StoredTier, name: str) -> None: ...
def cache_verify(tier: StoredTier) -> dict[str, str]: ...
def cache_prune(tier: StoredTier, max_bytes: int) -> _PruneResult: ...
def cache_clear(tier: StoredTier) -> int: ...
def cache_import_archive(
    path: str, members: list[tuple[str, int, int]]
) -> tuple[int, dict[str, str]]: ...
def cache_flush(seconds: float) -> bool: ...
