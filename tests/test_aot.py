"""Programs compiled ahead of time for TPUs that are not attached (torch.tpu.aot)."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import importlib
import importlib.util
import json
import os
import re
import resource
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import compare
import pytest
import subprocess_python
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torch_tpu import __main__ as commands
from torch_tpu import aot, plugins, tpu
from torch_tpu.aot import __main__ as command
from torch_tpu.export import to_stablehlo
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
    assert add.memory.peak is not None and add.memory.peak >= 12 * MIB
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
    assert "no estimate of" in program.unknown["estimated time"]
    assert program.parts_without_estimate >= 1
    assert program.partial_seconds is None or program.partial_seconds < 1e-3


@needs_libtpu
def test_time_of_the_parts_that_have_an_estimate() -> None:
    text = """
    module {
      func.func @main(%a: tensor<2048x2048xbf16>, %c: tensor<64xcomplex<f32>>)
          -> (tensor<2048x2048xbf16>, tensor<64xcomplex<f32>>) {
        %b = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0]
            : (tensor<2048x2048xbf16>, tensor<2048x2048xbf16>) -> tensor<2048x2048xbf16>
        DO
        return %b, %d : tensor<2048x2048xbf16>, tensor<64xcomplex<f32>>
      }
    }
    """
    fft = """%d = stablehlo.fft %c, type = FFT, length = [64]
        : (tensor<64xcomplex<f32>>) -> tensor<64xcomplex<f32>>"""
    whole = aot.compile_stablehlo(
        text.replace("DO", "").replace("return %b, %d", "return %b, %c"), "v5e:1x1"
    )
    part = aot.compile_stablehlo(text.replace("DO", fft), "v5e:1x1")
    assert part.estimated_seconds is None and part.partial_seconds is not None
    known = whole.estimated_seconds or whole.partial_seconds
    assert known is not None and known > 1e-5
    assert known * 0.9 < part.partial_seconds < known * 1.5


@needs_libtpu
def test_save_and_load(add: aot.CompiledProgram, tmp_path: Path) -> None:
    file = tmp_path / "add.tpu"
    add.save(file)
    assert aot.CompiledProgram.load(file) == add
    assert [path.name for path in tmp_path.iterdir()] == ["add.tpu"]


@needs_libtpu
def test_unknown_figures_have_reasons(add: aot.CompiledProgram) -> None:
    assert add.unknown == {}
    here = aot.compile_stablehlo(ADD, "device")
    assert here.memory.arguments == 8 * MIB and here.topology.name == "device"
    figures = {
        "peak memory": here.memory.peak,
        "flops": here.flops,
        "bytes accessed": here.bytes_accessed,
        "estimated time": here.estimated_seconds,
    }
    assert set(here.unknown) == {name for name, figure in figures.items() if figure is None}


def saved_model(folder: Path) -> tuple[torch.nn.Module, aot.CompiledProgram, Path]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8)).eval()
    program = aot.compile(model, "device", args=(torch.randn(3, 4),))
    file = folder / "model.tpu"
    program.save(file)
    return model, program, file


def test_another_process_runs_it_without_compiling(tmp_path: Path) -> None:
    model, program, file = saved_model(tmp_path)
    assert aot.CompiledProgram.load(file) == program
    x = torch.randn(3, 4)
    torch.save((model.state_dict(), x), tmp_path / "state.pt")
    printed = subprocess_python.run_quietly(
        f"""
        import torch
        torch.set_float32_matmul_precision("highest")
        state, x = torch.load({str(tmp_path / "state.pt")!r})
        program = torch.tpu.aot.CompiledProgram.load({str(file)!r})
        y = program.bind(state)(x)
        torch.save(y.cpu(), {str(tmp_path / "result.pt")!r})
        stats = torch.tpu.dispatch_stats()
        print(stats["compiles"], stats["loads"], stats["programs"])
        """
    )
    assert printed == "0 1 1\n"
    with torch.no_grad():
        torch.testing.assert_close(torch.load(tmp_path / "result.pt"), model(x))


def test_flat_inputs_and_modes(tmp_path: Path) -> None:
    model, program, _ = saved_model(tmp_path)
    assert program.interface is not None
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    x = torch.randn(3, 4)
    inputs = [state[v.target] if v.target else x for v in program.interface.inputs]
    with torch.no_grad():
        expected = model(x)
    for mode in tpu.EagerMode:
        with tpu.set_eager_mode(mode):
            # What was recorded before runs before it, and what comes after reads its result.
            (y,) = program.run([*inputs[:-1], (x.to("tpu") * 2) / 2])
            torch.testing.assert_close((y + 0).cpu(), expected)
    wrong = (
        r"expected the parameter 0\.weight \(input 0\) to be float32\[8, 4\], got float32\[3, 4\]"
    )
    with pytest.raises(RuntimeError, match=wrong):
        program.run([x, *inputs[1:]])
    with pytest.raises(TypeError, match=r"the parameter 0\.bias \(input 1\) to be a tensor, got 3"):
        program.run([inputs[0], 3, *inputs[2:]])  # type: ignore[list-item]
    with pytest.raises(RuntimeError, match=f"expected {len(inputs)} inputs, got 1"):
        program.run([x])
    with pytest.raises(KeyError, match=r"expected a parameter named 0\.weight in the state"):
        program.bind({})
    with pytest.raises(KeyError, match=r"has none; it has 0\.bias, x"):
        program.bind({"0.bias": state["0.bias"], "x": x})
    with pytest.raises(TypeError, match=r"export, args\[0\]; not expected: args\[1\]"):
        program.bind(model)(x, x)


class Masked(torch.nn.Module):
    """Arguments in containers, by name and fixed ones."""

    def forward(
        self, x: torch.Tensor, batch: dict[str, Any], *, scale: torch.Tensor, half: bool
    ) -> torch.Tensor:
        y = x * batch["mask"] + batch["more"][1] * scale
        return y / 2 if half else y


def test_messages_name_the_argument() -> None:
    model = Masked()

    def batch(**other: Any) -> dict[str, Any]:
        return {"mask": torch.ones(2, 3), "more": [torch.ones(3), torch.ones(3)], **other}

    x, named = torch.ones(2, 3), {"scale": torch.ones(()), "half": True}
    run = aot.compile(model, "device", args=(x, batch()), kwargs=named).bind(model)
    torch.testing.assert_close(run(x, batch(), **named).cpu(), model(x, batch(), **named))
    cases: list[tuple[Any, Any, str]] = [
        (batch(mask=torch.ones(3, 3)), {}, "expected args[1]['mask'] (input 1) to be "
         "float32[2, 3], got float32[3, 3]"),
        (batch(mask=torch.ones(2, 3).long()), {}, "to be float32[2, 3], got int64[2, 3]"),
        (batch(mask=None), {}, "expected args[1]['mask'] (input 1) to be a tensor, got None"),
        (batch(mask=torch.ones(2, 3).to_sparse()), {}, "expected args[1]['mask'] (input 1) to be a "
         "dense tensor on tpu or cpu, got one of layout Sparse on cpu"),
        (batch(more=[torch.ones(3), torch.ones(4)]), {}, "expected args[1]['more'][1] (input 3)"),
        (batch(more=[torch.ones(3)]), {}, "; not given: args[1]['more'][1]"),
        (batch(extra=3), {}, "; not expected: args[1]['extra']"),
        (batch(more=(torch.ones(3), torch.ones(3))), {}, "of the structure TreeSpec("),
        (batch(), {"scale": torch.ones(2)}, "expected kwargs['scale'] (input 4) to be float32[]"),
        (batch(), {"half": False}, "True for kwargs['half'], which is now False; export it again"),
        (batch(), {"half": x}, "True for kwargs['half'], which is now float32[2, 3]"),
    ]  # fmt: skip
    for given, other, message in cases:
        with pytest.raises((RuntimeError, TypeError), match=re.escape(message)):
            run(x, given, **{**named, **other})
    with pytest.raises(
        TypeError, match=r"not given: kwargs\['scale'\]; not expected: kwargs\['s'\]"
    ):
        run(x, batch(), half=True, s=torch.ones(()))
    with pytest.raises(TypeError, match="bind: expected the model, its state dict or the exported"):
        run.program.bind(None)  # type: ignore[arg-type]


def test_names_of_many_arguments_are_cut_short() -> None:
    run = aot.compile(lambda x: x[0] + x[11], "device", args=([torch.ones(2)] * 12,)).bind({})
    with pytest.raises(
        TypeError, match=r"args\[0\]\[7\], \.\.\. \(12 in all\); not expected: args\["
    ):
        run([torch.ones(2)] * 13)


def test_file_that_others_can_write_is_not_run(tmp_path: Path) -> None:
    model, _, file = saved_model(tmp_path)
    assert file.stat().st_mode & 0o022 == 0
    file.chmod(0o666)
    program = aot.CompiledProgram.load(file)
    assert program.num_outputs == 1
    with pytest.raises(PermissionError, match=r"others may write to it \(mode 0666\).*run as code"):
        program.bind(model)(torch.randn(3, 4))
    trusted = aot.CompiledProgram.load(file, trusted=True)
    assert trusted.bind(model)(torch.randn(3, 4)).shape == (3, 8)


def test_damaged_file(tmp_path: Path) -> None:
    _, _, file = saved_model(tmp_path)
    with zipfile.ZipFile(file) as old:
        parts = {name: old.read(name) for name in old.namelist()}
    for change, message in (
        ({"executable": parts["executable"][:-1] + b"?"}, "checksum of its part 'executable'"),
        (
            {"program.json": parts["program.json"].replace(b'"format": 2', b'"format": 1')},
            "format 1",
        ),
        ({"program.json": b"{"}, r"expected a file written by CompiledProgram\.save"),
    ):
        with zipfile.ZipFile(file, "w") as new:
            for name, content in {**parts, **change}.items():
                new.writestr(name, content)
        with pytest.raises(ValueError, match=message):
            aot.CompiledProgram.load(file)


@needs_libtpu
def test_program_for_another_device(tmp_path: Path) -> None:
    model, here, _ = saved_model(tmp_path)
    for topology in ("v5e:1x1", "tpu7x:2x2x1"):
        program = aot.compile(model, topology, args=(torch.randn(3, 4),))
        assert program.identity.platform == "tpu"
        with pytest.raises(aot.MismatchError, match="cannot run here: the platform"):
            program.bind(model)
    for field, message in (
        ("plugin", "the plugin's build"),
        ("device_kind", "the device it"),
        ("host", "the processor it"),
    ):
        other = dataclasses.replace(here.identity, **{field: "another"})
        with pytest.raises(aot.MismatchError, match=f"{message}.* is another, here it is"):
            dataclasses.replace(here, identity=other).bind(model)
    with pytest.raises(aot.MismatchError, match="for 4 devices at once"):
        dataclasses.replace(here, num_devices=4).bind(model)


@needs_libtpu
def test_running_total_of_several_operations() -> None:
    class Total(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.logcumsumexp(0)

    # Reductions over windows have to be simple ones there.
    x = torch.randn(5, 5, 5, dtype=torch.bfloat16)
    assert aot.compile(Total(), "tpu7x:2x2x1", args=(x,)).num_outputs == 1


def test_text_has_no_interface() -> None:
    class Lowered:  # of another tool
        text = ADD

    program = aot.compile(Lowered(), "device")
    assert program.memory.arguments == 8 * MIB
    with pytest.raises(TypeError, match="a program that was given as text cannot be run from here"):
        program.run([torch.ones(1024, 1024)] * 2)


def test_device_as_topology() -> None:
    assert aot.topology("device").device_kind
    if tpu.get_platform_name() == "cpu":
        assert aot.topology("cpu").name == "cpu"
    with pytest.raises(ValueError, match="for the topology 'device' a program runs on one"):
        aot.compile_stablehlo(ADD, "device", num_replicas=2)
    with pytest.raises(aot.CompileError, match="undeclared SSA value") as raised:
        aot.compile_stablehlo(WRONG, "device")
    assert raised.value.path is not None
    Path(raised.value.path).unlink()


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


def test_a_topology_that_is_no_name() -> None:
    with pytest.raises(TypeError, match=r"expected the topology's name.*got int"):
        aot.compile(torch.nn.Linear(2, 2), 3, args=(torch.ones(2),))  # type: ignore[arg-type]


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


def test_refused_programs_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The latest ten are kept, other processes' among them; nothing else is touched."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for i in range(12):
        old = tmp_path / f"torch_tpu_failed_1_{i}.mlir"
        old.write_text("old")
        os.utime(old, (i, i))
    other = tmp_path / "torch_tpu_failed_notes.mlir"
    other.write_text("kept")
    with pytest.raises(aot.CompileError) as caught:
        aot.compile_stablehlo("nonsense", "device")
    assert caught.value.path is not None
    names = {path.name for path in tmp_path.iterdir()}
    expected = {f"torch_tpu_failed_1_{i}.mlir" for i in range(3, 12)}
    assert names == {*expected, other.name, Path(caught.value.path).name}
    assert Path(caught.value.path).read_text() == "nonsense"


def test_a_refused_program_that_cannot_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    with pytest.raises(aot.CompileError, match="could not be written to the temporary") as caught:
        aot.compile_stablehlo("nonsense", "device")
    assert caught.value.path is None


@pytest.mark.parametrize("topology", ["device", pytest.param("v5e:2x2", marks=needs_libtpu)])
def test_flags_the_compiler_refuses(topology: str) -> None:
    """The flag is named, among others and whatever its value is, and not the program."""
    model, x = torch.nn.Linear(2, 2), torch.ones(1, 2)
    good = {"xla_cpu_enable_fast_math": True, "xla_embed_ir_in_executable": False}
    assert aot.compile(model, topology, args=(x,), flags=good).name == "Linear"
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"xla_no_such_flag": 1}, "xla_no_such_flag = 1", "No such compile option"),
        ({**good, "xla_typo": "a", "xla_other": 2}, "xla_typo = 'a'", "No such compile option"),
        (
            {**good, "xla_cpu_enable_fast_math": "perhaps"},
            "xla_cpu_enable_fast_math = 'perhaps'",
            "not a valid bool",
        ),
    ]
    for flags, named, reason in cases:
        with pytest.raises(ValueError, match=f"{topology} refuses the flag {named}") as caught:
            aot.compile(model, topology, args=(x,), flags=flags)
        assert reason in str(caught.value)
    # The program's own fault.
    with pytest.raises(aot.CompileError, match="undeclared SSA value"):
        aot.compile_stablehlo(WRONG, topology, flags=good)


def test_programs_say_in_a_line_what_they_are(tmp_path: Path) -> None:
    model, x = torch.nn.Linear(64, 64), torch.ones(8, 64)
    program = aot.compile(model, "device", args=(x,))
    topology, size = program.topology, len(program.serialize()) / 1024
    line = f"<CompiledProgram 'Linear' for device ({topology.device_kind}): "
    for text in (str(program), repr(program)):
        assert text.startswith(line) and text.endswith(f", executable {size:.1f} KiB>")
        assert len(text) < 200
        if program.memory.peak:
            assert f"peak memory {program.memory.peak / 1024:.1f} KiB of " in text
    program.save(tmp_path / "model.tpu")
    loaded = aot.CompiledProgram.load(tmp_path / "model.tpu")
    assert repr(loaded) == repr(program) and loaded.summary() == program.summary()
    assert repr(loaded.bind(model)) == f"<BoundProgram of {program!r}>"
    lowered = to_stablehlo(model, x)
    counts = f"3 inputs, 1 outputs, {len(lowered.text):,} characters"
    assert repr(lowered) == f"<StableHLOProgram 'Linear' for tpu: {counts}>"


@pytest.mark.parametrize(
    ("program", "args", "name"),
    [
        (torch.nn.Linear(2, 2), (torch.ones(1, 2),), "Linear"),
        (torch.sin, (torch.ones(3),), "sin"),
        (lambda: torch.export.export(torch.nn.Tanh(), (torch.ones(3),)), None, "program"),
        (lambda: to_stablehlo(torch.nn.Tanh(), torch.ones(3)), None, "Tanh"),
        (ADD, None, "program"),
        (ADD.replace("module {", "module @adding {"), None, "adding"),
    ],
)
def test_names(program: Any, args: Any, name: str) -> None:
    if args is None and callable(program):
        program = program()
    assert aot.compile(program, "device", args=args).name == name


@needs_libtpu
def test_a_line_for_a_tpu(add: aot.CompiledProgram) -> None:
    assert repr(add).startswith("<CompiledProgram 'program' for v5e:2x2 (TPU v5 lite): peak memory")
    assert "MiB of 15.7 GiB (" in repr(add) and "1.05 MFLOP" in repr(add)


@pytest.mark.parametrize("place", ["cpu", "tpu"])
def test_inputs_without_elements(place: str) -> None:
    def function(x: torch.Tensor, y: torch.Tensor, unused: torch.Tensor) -> Any:
        return x + 1, y.sum(0) + x.sum(0), x.t()

    x, y, unused = torch.randn(0, 5), torch.randn(3, 5), torch.randn(2, 0)
    program = aot.compile(function, "device", args=(x, y, unused))
    results = program.bind({})(x.to(place), y.to(place), unused.to(place))
    for actual, expected in zip(results, function(x, y, unused), strict=True):
        assert actual.device.type == "tpu"
        torch.testing.assert_close(actual.cpu(), expected)


def test_a_tensor_as_the_only_argument() -> None:
    x = torch.rand(3, 4)
    model = torch.nn.Linear(4, 2)
    program = aot.compile(model, "device", args=x)
    torch.testing.assert_close(program.bind(model)(x.to("tpu")).cpu(), model(x))
    with pytest.raises(TypeError, match=r"a dict; arguments by name go into kwargs"):
        aot.compile(model, "device", args={"input": x})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"expected a tuple of example arguments, got a int"):
        aot.compile(model, "device", args=3)  # type: ignore[arg-type]


@needs_libtpu
def test_program_that_does_not_fit() -> None:
    with pytest.raises(aot.CompileError, match="exceeds available HBM") as raised:
        aot.compile_stablehlo(TOO_LARGE, "v5e:2x2")
    assert raised.value.code == "RESOURCE_EXHAUSTED"
    assert raised.value.path is not None
    Path(raised.value.path).unlink()
    peak = aot.compile_stablehlo(TOO_LARGE, "tpu7x:2x2x1").memory.peak
    assert peak is not None and peak >= 64 << 30


@needs_libtpu
def test_flags() -> None:
    flags = {"xla_tpu_enable_latency_hiding_scheduler": True}
    assert aot.compile_stablehlo(ADD, flags=flags).num_outputs == 1


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
def test_command_with_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, output = tmp_path / "model.pt2", tmp_path / "model.tpu"
    model = torch.nn.Linear(1024, 1024, bias=False)
    torch.export.save(torch.export.export(model, (torch.randn(8, 1024),)), file)
    arguments = [str(file), "--topology", "tpu7x:1x1x1", "--json", "--output", str(output)]
    assert command.main([*arguments, "--flag", "xla_tpu_enable_latency_hiding_scheduler=true"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["memory"]["arguments"] >= 4 * MIB and figures["num_inputs"] == 2
    assert figures["flops"] >= 2 * 8 * 1024 * 1024
    # What was compiled is shown again.
    assert command.main([str(output)]) == 0
    assert "peak memory" in capsys.readouterr().out
    assert command.main([str(file), "--topology", "device"]) == 0
    table = capsys.readouterr().out
    assert "4.0 MiB" in table and ("no flops" in table) == ("not known" in table)
    with pytest.raises(SystemExit):
        command.main([str(file), "--flag", "nothing"])
    assert "expected NAME=VALUE, got 'nothing'" in capsys.readouterr().err


@needs_libtpu
def test_command_with_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "add.mlir"
    file.write_text(ADD)
    assert command.main([str(file), "--topology", "v1:2x2"]) == 2
    assert "expected a topology" in capsys.readouterr().err
    for place, why in ((tmp_path, "Is a directory"), (tmp_path / "no" / "x", "No such file")):
        assert command.main([str(file), "--output", str(place)]) == 2
        assert capsys.readouterr().err.startswith(f"error: {place}: {why}")
    # The compiler's own refusal is another thing.
    file.write_text(ADD.replace("return", "give back"))
    assert command.main([str(file)]) == 1
    assert "refused the program" in capsys.readouterr().err


def test_command_with_other_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line and status 2, whichever way the command is called, and no compiler is needed."""
    exported, archive = tmp_path / "model.pt2", tmp_path / "other.zip"
    torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), exported)
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("some", "thing")
    broken = tmp_path / "broken.pt2"
    with zipfile.ZipFile(exported) as good, zipfile.ZipFile(broken, "w") as bad:
        for name in good.namelist():
            bad.writestr(name, b"{" if name.endswith("model.json") else good.read(name))
    contents = {
        "empty.mlir": (b"", "got an empty file"),
        "text.mlir": (b"hello world\n", "got something else"),
        "bytes.mlir": (bytes(range(128, 256)), "got something else"),
        "cut.pt2": (exported.read_bytes()[:500], "got a damaged archive"),
    }
    for name, (content, _) in contents.items():
        (tmp_path / name).write_bytes(content)
    cases = {name: message for name, (_, message) in contents.items()}
    cases |= {"missing.mlir": "missing.mlir: No such file or directory", "": ": Is a directory"}
    cases |= {"other.zip": "got another archive", "broken.pt2": "torch.export.load cannot read it"}
    for name, message in cases.items():
        for main in (command.main, lambda arguments: commands.main(["aot", *arguments])):
            assert main([str(tmp_path / name)]) == 2
            out, err = capsys.readouterr()
            assert not out and err.startswith("error: ") and message in err, err
            assert err.count("\n") == 1 and str(tmp_path / name) in err


@needs_libtpu
def test_command_when_the_disk_is_full(tmp_path: Path) -> None:
    file, output = tmp_path / "add.mlir", tmp_path / "add.tpu"
    file.write_text(ADD)
    done = subprocess.run(
        [sys.executable, "-m", "torch_tpu", "aot", str(file), "--output", str(output)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (2, f"error: {output}: File too large\n")
    assert os.listdir(tmp_path) == ["add.mlir"]


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
    assert aot_sweep.sweep(folder, file, topologies=one, without="f32", quiet=True) == []
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


@needs_libtpu
def test_training_step_written_for_a_tpu() -> None:
    def traced() -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)).to("tpu")
        optimizer = torch.optim.AdamW(model.parameters())

        @tpu.compile_step
        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            optimizer.step()
            return loss

        with tpu.precision("medium"):
            for _ in range(3):
                step(torch.ones(5, 8, device="tpu"))
        return step

    with aot.written_for_tpu():
        step = traced()
    program = aot.compile(step, "v5e:1x1")
    assert program.flops is not None and program.flops > 2 * 5 * (8 * 16 + 16 * 4) * 2
    assert program.memory.aliased > 0 and program.interface is None
    assert "reduce_precision" not in step.text()
    if tpu.get_platform_name() == "cpu":
        assert "reduce_precision" in traced().text()


def test_training_step_as_a_function() -> None:
    model = torch.nn.Linear(3, 2)

    def step(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        def loss(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
            return torch.func.functional_call(model, parameters, (x,)).square().sum()

        gradients, value = torch.func.grad_and_value(loss)(parameters)
        for name, gradient in gradients.items():
            parameters[name].sub_(0.1 * gradient)
        return value

    x = torch.randn(4, 3)
    expected = {name: p.detach().clone() for name, p in model.named_parameters()}
    actual = {name: p.to("tpu") for name, p in expected.items()}
    graph = make_fx(step)({name: p.clone() for name, p in expected.items()}, x)
    run = aot.compile(graph, "device", args=(expected, x)).bind({})
    for _ in range(3):
        torch.testing.assert_close(run(actual, x).cpu(), step(expected, x))
    for name, value in expected.items():
        compare.assert_same(actual[name], value, rtol=1e-5, atol=1e-6)
