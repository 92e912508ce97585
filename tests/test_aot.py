"""Programs compiled ahead of time for TPUs that are not attached (torch.tpu.aot)."""

from __future__ import annotations

import concurrent.futures
import importlib
import importlib.util
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import subprocess_python
import torch

from torch_tpu import aot, plugins
from torch_tpu.aot import __main__ as command
from torch_tpu.testing import aot_sweep

# libtpu is the extra torch_tpu[libtpu]; what needs it is marked.
needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu, an optional extra, is not installed"
)

ADD = """
module {
  func.func @main(%a: tensor<1024x1024xf32>, %b: tensor<1024x1024xf32>) -> tensor<1024x1024xf32> {
    %c = stablehlo.add %a, %b : tensor<1024x1024xf32>
    return %c : tensor<1024x1024xf32>
  }
}
"""
WRONG = "module { func.func @main() -> tensor<f32> { return %nothing : tensor<f32> } }"
TOO_LARGE = """
module {
  func.func @main(%a: tensor<65536x131072xf32>) -> tensor<65536x131072xf32> {
    %b = stablehlo.negate %a : tensor<65536x131072xf32>
    return %b : tensor<65536x131072xf32>
  }
}
"""  # 64 GiB
MIB = 1 << 20


@pytest.fixture(scope="module")
def add() -> aot.CompiledProgram:
    return aot.compile_stablehlo(ADD, "v5e:2x2")


@needs_libtpu
def test_figures(add: aot.CompiledProgram) -> None:
    assert add.memory.arguments == 8 * MIB
    assert add.memory.outputs == 4 * MIB
    assert add.memory.peak >= 12 * MIB
    assert add.flops == 1024 * 1024
    assert add.bytes_accessed == 12 * MIB
    assert add.estimated_seconds is not None and 0 < add.estimated_seconds < 1e-3
    assert add.num_outputs == 1
    assert len(add.serialize()) > 1000
    assert add.topology.device_kind == "TPU v5 lite"
    assert add.topology.num_devices == 4
    # What one device has is what its data sheet says, less what the system keeps.
    assert add.topology.device_memory is not None
    assert 15 << 30 < add.topology.device_memory < 16 << 30


@needs_libtpu
def test_the_module_is_where_users_look() -> None:
    assert torch.tpu.aot is aot  # type: ignore[attr-defined]
    assert importlib.import_module("torch.tpu.aot") is aot
    program = torch.tpu.aot.compile_stablehlo(  # type: ignore[attr-defined]
        ADD.encode(), topology="tpu7x:2x2x1"
    )
    assert program.topology.num_devices == 8


@needs_libtpu
def test_no_estimate_where_the_compiler_has_none() -> None:
    fft = """
    module {
      func.func @main(%a: tensor<64xcomplex<f32>>) -> tensor<64xcomplex<f32>> {
        %b = stablehlo.fft %a, type = FFT, length = [64]
            : (tensor<64xcomplex<f32>>) -> tensor<64xcomplex<f32>>
        return %b : tensor<64xcomplex<f32>>
      }
    }
    """
    program = aot.compile_stablehlo(fft)
    assert program.costs["optimal_seconds"] < 0
    assert program.estimated_seconds is None


@needs_libtpu
def test_save_and_load(add: aot.CompiledProgram, tmp_path: Path) -> None:
    file = tmp_path / "add.tpu"
    add.save(file)
    assert aot.CompiledProgram.load(file) == add


def test_load_refuses_another_file(tmp_path: Path) -> None:
    file = tmp_path / "note.txt"
    file.write_text("hello")
    with pytest.raises(ValueError, match=r"expected a file written by CompiledProgram\.save"):
        aot.CompiledProgram.load(file)


@needs_libtpu
@pytest.mark.parametrize("name", aot.topologies())
def test_listed_topologies_are_accepted(name: str) -> None:
    topology = aot.topology(name)
    chips = 1
    for side in name.partition(":")[2].split("x"):
        chips *= int(side)
    per_chip = 2 if name.startswith(("v2", "v3", "v4", "tpu7x")) else 1
    assert topology.num_devices == chips * per_chip


@needs_libtpu
@pytest.mark.parametrize("name", ["", "v5e", "v5e:", "h100:2x2", "v5e:3x5", "v5e:0x2", "tpu:2x2"])
def test_unknown_topology(name: str) -> None:
    with pytest.raises(ValueError, match=r"\[aot\] expected a topology.*v5e:1x1, 2x2.*tpu7x:"):
        aot.compile_stablehlo(ADD, name)


@needs_libtpu
def test_too_few_devices() -> None:
    with pytest.raises(ValueError, match=r"need 8 devices, but v5e:2x2 has 4"):
        aot.compile_stablehlo(ADD, num_replicas=2, num_partitions=4)
    with pytest.raises(ValueError, match="at least 1"):
        aot.compile_stablehlo(ADD, num_replicas=0)


@needs_libtpu
def test_partitions_share_the_arguments() -> None:
    rows = '{mhlo.sharding = "{devices=[4,1]<=[4]}"}'
    text = ADD.replace("xf32>, %b", f"xf32> {rows}, %b").replace("xf32>) ->", f"xf32> {rows}) ->")
    program = aot.compile_stablehlo(text, "v5e:2x2", num_partitions=4)
    assert program.memory.arguments == 2 * MIB  # a quarter


@needs_libtpu
def test_refused_program() -> None:
    with pytest.raises(aot.CompileError, match="undeclared SSA value") as raised:
        aot.compile_stablehlo(WRONG)
    assert raised.value.topology == "v5e:2x2"
    assert raised.value.path is not None and raised.value.path in str(raised.value)
    path = Path(raised.value.path)
    assert path.read_text() == WRONG
    path.unlink()


@needs_libtpu
def test_program_that_does_not_fit() -> None:
    with pytest.raises(aot.CompileError, match="exceeds available HBM") as raised:
        aot.compile_stablehlo(TOO_LARGE, "v5e:2x2")
    assert raised.value.code == "RESOURCE_EXHAUSTED"
    assert raised.value.path is not None
    Path(raised.value.path).unlink()
    assert aot.compile_stablehlo(TOO_LARGE, "tpu7x:2x2x1").memory.peak >= 64 << 30


@needs_libtpu
def test_flags() -> None:
    flags = {"xla_tpu_enable_latency_hiding_scheduler": True}
    assert aot.compile_stablehlo(ADD, flags=flags).num_outputs == 1
    with pytest.raises(aot.CompileError, match="xla_no_such_flag") as raised:
        aot.compile_stablehlo(ADD, flags={"xla_no_such_flag": True})
    assert raised.value.path is not None
    Path(raised.value.path).unlink()


@needs_libtpu
def test_threads() -> None:
    names = ["v5e:2x2", "v6e:2x2", "tpu7x:2x2x1", "v5e:2x2"]
    with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
        programs = list(pool.map(lambda name: aot.compile_stablehlo(ADD, name), names))
    assert [program.topology.name for program in programs] == names
    assert {program.memory.arguments for program in programs} == {8 * MIB}


@needs_libtpu
def test_quiet_and_without_effect_on_the_device() -> None:
    """Nothing on the terminal, the same device as before, the environment as it was."""
    printed = subprocess_python.run_quietly(
        f"""
        import os
        import torch
        before = dict(os.environ), torch.tpu.device_count(), torch.tpu.get_platform_name()
        program = torch.tpu.aot.compile_stablehlo({ADD!r})
        assert before == (
            dict(os.environ), torch.tpu.device_count(), torch.tpu.get_platform_name()
        )
        assert "TPU_ACCELERATOR_TYPE=" not in os.popen("env").read()
        x = torch.ones(3, device="tpu")
        print((x + x).tolist())
        """
    )
    assert printed.strip() == "[2.0, 2.0, 2.0]"


@needs_libtpu
def test_device_starts_after_the_compiler() -> None:
    printed = subprocess_python.run_quietly(
        f"""
        import torch
        torch.tpu.aot.compile_stablehlo({ADD!r})
        assert not torch.tpu.is_initialized()
        print(torch.ones(3, device="tpu").sum().item(), torch.tpu.get_platform_name())
        """
    )
    assert printed.split()[0] == "3.0"
    name = torch.tpu.get_platform_name()  # type: ignore[attr-defined]
    assert printed.split()[1] == name


@needs_libtpu
def test_several_processes_at_once() -> None:
    code = textwrap.dedent(
        f"""
        import sys
        from torch_tpu import aot
        aot.topology("v5e:2x2")
        print("ready", flush=True)
        sys.stdin.readline()  # until all have loaded the compiler
        print(aot.compile_stablehlo({ADD!r}).memory.arguments)
        """
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.communicate("\n")[0] == f"{8 * MIB}\n"


@needs_libtpu
def test_forked_child_is_told() -> None:
    printed = subprocess_python.run(
        """
        import os
        from torch_tpu import aot
        aot.topology("v5e:2x2")
        child = os.fork()
        if child == 0:
            try:
                aot.compile_stablehlo("module {}")
            except RuntimeError as error:
                print("spawn" in str(error), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        """
    )
    assert printed == "True\n"


def test_without_libtpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "find_plugins", lambda: ([], []))
    with pytest.raises(ImportError, match=r"pip install 'torch_tpu\[libtpu\]'"):
        aot.compile_stablehlo(ADD, "v5e:4x8_untwisted")  # a name no other test has opened


@needs_libtpu
def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, output = tmp_path / "add.mlir", tmp_path / "add.tpu"
    file.write_text(ADD)
    arguments = [str(file), "--topology", "v6e:2x2"]
    assert command.main([*arguments, "--json", "--output", str(output)]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["memory"]["arguments"] == 8 * MIB
    assert figures["topology"]["name"] == "v6e:2x2"
    assert aot.CompiledProgram.load(output).summary() == figures
    assert command.main(arguments) == 0
    table = capsys.readouterr().out
    assert "8.0 MiB" in table and "4 x TPU v6 lite" in table


@needs_libtpu
def test_command_with_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "add.mlir"
    file.write_text(ADD)
    assert command.main([str(file), "--topology", "v1:2x2"]) == 1
    assert "expected a topology" in capsys.readouterr().err
    assert command.main([str(tmp_path / "missing.mlir")]) == 1
    assert "missing.mlir" in capsys.readouterr().err


def test_command_lists_topologies(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    assert tuple(capsys.readouterr().out.split()) == aot.topologies()


def test_programs_are_dumped(tmp_path: Path) -> None:
    code = "import torch; x = torch.ones(5, device='tpu'); print((x * x + 1).tolist())"
    dump, cache = tmp_path / "dump", tmp_path / "cache"

    def run() -> None:
        subprocess_python.run_quietly(
            code,
            TORCH_TPU_DUMP_STABLEHLO=str(dump),
            TORCH_TPU_TIER2_COMPILATION_CACHE="disabled",
            TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT=str(cache),
        )

    run()
    names = {path.name for path in dump.iterdir()}
    assert len(names) >= 2
    texts = [path.read_text() for path in dump.iterdir()]
    assert any("stablehlo.multiply" in text for text in texts)
    # From the cache too.
    for path in dump.iterdir():
        path.unlink()
    run()
    assert {path.name for path in dump.iterdir()} == names


def test_dump_folder_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    error = subprocess_python.run_failing(
        "import torch; torch.ones(5, device='tpu')", TORCH_TPU_DUMP_STABLEHLO=str(file / "dump")
    )
    assert "[dump program] expected TORCH_TPU_DUMP_STABLEHLO to name a folder" in error


@needs_libtpu
def test_sweep(tmp_path: Path) -> None:
    folder, file = tmp_path / "programs", tmp_path / "results.jsonl"
    folder.mkdir()
    (folder / "add.mlir").write_text(ADD)
    (folder / "same.mlir").write_text(ADD)
    (folder / "wrong.mlir").write_text(WRONG)
    one = ("v5e:2x2",)
    assert len(aot_sweep.sweep(folder, file, topologies=one, limit=1, quiet=True)) == 1
    with file.open("a") as lines:
        lines.write('{"key": "a line that a killed run left')
    good, wrong = aot_sweep.sweep(folder, file, topologies=one, quiet=True)
    assert (good.file, good.status) == ("add.mlir", "ok")
    assert good.peak_bytes >= 12 * MIB and good.flops == 1024 * 1024
    assert (wrong.file, wrong.status) == ("wrong.mlir", "refused")
    assert "undeclared SSA value" in wrong.message
    text = aot_sweep.report([good, wrong])
    assert "1 of 2 compile (50.00%)" in text and "1 refused, e.g. wrong.mlir" in text
    # Nothing is left to do.
    before = file.read_text()
    assert aot_sweep.sweep(folder, file, topologies=one, quiet=True) == [good, wrong]
    assert file.read_text() == before


def test_sweep_survives_a_dying_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("aborts", "good", "hangs"):
        (folder / f"{name}.mlir").write_text(name)
    # A compiler that does what the program's name says, in place of the real one.
    fake = tmp_path / "fake" / "torch_tpu_fake_worker.py"
    fake.parent.mkdir()
    fake.write_text(
        textwrap.dedent(
            """
            import json, os, sys, time
            for line in sys.stdin:
                key, path, topology = json.loads(line)
                text = open(path).read()
                if text == "aborts":
                    print("F0000 Check failed: rank == 2", file=sys.stderr, flush=True)
                    os.abort()
                if text == "hangs":
                    time.sleep(600)
                print(json.dumps({"key": key, "topology": topology, "file": os.path.basename(path),
                                  "status": "ok", "seconds": 0.0}), flush=True)
            """
        )
    )
    monkeypatch.setattr(aot_sweep, "_WORKER", [sys.executable, str(fake)])
    aborts, good, hangs = aot_sweep.sweep(
        folder, tmp_path / "results.jsonl", topologies=("v5e:2x2",), timeout=5, quiet=True
    )
    assert aborts.status == "crashed" and "Check failed: rank == 2" in aborts.message
    assert good.status == "ok"
    assert hangs.status == "timeout"
