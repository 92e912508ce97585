"""What `import torch` does because the package is installed, and what it does not."""

from __future__ import annotations

import subprocess_python


def test_import_is_silent_and_light() -> None:
    out = subprocess_python.run_quietly(
        """
        import sys
        import torch
        assert torch.tpu.is_available() and torch.tpu.device_count() == 1
        assert not torch.tpu.is_initialized()
        loaded = open("/proc/self/maps").read()
        heavy = ("torch._dynamo", "torch._inductor", "sympy")
        print([name for name in heavy if name in sys.modules])
        print("pjrt" in loaded)
        print(torch.device("tpu"), torch.device("tpu:1").index)
        """,
    )
    with_it = out.split("\n")
    without = subprocess_python.run(
        """
        import sys, torch
        heavy = ("torch._dynamo", "torch._inductor", "sympy")
        print([name for name in heavy if name in sys.modules])
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    ).split("\n")
    assert with_it[0] == without[0]
    assert with_it[1:3] == ["False", "tpu 1"]


def test_use_is_silent() -> None:
    out = subprocess_python.run_quietly(
        """
        import torch
        print((torch.ones(2, device="tpu") + 1).tolist())
        """
    )
    assert out == "[2.0, 2.0]\n"


def test_modules_imported_are_few() -> None:
    code = "import sys, torch; print(*sys.modules)"
    with_it = set(subprocess_python.run(code).split())
    without = set(subprocess_python.run(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0").split())
    extra = {name.split(".")[0] for name in with_it - without}
    assert "torch_tpu" in extra
    assert len(with_it - without) < 60, sorted(with_it - without)


def test_autoload_can_be_turned_off() -> None:
    out = subprocess_python.run_quietly(
        """
        import torch
        print(hasattr(torch, "tpu"))
        try:
            torch.device("tpu")
        except RuntimeError:
            print("unknown")
        import torch_tpu
        print(torch_tpu.__version__ != "")
        torch_tpu._loader.load()
        torch_tpu._loader.load()
        torch_tpu.load()
        print(torch.ones(1, device="tpu").item())
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert out == "False\nunknown\nTrue\n1.0\n"


def test_importing_the_package_first() -> None:
    code = "import torch_tpu, torch; print(torch.ones(1, device='tpu').item(), torch_tpu.load())"
    assert subprocess_python.run_quietly(code) == "1.0 None\n"


def test_pytorch_is_not_changed() -> None:
    # Everything reachable as an attribute of torch's modules and main classes is the same object
    # type with and without the device, except what PyTorch itself adds for a renamed backend.
    code = """
        import sys, torch, torch.nn as nn, torch.optim, torch.utils.checkpoint, torch.amp
        places = {name: vars(m) for name, m in sorted(sys.modules.items())
                  if name.split(".")[0] == "torch" and m is not None}
        for c in (torch.Tensor, nn.Module, torch.optim.Optimizer, torch.Generator, nn.Parameter,
                  torch.TypedStorage, torch.UntypedStorage, torch.nn.utils.rnn.PackedSequence):
            places[c.__module__ + "." + c.__name__] = vars(c)
        for place, names in places.items():
            if place.startswith(("torch.tpu", "torch.backends.tpu")):
                continue
            for name, value in names.items():
                where = getattr(value, "__module__", None)
                print(place, name, type(value).__name__, where, sep="|")
    """
    with_it = set(subprocess_python.run(code).split("\n"))
    without = set(subprocess_python.run(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0").split("\n"))
    changed = {tuple(line.split("|")[:2]) for line in with_it ^ without}
    allowed = {"tpu", "is_tpu", "_is_tpu", "TPU", "__warningregistry__"}
    unexpected = {
        (place, name)
        for place, name in changed
        if name not in allowed and not place.startswith(("torch.utils.backend_registration",))
    }
    assert not unexpected, sorted(unexpected)


def test_dynamo_can_be_imported() -> None:
    out = subprocess_python.run_quietly(
        """
        import torch
        import torch._dynamo
        from torch._dynamo.device_interface import get_interface_for_device
        print(get_interface_for_device("tpu").is_available())
        compiled = torch.compile(lambda x: x.sin() + 1, backend="eager")
        x = torch.ones(3, device="tpu")
        print(torch.equal(compiled(x), x.sin() + 1))
        """
    )
    assert out == "True\nTrue\n"


def test_a_missing_plugin() -> None:
    out = subprocess_python.run(
        """
        import torch
        print(torch.tpu.is_available(), torch.tpu.device_count())
        for use in (lambda: torch.ones(1, device="tpu"), torch.tpu.init, torch.tpu.get_device_name):
            try:
                use()
            except RuntimeError as error:
                print("TORCH_TPU_PJRT_PLUGIN" in str(error) and "/nowhere/plugin.so" in str(error))
        print((torch.ones(2) + 1).sum().item())
        torch.manual_seed(1)
        """,
        TORCH_TPU_PJRT_PLUGIN="/nowhere/plugin.so",
    )
    assert out == "False 0\nTrue\nTrue\nTrue\n4.0\n"


def test_a_broken_plugin() -> None:
    out = subprocess_python.run(
        """
        import os, torch
        os.environ["TORCH_TPU_PJRT_PLUGIN"] = torch._C.__file__
        print(torch.tpu.is_available())
        for _ in range(2):
            try:
                torch.ones(2, device="tpu")
            except RuntimeError as error:
                print(torch._C.__file__ in str(error), "GetPjrtApi" in str(error))
        """
    )
    assert out == "False\nTrue True\nTrue True\n"


def test_a_wrong_number_of_devices() -> None:
    for number in ("0", "many", "-1", "100000"):
        error = subprocess_python.run_failing(
            "import torch; torch.ones(1, device='tpu')", TORCH_TPU_CPU_DEVICES=number
        )
        assert "TORCH_TPU_CPU_DEVICES" in error and number in error


def test_an_unknown_fallback_policy() -> None:
    error = subprocess_python.run_failing(
        "import torch; torch.tpu.set_fallback('maybe')", TORCH_TPU_FALLBACK=""
    )
    assert "'warn', 'silent' or 'error'" in error and "maybe" in error


def test_exit_with_work_in_flight() -> None:
    for _ in range(3):
        subprocess_python.run_quietly(
            """
            import torch
            x = torch.ones(500, 500, device="tpu")
            for _ in range(30):
                x = x @ x / 500
            host = torch.empty(500, 500, pin_memory=True).copy_(x, non_blocking=True)
            """
        )
