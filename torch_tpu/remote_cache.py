"""Compiled programs in a bucket or on another remote filesystem, through fsspec.

The engine asks for one operation at a time (:meth:`RemoteStore.start`) and is answered from a
daemon thread. So no thread of the engine is ever inside Python for long, which it must not be when
the interpreter ends, and a remote that hangs holds up nobody but its own threads.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import queue
import threading
import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal, TypeAlias

Operation: TypeAlias = Literal["get", "put", "remove", "list"]

Answer: TypeAlias = Callable[[str, str, Any], None]
"""Takes the kind of problem (:func:`_problem_of`; empty: none), its text, and the result."""

# The engine reads with four threads and writes with one.
_NUM_THREADS = 6
_FLUSH_SECONDS = 5.0

# One put of these is atomic. Elsewhere a reader may see a file that is still being written, so it
# is written under another name and moved.
_OBJECT_STORES = {
    "abfs", "abfss", "az", "gcs", "gs", "memory", "oci", "oss", "s3", "s3a", "tos",
}  # fmt: skip

# The packages that fsspec's own messages do not name as pip does.
_PACKAGES = {
    "abfs": "adlfs", "abfss": "adlfs", "adl": "adlfs", "az": "adlfs", "gcs": "gcsfs",
    "gs": "gcsfs", "hdfs": "pyarrow", "s3": "s3fs", "s3a": "s3fs", "sftp": "paramiko",
    "ssh": "paramiko",
}  # fmt: skip


class RemoteStore:
    """The entries below one URL. The filesystem is opened by the first operation."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._lock = threading.Lock()  # never held by one who waits
        self._opening = threading.Lock()
        self._jobs: queue.SimpleQueue[tuple[Operation, tuple[Any, ...], Answer]] | None = None
        self._filesystem: Any = None
        self._root = ""
        self._pid = 0

    def start(self, operation: Operation, arguments: tuple[Any, ...], answer: Answer) -> None:
        """Let a thread do `operation` and call `answer`. Returns at once."""
        with self._lock:
            if self._jobs is None or self._pid != os.getpid():
                # Neither threads nor connections survive a fork.
                self._jobs = queue.SimpleQueue()
                self._pid = os.getpid()
                self._opening = threading.Lock()
                self._filesystem = None
                for i in range(_NUM_THREADS):
                    threading.Thread(
                        target=self._work,
                        args=(self._jobs,),
                        name=f"torch_tpu_remote_cache_{i}",
                        daemon=True,
                    ).start()
                _flush_before_executors_end()
            jobs = self._jobs
        jobs.put((operation, arguments, answer))

    def get(self, name: str) -> bytes | None:
        """The bytes of an entry; None when there is none."""
        filesystem, root = self._open()
        try:
            return bytes(filesystem.cat_file(f"{root}/{name}"))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def put(self, name: str, content: bytes) -> None:
        """Publish an entry, in place of one that is there: it may be damaged or not signed."""
        filesystem, root = self._open()
        path = f"{root}/{name}"
        if _is_object_store(filesystem):
            filesystem.pipe_file(path, content)
            return
        filesystem.makedirs(root, exist_ok=True)
        temporary = f"{root}/.{uuid.uuid4().hex}.tmp"
        try:
            filesystem.pipe_file(temporary, content)
            filesystem.mv(temporary, path)
        except BaseException:
            with contextlib.suppress(Exception):  # what matters is why the write failed
                filesystem.rm_file(temporary)
            raise

    def remove(self, name: str) -> None:
        """Remove an entry. It may be gone already."""
        filesystem, root = self._open()
        with contextlib.suppress(FileNotFoundError):
            filesystem.rm_file(f"{root}/{name}")

    def list(self) -> list[tuple[str, int, float]]:
        """Name, size and time of every entry; the time is 0 where the filesystem has none."""
        filesystem, root = self._open()
        filesystem.invalidate_cache()
        try:
            found = filesystem.ls(root, detail=True)
        except FileNotFoundError:
            return []
        return [
            (posixpath.basename(info["name"]), int(info.get("size") or 0), _time_of(info))
            for info in found
            if info.get("type") == "file"
        ]

    def _open(self) -> tuple[Any, str]:
        with self._opening:
            if self._filesystem is None:
                protocol = self.url.partition("://")[0]
                try:
                    from fsspec.core import url_to_fs

                    self._filesystem, root = url_to_fs(self.url)
                except ImportError as error:
                    package = _PACKAGES.get(protocol)
                    hint = f"pip install {package}" if package else str(error)
                    raise ImportError(f"{protocol}:// needs another package: {hint}") from error
                self._root = root.rstrip("/")
            return self._filesystem, self._root

    def _work(self, jobs: queue.SimpleQueue[tuple[Operation, tuple[Any, ...], Answer]]) -> None:
        while True:
            operation, arguments, answer = jobs.get()
            try:
                result = getattr(self, operation)(*arguments)
            except BaseException as error:
                answer(_problem_of(error), f"{type(error).__name__}: {error}".rstrip(": "), None)
            else:
                answer("", "", result)


def _flush_before_executors_end() -> None:
    """At the end of the process, write what waits to be written while all of Python still works.

    Many filesystems use executors, which take no work from the time on when Python waits for its
    threads; that is before anything registered with atexit.
    """
    import concurrent.futures.thread  # noqa: F401 - what is registered later runs earlier

    from torch_tpu.stored_programs import engine

    with contextlib.suppress(AttributeError, RuntimeError):  # a private function, or too late
        threading._register_atexit(engine.cache_flush, _FLUSH_SECONDS)  # type: ignore[attr-defined]


def _is_object_store(filesystem: Any) -> bool:
    protocols = filesystem.protocol
    if isinstance(protocols, str):
        protocols = (protocols,)
    return not _OBJECT_STORES.isdisjoint(protocols)


def _problem_of(error: BaseException) -> str:
    """As the engine names it; "unreachable" is what may pass."""
    if isinstance(error, ImportError | ValueError | TypeError | NotImplementedError):
        return "broken"
    if isinstance(error, PermissionError):
        return "no permission"
    if isinstance(error, OSError):
        if error.errno == errno.EROFS:
            return "read-only"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return "full"
    return "unreachable"


def _time_of(info: dict[str, Any]) -> float:
    for key in ("mtime", "LastModified", "last_modified", "updated", "created"):
        value = info.get(key)
        if isinstance(value, int | float):
            return float(value)
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value)
            except ValueError:
                continue
        if isinstance(value, datetime):
            return value.timestamp()
    return 0.0
