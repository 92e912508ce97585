"""Sparse tensors: they live on the device, and the CPU computes with them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

DENSE = torch.tensor([[0.0, 2.0, 0.0], [1.0, 0.0, 3.0]])
LAYOUTS = [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc]

pytestmark = pytest.mark.filterwarnings("ignore:Sparse:UserWarning")


@pytest.fixture(autouse=True)
def no_warnings_of_the_cpu() -> Iterator[None]:
    with torch.tpu.set_fallback("silent"):  # type: ignore[attr-defined]
        yield


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_there_and_back(layout: torch.layout) -> None:
    there = DENSE.to_sparse(layout=layout).to("tpu")
    assert there.device.type == "tpu" and there.layout is layout
    assert there.values().device.type == "tpu"
    assert torch.equal(there.cpu().to_dense(), DENSE)
    assert torch.equal(there.to_dense().cpu(), DENSE)
    assert torch.equal(DENSE.to("tpu").to_sparse(layout=layout).to_dense().cpu(), DENSE)


@pytest.mark.parametrize("layout", LAYOUTS[:2], ids=str)
def test_products(layout: torch.layout) -> None:
    other = torch.randn(3, 4)
    product = DENSE.to("tpu").to_sparse(layout=layout) @ other.to("tpu")
    torch.testing.assert_close(product.cpu(), DENSE @ other)


def test_made_on_the_device() -> None:
    indices = torch.tensor([[0, 1, 1], [2, 0, 0]], device="tpu")
    made = torch.sparse_coo_tensor(indices, torch.tensor([1.0, 2.0, 3.0], device="tpu"), (2, 3))
    assert not made.is_coalesced()
    assert made.coalesce().values().tolist() == [1.0, 5.0]
    assert (made + made).to_dense().tolist() == [[0.0, 0.0, 2.0], [10.0, 0.0, 0.0]]


def test_written_in_place() -> None:
    there = DENSE.to_sparse().to("tpu")
    there.mul_(2)
    assert torch.equal(there.to_dense().cpu(), 2 * DENSE)
    dense = torch.ones(2, 3, device="tpu")
    dense.add_(there)
    assert torch.equal(dense.cpu(), 1 + 2 * DENSE)


def test_embedding_with_sparse_gradients() -> None:
    weights = []
    for device in ("cpu", "tpu"):
        torch.manual_seed(0)
        embedding = torch.nn.Embedding(5, 3, sparse=True).to(device)
        optimizer = torch.optim.SparseAdam(embedding.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            (embedding(torch.tensor([1, 1, 2], device=device)) ** 2).sum().backward()
            assert embedding.weight.grad is not None and embedding.weight.grad.is_sparse
            optimizer.step()
        weights.append(embedding.weight.detach().cpu())
    torch.testing.assert_close(weights[1], weights[0])
