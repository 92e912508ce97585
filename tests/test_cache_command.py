"""`python -m torch_tpu cache`, run as a user does."""

from __future__ import annotations

import json
import os
import resource
import shutil
import stat
import subprocess
import sys
import time
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import subprocess_python

WORK = """
import torch
x = torch.arange(12.0, device="tpu").view(3, 4)
y = (x.sin() @ x.T).relu().sum(1).cpu()
"""

# Chooses a plugin that does not exist: whoever starts the device fails.
NO_PLUGIN = {"TORCH_TPU_PJRT_PLUGIN": "/nonexistent/plugin.so"}


# Runs commands one after another, as `python -m` does: none imports torch.
WORKER = """
import contextlib, io, json, sys
sys.argv[0] = "-m"
from torch_tpu.__main__ import main
for line in sys.stdin:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(json.loads(line))
        except SystemExit as end:
            status = end.code
    assert "torch" not in sys.modules, line
    print(json.dumps([status, out.getvalue(), err.getvalue()]), flush=True)
"""


class Cache:
    """Two tiers of one's own, and the command line on them."""

    def __init__(self, folder: Path) -> None:
        self.persistent = folder / "persistent"
        self.name = f"test-{uuid.uuid4().hex}"
        self.machine = Path(f"/dev/shm/torch_tpu-{os.geteuid()}") / self.name
        self.environment: dict[str, Any] = {
            "TORCH_TPU_TIER2_COMPILATION_CACHE": self.name,
            "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT": str(self.persistent),
            "TORCH_TPU_CACHE_HMAC_KEY_FILE": "",
        }
        self.workers: dict[str, subprocess.Popen[str]] = {}  # by environment

    def run(self, *arguments: str, status: int = 0, **environment: str) -> str:
        """What `python -m torch_tpu cache` writes to stdout, or to stderr when it fails."""
        worker = self._worker(environment)
        assert worker.stdin is not None and worker.stdout is not None
        worker.stdin.write(json.dumps(["cache", *arguments]) + "\n")
        worker.stdin.flush()
        returned, out, err = json.loads(worker.stdout.readline())
        assert returned == status, (returned, out, err)
        if status == 2:
            assert not out
            return str(err)
        assert not err, err
        return str(out)

    def _worker(self, environment: dict[str, str]) -> subprocess.Popen[str]:
        key = json.dumps(environment)
        if key not in self.workers:
            self.workers[key] = subprocess.Popen(
                [sys.executable, "-c", WORKER],
                env={**os.environ, **self.environment, **NO_PLUGIN, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        return self.workers[key]

    def close(self) -> None:
        for worker in self.workers.values():
            worker.communicate(timeout=300)
            assert worker.returncode == 0
        shutil.rmtree(self.machine, ignore_errors=True)

    def json(self, *arguments: str, status: int = 0, **environment: str) -> Any:
        return json.loads(self.run(*arguments, "--json", status=status, **environment))

    def files(self) -> list[Path]:
        return [
            path
            for root in (self.machine, self.persistent)
            for path in sorted(root.glob("[0-9a-f][0-9a-f]/*"))
        ]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cache]:
    """Tiers with the programs of a few operators. Not to be changed."""
    cache = Cache(tmp_path_factory.mktemp("filled"))
    subprocess_python.run_quietly(WORK, **cache.environment)
    yield cache
    cache.close()


@pytest.fixture
def cache(filled: Cache, tmp_path: Path) -> Iterator[Cache]:
    """A copy of them."""
    copy = Cache(tmp_path)
    shutil.copytree(filled.persistent, copy.persistent)
    shutil.copytree(filled.machine, copy.machine)
    yield copy
    copy.close()


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Cache]:
    (tmp_path / "empty").mkdir()
    cache = Cache(tmp_path / "empty")
    yield cache
    cache.close()


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_help_and_version_do_not_import_torch() -> None:
    arguments = (["--version"], ["--help"], ["cache", "list", "--help"], ["cache", "path"])
    for words, shown in zip(
        arguments, ("torch_tpu 0.", "cache", "--sort", "persistent"), strict=True
    ):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "torch_tpu", *words],
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
        assert shown in done.stdout
        assert "argparse" in imported
        assert not imported & {"torch", "rich"}


def test_the_module_runs(filled: Cache) -> None:
    command = [sys.executable, "-m", "torch_tpu", "cache"]
    environment = {**os.environ, **filled.environment, **NO_PLUGIN}
    for arguments, status in ((["verify"], 0), (["clear", "--tier", "moon"], 2), ([], 2)):
        done = subprocess.run(
            command + arguments,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == status, done
        assert "Traceback" not in done.stderr and bool(done.stdout) == (status == 0)


def test_wrong_usage(filled: Cache) -> None:
    assert "usage: python -m torch_tpu cache" in filled.run(status=2)
    assert "invalid choice" in filled.run("list", "--tier", "moon", status=2)
    assert "expected a number of bytes" in filled.run("prune", "--max-size", "much", status=2)
    assert "expected a number of bytes" in filled.run("prune", "--max-size", "1.5", status=2)
    assert "expected an age" in filled.run("prune", "--older-than", "1", status=2)
    assert "expected a number" in filled.run("list", "--limit", "-1", status=2)
    assert "drop --brief" in filled.run("list", "--brief", "--match", "sin", status=2)
    assert "invalid choice" in filled.run("export", "--kind", "tune", "x", status=2)


def test_wrong_environment(filled: Cache) -> None:
    error = filled.run("list", status=2, TORCH_TPU_TIER3_COMPILATION_CACHE_SIZE="lots")
    assert error.startswith("error: TORCH_TPU_TIER3_COMPILATION_CACHE_SIZE: expected")
    filled.persistent.chmod(0o777)
    try:
        assert "others may write to it" in filled.run("list", status=2)
    finally:
        filled.persistent.chmod(0o700)


def test_path(filled: Cache) -> None:
    paths = {"machine": str(filled.machine), "persistent": str(filled.persistent)}
    assert filled.json("path") == paths
    assert filled.run("path").split() == [word for item in paths.items() for word in item]
    off = filled.json("path", TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT="disabled")
    assert off == {**paths, "persistent": None}
    assert filled.run("path", "--tier", "machine").split() == ["machine", str(filled.machine)]


def test_list(filled: Cache) -> None:
    entries = filled.json("list")
    assert {entry["tier"] for entry in entries} == {"machine", "persistent"}
    assert len(entries) == len(filled.files())
    sizes = {path.parent.name + path.name: path.stat().st_size for path in filled.files()}
    programs = [entry["program"] for entry in entries if entry["kind"] == "program"]
    calls = [entry["program"] for entry in entries if entry["kind"] == "call"]
    assert any(text.startswith("dot_general (") for text in programs), programs
    assert any(text.endswith("-> 3x4xf32") for text in programs), programs
    assert any(text.startswith("aten::sin") for text in calls), calls
    for entry in entries:
        assert entry["platform"] == "cpu" and not entry["problem"]
        assert entry["size"] == sizes[entry["name"]]
        assert 0 <= time.time() - entry["last_used"] < 3600

    table = filled.run("list", "--tier", "machine", "--sort", "program")
    lines = table.strip().splitlines()
    assert lines[0].split() == ["name", "kind", "program", "platform", "size", "age", "tier"]
    assert lines[-1].startswith(f"{len(entries) // 2} entries, ") and ";" not in lines[-1]
    both = filled.run("list").splitlines()[-1]
    assert both.startswith(f"{len(entries)} entries, ")
    assert f"; {len(entries) // 2} different ones: what is in both tiers" in both
    assert "aten::sin" in table and "persistent" not in table


def test_list_sorts_and_limits(filled: Cache) -> None:
    def column(name: str, *arguments: str) -> list[Any]:
        return [entry[name] for entry in filled.json("list", *arguments)]

    sizes = column("size", "--sort", "size")
    assert sizes == sorted(sizes, reverse=True)
    assert column("size", "--sort", "size", "--limit", "2") == sizes[:2]
    assert column("name", "--sort", "name") == sorted(column("name"))
    assert column("kind", "--sort", "kind") == sorted(column("kind"))
    ages = column("last_used")
    assert ages == sorted(ages, reverse=True)
    assert filled.json("list", "--limit", "0") == []
    assert set(column("kind", "--brief")) == {""}
    assert "2 of" in filled.run("list", "--limit", "2").splitlines()[-1]


def test_looking_at_entries_is_no_use_of_them(cache: Cache, tmp_path: Path) -> None:
    """What is listed, counted, checked and exported is as old as before."""
    then = int(time.time()) - 40 * 86400
    for path in cache.files():
        os.utime(path, (then, then))
    cache.run("list")
    cache.run("stats")
    cache.run("verify")
    cache.run("export", str(tmp_path / "programs.zip"))
    assert {int(path.stat().st_mtime) for path in cache.files()} == {then}
    kept = cache.json("prune", "--older-than", "30d")
    assert {tier: kept[tier]["entries_kept"] for tier in ("machine", "persistent")} == {
        "machine": 0,
        "persistent": 0,
    }


def test_list_and_export_of_some(cache: Cache, tmp_path: Path) -> None:
    old = [path for path in cache.files() if path.is_relative_to(cache.persistent)][:3]
    for path in old:
        name = path.parent.name + path.name
        for tier in (cache.machine, cache.persistent):
            os.utime(tier / name[:2] / name[2:], (time.time() - 3 * 86400,) * 2)
    # Used through the machine tier alone.
    used = old[0].parent.name + old[0].name
    os.utime(cache.machine / used[:2] / used[2:])

    def exported(*selection: str) -> set[str]:
        path = tmp_path / "programs.zip"
        count = cache.json("export", *selection, str(path))["entries"]
        with zipfile.ZipFile(path) as file:
            names = set(file.namelist()) - {"manifest.json"}
        assert len(names) == count
        return names

    everything = cache.json("list")
    for selection in (
        ["--kind", "call"],
        ["--kind", "program", "--match", "dot_general"],
        ["--match", "aten::sin"],
        ["--platform", "cpu"],
        ["--platform", "tpu"],
        ["--since", "2d"],
        ["--since", "4d"],
        ["--since", "2d", "--tier", "persistent"],
        ["--since", "2d", "--kind", "program"],
    ):
        rows = cache.json("list", *selection)
        assert exported(*selection) == {row["name"] for row in rows}, selection
        assert all(row in everything for row in rows)
    names = {row["name"] for row in everything}
    not_used = {path.parent.name + path.name for path in old} - {used}
    assert exported() == names
    assert exported("--since", "2d") == names - not_used
    assert exported("--since", "2d", "--tier", "persistent") == names - not_used - {used}
    # Times are noted once an hour.
    assert exported("--since", "71.5h") == names
    kinds = exported("--kind", "call"), exported("--kind", "program")
    assert kinds[0] | kinds[1] == names and not kinds[0] & kinds[1] and all(kinds)
    assert cache.json("list", "--match", "aten::sin", "--limit", "1")[0]["program"] == "aten::sin"
    assert exported("--platform", "tpu") == set()


def test_stats(filled: Cache) -> None:
    stats = filled.json("stats")
    for tier, folder in (("machine", filled.machine), ("persistent", filled.persistent)):
        usage = stats[tier]
        files = list(folder.glob("[0-9a-f][0-9a-f]/*"))
        assert usage["location"] == str(folder)
        assert usage["entries"] == len(files)
        assert usage["bytes"] == sum(path.stat().st_size for path in files)
        assert {group["kind"] for group in usage["groups"]} == {"program", "call"}
        assert sum(group["entries"] for group in usage["groups"]) == len(files)
        assert usage["limit"] > 0
    table = filled.run("stats")
    assert "10.0 GiB" in table and str(filled.persistent) in table


def test_verify_good_entries(filled: Cache) -> None:
    count = len(filled.files())
    assert filled.json("verify") == {"checked": count, "unusable": [], "deleted": False}
    assert filled.run("verify") == f"{count} entries checked, 0 unusable\n"


def test_verify_finds_and_deletes(cache: Cache) -> None:
    persistent = [path for path in cache.files() if path.is_relative_to(cache.persistent)]
    damage(persistent[0])
    persistent[1].write_bytes(persistent[1].read_bytes()[:-1])
    persistent[2].write_bytes(persistent[3].read_bytes())
    persistent[4].write_bytes(b"something else altogether")
    problems = {
        persistent[0]: "damaged",
        persistent[1]: "truncated",
        persistent[2]: "stored for another key",
        persistent[4]: "not an entry",
    }
    expected = {
        (path.parent.name + path.name, "persistent", problem) for path, problem in problems.items()
    }
    found = cache.json("verify", status=1)
    assert {(e["name"], e["tier"], e["problem"]) for e in found["unusable"]} == expected
    listed = {e["problem"] for e in cache.json("list") if e["problem"]}
    assert listed == set(problems.values())
    assert "unusable: damaged" in cache.run("list")
    assert cache.run("verify", "--tier", "machine").endswith(" 0 unusable\n")
    table = cache.run("verify", "--delete", status=1)
    assert "damaged" in table and table.endswith("4 unusable, removed\n")
    assert not any(path.exists() for path in problems)
    assert cache.json("verify")["unusable"] == []


def test_verify_with_a_key(cache: Cache, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("a key of more than sixteen bytes")
    key.chmod(0o600)
    found = cache.json("verify", status=1, TORCH_TPU_CACHE_HMAC_KEY_FILE=str(key))
    assert {entry["problem"] for entry in found["unusable"]} == {"not signed"}
    assert len(found["unusable"]) == len(cache.files())


def test_prune_by_age(cache: Cache) -> None:
    old = [path for path in cache.files() if path.is_relative_to(cache.persistent)][:3]
    for path in old:
        os.utime(path, (time.time() - 40 * 86400,) * 2)
    total = len(cache.files())
    dry = cache.json("prune", "--older-than", "30d", "--dry-run")
    assert dry["persistent"]["entries_removed"] == 3 and len(cache.files()) == total
    assert "would remove 3 entries" in cache.run("prune", "--older-than", "30d", "--dry-run")
    assert cache.json("prune", "--older-than", "30d")["persistent"]["entries_removed"] == 3
    assert len(cache.files()) == total - 3 and not any(path.exists() for path in old)


def test_prune_by_size(cache: Cache) -> None:
    files = [path for path in cache.files() if path.is_relative_to(cache.persistent)]
    for age, path in enumerate(files):
        os.utime(path, (time.time() - 1000 * age,) * 2)
    keep = sum(path.stat().st_size for path in files[:2])
    result = cache.json("prune", "--tier", "persistent", "--max-size", str(keep))
    assert result["persistent"]["bytes_kept"] == keep
    assert [path for path in files if path.exists()] == files[:2]
    before = len(cache.files())
    cache.run("prune")
    assert len(cache.files()) == before
    cache.run("prune", "--max-size", "0")
    assert cache.files() == []


def test_clear(cache: Cache) -> None:
    total = len(cache.files())
    assert "--yes" in cache.run("clear", status=2)
    assert len(cache.files()) == total
    assert "removed" in cache.run("clear", "--tier", "machine", "--yes")
    assert len(cache.files()) == total // 2
    assert cache.json("clear", "--yes")["removed"] == {"machine": 0, "persistent": total // 2}
    assert cache.files() == []


def test_clear_asks_on_a_terminal(cache: Cache) -> None:
    """The answer is taken from a terminal; anything but yes keeps everything."""
    import pty

    total = len(cache.files())
    for answer, left in ((b"n\n", total), (b"\n", total), (b"y\n", 0)):
        parent, child = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "torch_tpu", "cache", "clear"],
            env={**os.environ, **cache.environment},
            stdin=child,
            stdout=subprocess.PIPE,
            text=True,
        )
        os.write(parent, answer)
        out, _ = process.communicate(timeout=300)
        os.close(parent)
        os.close(child)
        assert process.returncode == 0 and "Remove them all? [y/N]" in out
        assert len(cache.files()) == left, answer


def test_export_and_import(filled: Cache, empty: Cache, tmp_path: Path) -> None:
    path = tmp_path / "programs.zip"
    names = {file.parent.name + file.name for file in filled.files()}
    assert filled.json("export", str(path)) == {"file": str(path), "entries": len(names)}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert empty.run("import", str(path)) == f"{len(names)} entries imported, 0 unusable\n"
    assert {file.parent.name + file.name for file in empty.files()} == names
    assert len(empty.files()) == 2 * len(names)
    code = WORK + "\nprint(torch.tpu.compilation_cache.stats()['compiles'])"
    assert subprocess_python.run_quietly(code, **empty.environment) == "0\n"


def test_import_checks_every_entry(filled: Cache, empty: Cache, tmp_path: Path) -> None:
    path = tmp_path / "programs.zip"
    filled.run("export", str(path))
    content = bytearray(path.read_bytes())
    content[600] ^= 1  # in the first entry's key or payload
    path.write_bytes(content)
    result = empty.json("import", str(path), status=1)
    assert list(result["unusable"].values()) == ["damaged"]
    assert len(empty.files()) == 2 * result["entries"] > 0
    path.chmod(0o622)
    assert "others may write to it" in empty.run("import", str(path), status=2)
    assert "expected a file" in empty.run("import", str(filled.files()[0]), status=2)
    assert "No such file" in empty.run("import", str(tmp_path / "missing"), status=2)


def test_export_to_where_nothing_can_be_written(filled: Cache, tmp_path: Path) -> None:
    """The message names the file that was asked for, and nothing is left behind."""
    error = filled.run("export", str(tmp_path), status=2)
    assert error == f"error: {tmp_path}: Is a directory\n"
    file = tmp_path / "missing" / "programs.zip"
    assert (
        filled.run("export", str(file), status=2) == f"error: {file}: No such file or directory\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "torch_tpu", "cache", "export", str(tmp_path / "programs.zip")],
        env={**os.environ, **filled.environment, **NO_PLUGIN},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
        capture_output=True,
        text=True,
    )
    full = f"error: {tmp_path / 'programs.zip'}: File too large\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", full)
    assert os.listdir(tmp_path) == [] and os.listdir(tmp_path.parent).count(tmp_path.name) == 1


def test_empty_and_off(empty: Cache) -> None:
    assert empty.json("list") == []
    assert empty.json("verify")["checked"] == 0
    assert "0 entries" in empty.run("list")
    empty.run("prune")
    assert empty.json("clear", "--yes")["removed"] == {"machine": 0, "persistent": 0}
    off: dict[str, Any] = {"TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT": "disabled"}
    assert "persistent tier is off" in empty.run("verify", "--tier", "persistent", status=2, **off)
    assert empty.json("stats", **off)["persistent"]["location"] is None


def test_a_remote_tier(filled: Cache, tmp_path: Path) -> None:
    """The same commands on a filesystem that is reached through fsspec."""
    remote: dict[str, Any] = {
        "TORCH_TPU_TIER2_COMPILATION_CACHE": "disabled",
        "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT": f"local://{tmp_path}/shared",
    }
    path = tmp_path / "programs.zip"
    count = filled.json("export", str(path))["entries"]
    assert filled.json("import", str(path), **remote)["entries"] == count
    entries = filled.json("list", **remote)
    assert len(entries) == count and all(e["last_used"] > 0 for e in entries)
    damage(tmp_path / "shared" / entries[0]["name"])
    found = filled.json("verify", "--delete", status=1, **remote)["unusable"]
    assert [entry["name"] for entry in found] == [entries[0]["name"]]
    assert filled.json("stats", **remote)["persistent"]["entries"] == count - 1
    filled.run("prune", "--max-size", "0", **remote)
    assert filled.json("list", **remote) == []


def test_a_remote_tier_that_cannot_be_reached(filled: Cache) -> None:
    error = filled.run(
        "list", status=2, TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT="nowhere://programs"
    )
    assert error.startswith("error: nowhere://programs: list: ")


def test_a_reader_that_stops_reading(filled: Cache) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "torch_tpu", "cache", "list", "--json"],
        env={**os.environ, **filled.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=300) == 0
