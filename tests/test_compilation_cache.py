"""The tiers of compiled programs, as a user meets them: torch.tpu.compilation_cache."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import stat
import textwrap
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import subprocess_python

WORK = """
import json, torch
x = torch.arange(12.0, device="tpu").view(3, 4)
y = (x.sin() @ x.T).relu().sum(1)
# The device's default precision: bfloat16 products.
assert torch.allclose(y.cpu(), (x.cpu().sin() @ x.cpu().T).relu().sum(1), rtol=0.02, atol=0.05)
"""
REPORT = """
print(json.dumps(torch.tpu.compilation_cache.stats()))
"""


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Variables for empty tiers of one's own."""
    name = f"test-{uuid.uuid4().hex}"
    yield {
        "TORCH_TPU_TIER2_COMPILATION_CACHE": name,
        "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT": str(tmp_path / "persistent"),
        "TORCH_TPU_CACHE_HMAC_KEY_FILE": "",
    }
    shutil.rmtree(machine_folder(name), ignore_errors=True)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text("a key of more than sixteen bytes\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the programs of WORK. Not to be changed."""
    folder = tmp_path_factory.mktemp("exported")
    environment: dict[str, Any] = {
        "TORCH_TPU_TIER2_COMPILATION_CACHE": "disabled",
        "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT": str(folder / "persistent"),
        "TORCH_TPU_CACHE_HMAC_KEY_FILE": "",
    }
    path = folder / "programs.zip"
    subprocess_python.run_quietly(WORK + export_code(path), **environment)
    return path


@pytest.fixture
def nowhere(tmp_path: Path) -> dict[str, Any]:
    """Variables for a machine that keeps nothing."""
    return {
        "TORCH_TPU_TIER2_COMPILATION_CACHE": "disabled",
        "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT": "disabled",
        "TORCH_TPU_CACHE_HMAC_KEY_FILE": "",
    }


def machine_folder(name: str) -> Path:
    return Path(f"/dev/shm/torch_tpu-{os.geteuid()}") / name


def run_stats(code: str, **environment: Any) -> dict[str, Any]:
    """The statistics of a process that runs `code` and has nothing to complain about."""
    stats: dict[str, Any] = json.loads(subprocess_python.run_quietly(code, **environment))
    return stats


def lines_of(code: str, **environment: Any) -> list[str]:
    """What a process that runs `code` writes to stderr."""
    return subprocess_python.outputs(code, **environment)[1].splitlines()


def check_sums(stats: dict[str, Any]) -> None:
    hits = sum(stats[tier]["hits"] for tier in ("process", "archive", "machine", "persistent"))
    assert stats["requests"] == hits + sum(stats["misses"].values())


def test_statistics_follow_the_tiers(tiers: dict[str, Any], tmp_path: Path) -> None:
    cold = run_stats(WORK + REPORT, **tiers)
    check_sums(cold)
    assert cold["compiles"] > 0 and cold["loads"] == 0 and cold["compile_seconds"] > 0
    assert list(cold["misses"]) == ["absent"]
    assert cold["machine"]["stores"] > 0 and cold["machine"]["bytes_written"] > 0

    warm = run_stats(WORK + REPORT, **tiers)
    check_sums(warm)
    assert warm["compiles"] == 0 and warm["loads"] == cold["compiles"] and not warm["misses"]
    assert warm["machine"]["hits"] > 0 and warm["machine"]["bytes_read"] > 0

    shutil.rmtree(machine_folder(tiers["TORCH_TPU_TIER2_COMPILATION_CACHE"]))
    restarted = run_stats(WORK + REPORT, **tiers)
    check_sums(restarted)
    assert restarted["compiles"] == 0 and restarted["persistent"]["hits"] > 0
    assert restarted["machine"]["stores"] == restarted["persistent"]["hits"]


def test_the_process_counts_its_own_hits(tiers: dict[str, Any]) -> None:
    again = "\ny = (x.sin() @ x.T).relu().sum(1)\ntorch.tpu.synchronize()\n"
    stats = run_stats(WORK + again + REPORT, **tiers)
    assert stats["process"]["hits"] >= 4 and stats["process"]["programs"] > 0
    check_sums(stats)


def test_programs_and_counters_for_vllm(tiers: dict[str, Any]) -> None:
    code = """
    from torch.tpu import compilation_cache
    assert compilation_cache is torch.tpu.compilation_cache
    programs = compilation_cache.programs()
    assert any("sin" in program["what"] for program in programs), programs
    counters = torch.tpu._get_cache_stats()
    assert len(counters.per_entry_stats) == len(programs)
    assert 0 <= counters.num_cache_hits <= counters.num_cache_reqs
    seconds = [entry.compilation_duration.total_seconds() for entry in counters.per_entry_stats]
    print(all(s > 0 for s in seconds), all(s == 0 for s in seconds))
    """
    code = WORK + textwrap.dedent(code)
    assert subprocess_python.run_quietly(code, **tiers) == "True False\n"
    assert subprocess_python.run_quietly(code, **tiers) == "False True\n"


def test_clear(tiers: dict[str, Any]) -> None:
    code = """
    cache = torch.tpu.compilation_cache
    before = cache.stats()
    y = (x.sin() @ x.T).relu().sum(1)
    torch.tpu.synchronize()
    assert cache.stats()["compiles"] == before["compiles"]
    stored = [cache.usage(tier)["entries"] for tier in ("machine", "persistent")]
    assert stored[0] > 0 and cache.clear("machine") == stored[0]
    assert cache.usage("machine")["entries"] == 0 and cache.usage("persistent")["entries"] > 0
    assert cache.clear() > 0
    assert cache.usage("persistent")["entries"] == 0
    y = (x.sin() @ x.T).relu().sum(1)
    torch.tpu.synchronize()  # programs are compiled in other threads
    assert cache.stats()["compiles"] >= before["compiles"] + 4, cache.stats()
    try:
        cache.clear("everything")
    except ValueError as error:
        print(error)
    """
    out = subprocess_python.run_quietly(WORK + textwrap.dedent(code), **tiers)
    assert out == (
        "clear: expected 'all', 'process', 'machine' or 'persistent', got 'everything'\n"
    )


def test_path_and_tiers_that_are_off(tiers: dict[str, Any], nowhere: dict[str, Any]) -> None:
    code = """
    import torch
    cache = torch.tpu.compilation_cache
    print(cache.path(), cache.path("machine"))
    assert not torch.tpu.is_initialized()
    if cache.path() is None:
        try:
            cache.export("/tmp/never")
        except ValueError as error:
            assert "export: there is nothing to export" in str(error)
        else:
            assert False, "an empty file was written"
    """
    out = subprocess_python.run_quietly(code, **tiers)
    name = tiers["TORCH_TPU_TIER2_COMPILATION_CACHE"]
    assert out.split() == [
        tiers["TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT"],
        str(machine_folder(name)),
    ]
    assert subprocess_python.run_quietly(code, **nowhere) == "None None\n"
    stats = run_stats(WORK + REPORT, **nowhere)
    assert stats["compiles"] > 0 and stats["machine"]["stores"] == 0


# --- Files.


def export_code(path: Path) -> str:
    return f"""
assert torch.tpu.compilation_cache.export({str(path)!r}) > 0
"""


def preload_code(path: Path) -> str:
    return f"""
import torch
print(torch.tpu.compilation_cache.preload({str(path)!r}))
"""


def test_a_new_machine_with_an_exported_file_compiles_nothing(
    exported: Path, nowhere: dict[str, Any]
) -> None:
    assert stat.S_IMODE(exported.stat().st_mode) == 0o600
    with zipfile.ZipFile(exported) as archive:
        infos = archive.infolist()
        manifest = json.loads(archive.read("manifest.json"))
    assert all(info.compress_type == zipfile.ZIP_STORED for info in infos)
    assert manifest["entries"] == len(infos) - 1 > 0 and manifest["torch"]

    out = subprocess_python.run_quietly(preload_code(exported) + WORK + REPORT, **nowhere)
    count, report = out.splitlines()
    assert int(count) == manifest["entries"]
    stats = json.loads(report)
    check_sums(stats)
    assert stats["compiles"] == 0 and stats["archive"]["hits"] > 0, stats


def test_only_what_fits_is_exported_and_counted(tiers: dict[str, Any], tmp_path: Path) -> None:
    """Entries of another library or machine stay where they are unless everything is wanted."""
    subprocess_python.run_quietly(WORK, **tiers)
    code = """
    import torch
    from torch_tpu.tpu import compilation_cache as cache
    real = torch_tpu._C.cache_scopes
    fits = cache.export({0!r})
    torch_tpu._C.cache_scopes = lambda: {{"program": b"of another machine", "call": b"too"}}
    assert cache.export({1!r}) == 0
    assert cache.export({2!r}, everything=True) == fits > 0
    print(cache.preload({1!r}), cache.preload({2!r}) == fits)
    """.format(*(str(tmp_path / name) for name in ("fits.zip", "none.zip", "all.zip")))
    code = "import torch_tpu\n" + textwrap.dedent(code)
    assert subprocess_python.run_quietly(code, **tiers) == "0 True\n"


def test_files_that_are_refused(exported: Path, nowhere: dict[str, Any], tmp_path: Path) -> None:
    writable = tmp_path / "writable"
    shutil.copy(exported, writable)
    writable.chmod(0o666)
    (tmp_path / "text").write_bytes(b"no archive")
    with zipfile.ZipFile(tmp_path / "other", "w") as archive:
        archive.writestr("hello", "world")
    with zipfile.ZipFile(tmp_path / "compressed", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("0" * 64, "0" * 1000)
        archive.writestr("manifest.json", "{}")
    with zipfile.ZipFile(tmp_path / "strange", "w") as archive:
        archive.writestr("../../etc/passwd", "")
        archive.writestr("manifest.json", "{}")
    expected = {
        "missing": "FileNotFoundError: [Errno 2] No such file",
        "text": "ValueError: {}: expected a file written by torch.tpu.compilation_cache.export",
        "other": "ValueError: {}: expected a file written by",
        "compressed": "ValueError: {}: expected a file written by",
        "strange": "RuntimeError: cannot use {}: its member '../../etc/passwd' is no entry",
        "writable": "RuntimeError: {} is not used: others may write to it",
    }
    code = """
    import sys, torch
    for path in {paths!r}:
        try:
            torch.tpu.compilation_cache.preload(path)
        except Exception as error:
            print(f"{{type(error).__name__}}: {{error}}")
    """
    paths = [str(tmp_path / name) for name in expected]
    lines = subprocess_python.run_quietly(
        textwrap.dedent(code).format(paths=paths), **nowhere
    ).splitlines()
    assert len(lines) == len(expected)
    for path, line, start in zip(paths, lines, expected.values(), strict=True):
        assert line.startswith(start.format(path)), line


def test_a_damaged_file_loses_only_what_is_damaged(
    exported: Path, nowhere: dict[str, Any], tmp_path: Path
) -> None:
    with zipfile.ZipFile(exported) as archive:
        infos = archive.infolist()
    content = bytearray(exported.read_bytes())
    content[infos[0].header_offset + 600] ^= 1
    path = tmp_path / "damaged"
    path.write_bytes(content)
    path.chmod(0o600)
    out, err = subprocess_python.outputs(preload_code(path) + WORK, **nowhere)
    assert int(out) == len(infos) - 2
    assert "1 entries are unusable" in err and "damaged" in err


def test_export_leaves_nothing_behind_when_it_fails(tiers: dict[str, Any], tmp_path: Path) -> None:
    target = tmp_path / "folder"
    target.mkdir()
    error = subprocess_python.run_failing("import torch" + export_code(target), **tiers)
    assert "IsADirectoryError" in error
    assert [p.name for p in tmp_path.iterdir() if p.name != "persistent"] == ["folder"]


# --- Signatures.


def test_a_shared_folder_needs_signatures(
    tiers: dict[str, Any], tmp_path: Path, key_file: Path
) -> None:
    root = Path(tiers["TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT"])
    root.mkdir()
    root.chmod(0o777)
    only_shared = {**tiers, "TORCH_TPU_TIER2_COMPILATION_CACHE": "disabled"}
    (line,) = lines_of(WORK, **only_shared)
    assert "persistent cache" in line and "others may write to it" in line
    assert not list(root.iterdir())

    signed = {**only_shared, "TORCH_TPU_CACHE_HMAC_KEY_FILE": str(key_file)}
    assert run_stats(WORK + REPORT, **signed)["compiles"] > 0
    assert run_stats(WORK + REPORT, **signed)["compiles"] == 0

    other_key = tmp_path / "other key"
    other_key.write_text("another key of more than sixteen bytes")
    other_key.chmod(0o600)
    out, err = subprocess_python.outputs(
        WORK + REPORT, **{**signed, "TORCH_TPU_CACHE_HMAC_KEY_FILE": str(other_key)}
    )
    stats = json.loads(out)
    assert stats["compiles"] > 0 and stats["misses"]["wrong signature"] > 0
    assert "wrong signature" in err


def test_signed_files_may_come_from_others(
    tiers: dict[str, Any], exported: Path, tmp_path: Path, key_file: Path
) -> None:
    signed = {**tiers, "TORCH_TPU_CACHE_HMAC_KEY_FILE": str(key_file)}
    path = tmp_path / "warm.zip"
    subprocess_python.run_quietly(WORK + export_code(path), **signed)
    path.chmod(0o666)
    assert int(subprocess_python.run_quietly(preload_code(path), **signed)) > 0

    out, err = subprocess_python.outputs(preload_code(exported), **signed)
    assert out == "0\n" and "not signed" in err


def test_a_key_that_others_can_read_is_refused(tiers: dict[str, Any], key_file: Path) -> None:
    key_file.chmod(0o644)
    error = subprocess_python.run_failing(
        WORK, **{**tiers, "TORCH_TPU_CACHE_HMAC_KEY_FILE": str(key_file)}
    )
    assert "TORCH_TPU_CACHE_HMAC_KEY_FILE" in error and "chmod 600" in error


# --- Filesystems that fail.


def test_a_root_that_cannot_be_written(tiers: dict[str, Any]) -> None:
    """No permission is the best that even root gets below /sys."""
    environment = {
        **tiers,
        "TORCH_TPU_TIER2_COMPILATION_CACHE": "disabled",
        "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT": "/sys/torch_tpu",
    }
    (line,) = lines_of(WORK, **environment)
    assert "persistent cache" in line and "/sys/torch_tpu" in line


def test_warnings_go_through_logging(tiers: dict[str, Any]) -> None:
    environment = {
        **tiers,
        "TORCH_TPU_TIER2_COMPILATION_CACHE": "disabled",
        "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT": "/sys/torch_tpu",
    }
    (line,) = lines_of("import logging; logging.basicConfig()\n" + WORK, **environment)
    assert line.startswith("WARNING:torch_tpu.cache:")
    quiet = "import logging; logging.getLogger('torch_tpu.cache').setLevel('ERROR')\n"
    assert lines_of(quiet + WORK, **environment) == []


# --- Remote filesystems.

FAKE = """
import threading, time
import fsspec
from fsspec.implementations.memory import MemoryFileSystem

class Fake(MemoryFileSystem):
    protocol = "fake"
    store = {{}}
    pseudo_dirs = [""]

    def cat_file(self, path, **kwargs):
        {get}
        return super().cat_file(path, **kwargs)

    def pipe_file(self, path, value, **kwargs):
        {put}
        return super().pipe_file(path, value, **kwargs)

    def mv(self, a, b, **kwargs):
        {put}
        return super().mv(a, b, **kwargs)

fsspec.register_implementation("fake", Fake)
"""


def remote(tiers: dict[str, Any], url: str) -> dict[str, Any]:
    return {
        **tiers,
        "TORCH_TPU_TIER2_COMPILATION_CACHE": "disabled",
        "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT": url,
    }


def test_a_store_in_memory(tiers: dict[str, Any]) -> None:
    code = """
    cache = torch.tpu.compilation_cache
    cache._C.cache_flush(60)
    assert cache.path() == "memory://programs"
    assert cache.usage("persistent")["entries"] > 0
    cache.clear("process")
    y = (x.sin() @ x.T).relu().sum(1)
    torch.tpu.synchronize()
    stats = cache.stats()
    # What is slow to come is counted apart.
    assert stats["persistent"]["hits"] + stats["late_hits"] > 0, stats
    assert cache.clear("persistent") > 0 and cache.usage("persistent")["entries"] == 0
    """
    environment = remote(tiers, "memory://programs")
    subprocess_python.run_quietly(WORK + textwrap.dedent(code), **environment)


def test_hosts_share_a_remote_filesystem(tiers: dict[str, Any], tmp_path: Path) -> None:
    """What is still being written when a process ends is written."""
    environment = remote(tiers, f"local://{tmp_path}/shared")
    assert run_stats(WORK + REPORT, **environment)["compiles"] > 0
    entries = list((tmp_path / "shared").iterdir())
    assert entries and all(len(entry.name) == 64 for entry in entries)
    stats = run_stats(WORK + REPORT, **environment)
    assert stats["persistent"]["hits"] + stats["late_hits"] > 0, stats


def test_a_remote_that_cannot_be_reached(tiers: dict[str, Any]) -> None:
    fake = FAKE.format(
        get='raise ConnectionError("no route to host")',
        put='raise ConnectionError("no route to host")',
    )
    (line,) = lines_of(fake + WORK, **remote(tiers, "fake://programs"))
    assert "fake://programs" in line and "no route to host" in line


def test_a_remote_that_never_answers(tiers: dict[str, Any]) -> None:
    """Neither the work nor the end of the process waits for it."""
    fake = FAKE.format(get="time.sleep(10_000)", put="pass")
    lines = lines_of(fake + WORK, **remote(tiers, "fake://programs"), timeout=120)
    assert len(lines) <= 1, lines


def test_a_remote_that_takes_no_more(tiers: dict[str, Any]) -> None:
    fake = FAKE.format(get="pass", put='raise OSError(28, "No space left on device")')
    (line,) = lines_of(fake + WORK, **remote(tiers, "fake://programs"))
    assert "takes no programs" in line and "No space left on device" in line


@pytest.mark.skipif(importlib.util.find_spec("gcsfs") is not None, reason="gcsfs is installed")
def test_a_missing_package_is_named(tiers: dict[str, Any]) -> None:
    (line,) = lines_of(WORK, **remote(tiers, "gs://bucket/programs"))
    assert "pip install gcsfs" in line


def test_an_unknown_protocol_is_named(tiers: dict[str, Any]) -> None:
    (line,) = lines_of(WORK, **remote(tiers, "nowhere://programs"))
    assert "nowhere" in line


def test_a_put_that_needs_threads_works_at_the_end(tiers: dict[str, Any], tmp_path: Path) -> None:
    """An executor takes no work any more once the interpreter's threads are shut down."""
    fake = FAKE.format(
        get="pass",
        put="pool.submit(log.append, path).result(); open(log_file, 'a').write('put\\n')",
    )
    setup = f"""
from concurrent.futures import ThreadPoolExecutor
pool, log, log_file = ThreadPoolExecutor(1), [], {str(tmp_path / "log")!r}
"""
    fake = fake.replace("def mv(self, a, b", "def mv(self, path, b").replace(
        "mv(a, b", "mv(path, b"
    )
    lines = lines_of(setup + fake + WORK, **remote(tiers, "fake://programs"))
    assert lines == []
    assert (tmp_path / "log").read_text().startswith("put\n")


def test_fsspec_is_imported_when_it_is_needed(tiers: dict[str, Any]) -> None:
    code = WORK + "\nimport sys; print('fsspec.core' in sys.modules)"
    assert subprocess_python.run_quietly(code, **tiers) == "False\n"
