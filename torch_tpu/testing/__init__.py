"""PyTorch's own conformance data, run on the device "tpu" and compared with the CPU.

The data are the operator, module and optimizer databases of ``torch.testing._internal``, which need
what the extra ``torch_tpu[test]`` installs. Run ``python -m torch_tpu.testing --help``.
"""
