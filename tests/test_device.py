"""The device and its Python interfaces: torch.tpu, torch.accelerator, torch.backends.tpu."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable

import pytest
import subprocess_python
import torch
from torch import nn

tpu = torch.tpu  # type: ignore[attr-defined]


def test_the_accelerator_is_the_tpu() -> None:
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("tpu")
    assert torch.accelerator.device_count() == tpu.device_count() >= 1
    assert torch.accelerator.current_device_index() == tpu.current_device() == 0
    torch.accelerator.set_device_index(0)
    with torch.accelerator.device_index(0):
        assert torch.accelerator.current_device_index() == 0
    torch.accelerator.synchronize()
    torch.accelerator.synchronize("tpu:0")


def test_names_of_torch_cuda_are_there() -> None:
    names = [
        "Event",
        "Stream",
        "stream",
        "set_stream",
        "current_stream",
        "default_stream",
        "current_device",
        "set_device",
        "device",
        "device_of",
        "device_count",
        "is_available",
        "is_initialized",
        "init",
        "synchronize",
        "get_device_name",
        "get_device_properties",
        "get_device_capability",
        "default_generators",
        "manual_seed",
        "manual_seed_all",
        "seed",
        "seed_all",
        "initial_seed",
        "get_rng_state",
        "get_rng_state_all",
        "set_rng_state",
        "set_rng_state_all",
        "get_amp_supported_dtype",
        "is_bf16_supported",
        "memory_allocated",
        "max_memory_allocated",
        "memory_reserved",
        "max_memory_reserved",
        "memory_stats",
        "mem_get_info",
        "reset_peak_memory_stats",
        "reset_accumulated_memory_stats",
        "empty_cache",
        "set_per_process_memory_fraction",
        "_lazy_init",
        "_is_in_bad_fork",
    ]
    assert [name for name in names if not hasattr(tpu, name)] == []
    assert [name for name in tpu.__all__ if not hasattr(tpu, name)] == []
    assert tpu._initialized
    assert torch.get_device_module("tpu") is tpu
    assert torch.utils.backend_registration._get_custom_mod_func("device_count")() >= 1


def test_properties() -> None:
    name = tpu.get_device_name()
    assert name.startswith("TPU")
    properties = tpu.get_device_properties()
    assert properties.name == name == tpu.get_device_name("tpu:0") == tpu.get_device_name(0)
    assert properties.total_memory > 2**30
    assert properties.multi_processor_count == 1
    assert properties.index == 0
    assert tpu.get_device_properties(torch.device("tpu", 0)) == properties
    assert tpu.get_plugin_path().endswith(".so")
    assert tpu.get_platform_name() == properties.platform
    assert tpu.get_platform_version()


def test_capability_lists_the_dtypes() -> None:
    supported = torch.accelerator.get_device_capability()["supported_dtypes"]
    assert supported == tpu.get_device_capability("tpu:0")["supported_dtypes"]
    assert {torch.bool, torch.int64, torch.float32, torch.bfloat16} <= supported
    for dtype in supported:
        assert torch.empty(2, dtype=dtype, device="tpu").dtype == dtype
    assert torch.qint8 not in supported


def test_current_device_contexts() -> None:
    with tpu.device(0):
        assert tpu.current_device() == 0
    with tpu.device("tpu:0"), tpu.device(None), tpu.device(-1):
        assert tpu.current_device() == 0
    with tpu.device_of(torch.ones(1, device="tpu")), tpu.device_of(torch.ones(1)):
        assert tpu.current_device() == 0
    tpu.set_device("tpu")
    tpu.set_device(0)
    tpu.set_device(-1)


@pytest.mark.parametrize(
    "use",
    [
        lambda index: tpu.set_device(index),
        lambda index: torch.accelerator.set_device_index(index),
        lambda index: torch.ones(1, device=f"tpu:{index}"),
        lambda index: torch.ones(1).to(f"tpu:{index}"),
        lambda index: tpu.synchronize(index),
        lambda index: torch.accelerator.synchronize(index),
        lambda index: tpu.get_device_properties(index),
        lambda index: tpu.memory_allocated(index),
        lambda index: tpu.current_stream(index),
        lambda index: torch.Stream(f"tpu:{index}"),
        lambda index: tpu.get_rng_state(index),
        lambda index: tpu.device(index).__enter__(),
    ],
)
def test_a_device_that_does_not_exist(use: Callable[[int], object]) -> None:
    index = tpu.device_count()
    with pytest.raises(RuntimeError, match=rf"tpu:{index} does not exist.*TORCH_TPU_CPU_DEVICES"):
        use(index)
    assert tpu.current_device() == 0


def test_other_devices_are_refused() -> None:
    for wrong in ("cpu", torch.device("meta"), "cuda:0"):
        with pytest.raises(ValueError, match="expected a tpu device"):
            tpu.synchronize(wrong)


def test_backends_module() -> None:
    import torch.backends.tpu as imported  # type: ignore[import-not-found]

    assert imported is torch.backends.tpu
    assert imported.is_available() and imported.is_built()
    import torch_tpu

    assert imported.version() == torch_tpu.__version__


def test_generated_methods() -> None:
    x = torch.ones(3)
    assert not x.is_tpu  # type: ignore[attr-defined]
    moved = x.tpu()  # type: ignore[attr-defined]
    assert moved.is_tpu and moved.device == torch.device("tpu", 0)
    module = nn.Linear(2, 2).tpu()  # type: ignore[operator]
    assert module.weight.device.type == "tpu"
    assert x.untyped_storage().tpu().device.type == "tpu"  # type: ignore[attr-defined]
    packed = nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)]).tpu()  # type: ignore[attr-defined]
    assert packed.data.device.type == "tpu"
    assert x.type("torch.tpu.FloatTensor").is_tpu  # type: ignore[attr-defined]
    assert moved.type() == "torch.tpu.FloatTensor"


def test_set_default_device() -> None:
    with torch.device("tpu"):
        assert torch.ones(2).device.type == "tpu"
        assert nn.Linear(2, 3).weight.device.type == "tpu"
        assert torch.tensor([1, 2]).device.type == "tpu"
    assert torch.ones(2).device.type == "cpu"


def test_module_to_keeps_parameters() -> None:
    embedding, head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
    head.weight = weight = embedding.weight
    model = nn.Sequential(embedding, head)
    before = list(model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    reference = copy.deepcopy(model)
    reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.5)
    alias = weight.data

    model.to("tpu")
    assert [id(p) for p in model.parameters()] == [id(p) for p in before]
    assert head.weight is embedding.weight is weight
    assert weight.device.type == "tpu" and isinstance(weight, nn.Parameter) and weight.is_leaf
    assert alias.device.type == "cpu"

    index = torch.tensor([0, 3, 3])
    for m, o, i in ((model, optimizer, index.to("tpu")), (reference, reference_optimizer, index)):
        m(i).square().sum().backward()
        o.step()
    expected = next(reference.parameters()).detach()
    torch.testing.assert_close(weight.detach().cpu(), expected)
    assert weight.grad is not None and weight.grad.device.type == "tpu"

    grad = weight.grad
    model.cpu()
    assert head.weight is embedding.weight is weight and weight.device.type == "cpu"
    assert weight.grad is not None and weight.grad.device.type == "cpu"
    torch.testing.assert_close(weight.grad, grad.cpu())
    torch.testing.assert_close(weight.detach(), expected)


def test_module_to_with_dtype_and_buffers() -> None:
    norm = nn.BatchNorm1d(3)
    parameters = list(norm.parameters())
    norm.to("tpu", torch.bfloat16)
    assert all(a is b for a, b in zip(parameters, norm.parameters(), strict=True))
    assert norm.weight.dtype == torch.bfloat16 and norm.weight.device.type == "tpu"
    assert norm.running_mean is not None and norm.running_mean.device.type == "tpu"
    assert norm.num_batches_tracked is not None
    assert norm.num_batches_tracked.dtype == torch.int64


def test_to_empty_from_meta() -> None:
    with torch.device("meta"):
        model = nn.Linear(3, 2)
    model = model.to_empty(device="tpu")
    nn.init.ones_(model.weight)
    nn.init.zeros_(model.bias)
    assert model(torch.ones(1, 3, device="tpu")).tolist() == [[3.0, 3.0]]


def test_data_assignment() -> None:
    p = nn.Parameter(torch.ones(2, 2))
    p.data = torch.full((3,), 2.0, device="tpu")
    assert p.device.type == "tpu" and p.tolist() == [2.0, 2.0, 2.0]
    p.data = p.data.cpu()
    assert p.device.type == "cpu" and p.tolist() == [2.0, 2.0, 2.0]


def test_deepcopy_and_pickle_of_a_module() -> None:
    model = nn.Linear(3, 2).to("tpu")
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.weight is not model.weight and other.weight.device.type == "tpu"
        assert torch.equal(other.weight, model.weight)
        with torch.no_grad():
            other.weight.zero_()
        assert not torch.equal(other.weight, model.weight)


def test_threads_have_their_own_current_device_and_stream() -> None:
    stream = torch.Stream("tpu")
    seen = {}

    def look() -> None:
        seen["stream"] = torch.accelerator.current_stream()

    with stream:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert seen["stream"] == tpu.default_stream() != stream


def test_threads_dispatch_concurrently() -> None:
    results: dict[int, torch.Tensor] = {}
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            x = torch.full((number + 2, 8), float(number), device="tpu", requires_grad=True)
            for _ in range(20):
                y = (x * 2 + number).relu().sum(0)
                y.sum().backward()
            assert x.grad is not None
            results[number] = (y.detach() + x.grad.sum()).cpu()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for number in range(6):
        rows = number + 2
        expected = rows * (3.0 * number) + (20 * 2.0 * rows * 8 if number > 0 else 0.0)
        assert results[number].tolist() == pytest.approx([expected] * 8)


@pytest.mark.single_operators
def test_dispatch_stats() -> None:
    tpu.reset_dispatch_stats()
    x = torch.ones(3, 7, device="tpu")
    for _ in range(4):
        x = x + 2
    stats = tpu.dispatch_stats()
    assert stats["ops"] == 5 and stats["programs"] == 5
    assert stats["cache_hits"] >= 3
    assert stats["compiles"] + stats["loads"] <= 2
    assert stats["compile_seconds"] >= 0 and stats["fallbacks"] == {}


def test_learning_rate_does_not_compile_again() -> None:
    x = torch.ones(5, 3, device="tpu")
    x * 1.25
    tpu.reset_dispatch_stats()
    for factor in (1.5, 2.5, 1e-3):
        x * factor
    assert tpu.dispatch_stats()["cache_hits"] == 3


FALLBACK = """
    import torch
    library = torch.library.Library("tests", "DEF")  # an operator with a CPU kernel only
    library.define("halve(Tensor x) -> Tensor")
    library.impl("halve", lambda x: x / 2, "CPU")
    x = torch.tensor([4.0, 2.0], device="tpu")

    def halve():
        try:
            result = torch.ops.tests.halve(x)
            assert result.device == x.device
            print(result.tolist())
        except NotImplementedError as error:
            print("refused" if "tests::halve" in str(error) else error)
"""


@pytest.mark.parametrize("policy", ["warn", "silent", "error"])
def test_fallback_policy_of_the_environment(policy: str) -> None:
    code = (
        FALLBACK
        + """
    halve()
    halve()
    print(torch.tpu.dispatch_stats()["fallbacks"])
    torch.tpu.reset_dispatch_stats()
    print(torch.tpu.dispatch_stats()["fallbacks"])
    """
    )
    out, errors = subprocess_python.outputs(code, TORCH_TPU_FALLBACK=policy)
    answer = "refused" if policy == "error" else "[2.0, 1.0]"
    assert out.splitlines() == [answer, answer, "{'tests::halve': 2}", "{}"]
    assert errors.count("tests::halve runs on the CPU") == (1 if policy == "warn" else 0)


def test_set_fallback() -> None:
    code = (
        FALLBACK
        + """
    with torch.tpu.set_fallback("error"):
        halve()
        with torch.tpu.set_fallback("silent"):
            halve()
        halve()
    halve()
    torch.tpu.set_fallback("error")
    halve()
    """
    )
    out, errors = subprocess_python.outputs(code)
    assert out.split("\n")[:-1] == ["refused", "[2.0, 1.0]", "refused", "[2.0, 1.0]", "refused"]
    assert errors.count("tests::halve runs on the CPU") == 1


def test_a_forked_child_cannot_use_the_device_of_its_parent() -> None:
    out = subprocess_python.run(
        """
        import os, torch
        x = torch.ones(4, device="tpu") + 1
        child = os.fork()
        if child == 0:
            assert torch.tpu._is_in_bad_fork() and not torch.tpu.is_initialized()
            torch.manual_seed(3)
            del x
            try:
                torch.ones(2, device="tpu") + 1
            except RuntimeError as error:
                print("spawn" in str(error), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print(x.tolist())
        """
    )
    assert out.split("\n")[:2] == ["True", "[2.0, 2.0, 2.0, 2.0]"]


def test_a_child_forked_before_first_use_has_the_device() -> None:
    out = subprocess_python.run(
        """
        import os, torch
        assert torch.tpu.is_available() and not torch.tpu.is_initialized()
        torch.manual_seed(0)
        torch.tpu.get_rng_state()
        assert not torch.tpu.is_initialized()
        child = os.fork()
        x = torch.ones(2, device="tpu") + 1
        assert torch.tpu.is_initialized()
        os.write(1, f"{x.tolist()}\\n".encode())
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        """
    )
    assert out == "[2.0, 2.0]\n" * 2


def test_several_processes_by_spawn() -> None:
    out = subprocess_python.run(
        """
        import torch, torch.multiprocessing as mp
        torch.ones(1, device="tpu").add_(1)
        from torch.utils.data import DataLoader, TensorDataset
        data = TensorDataset(torch.arange(12.0))
        for context in ("spawn", "fork"):
            loader = DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context=context)
            print([batch[0].to("tpu").sum().item() for batch in loader])
        """
    )
    assert out == "[6.0, 22.0, 38.0]\n" * 2
