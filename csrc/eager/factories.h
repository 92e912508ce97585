#pragma once

#include <ATen/core/Tensor.h>

namespace torch_tpu::eager {

// aten::empty.memory_format and aten::empty_strided.
at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype,
                 std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                 std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> memory_format);
at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                         std::optional<c10::Device> device, std::optional<bool> pin_memory);

// aten::arange and its overloads: how many elements there are follows from the numbers, which are
// operands of the program; so the length is worked out first and the program fills a tensor.
at::Tensor arange(const at::Scalar& end, std::optional<c10::ScalarType> dtype,
                  std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                  std::optional<bool> pin_memory);
at::Tensor arange_start(const at::Scalar& start, const at::Scalar& end,
                        std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                        std::optional<c10::Device> device, std::optional<bool> pin_memory);
at::Tensor arange_start_step(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step,
                             std::optional<c10::ScalarType> dtype,
                             std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                             std::optional<bool> pin_memory);

// aten::_efficientzerotensor: ordinary zeros, which one program fills.
at::Tensor efficient_zero_tensor(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype,
                                 std::optional<c10::Layout> layout,
                                 std::optional<c10::Device> device, std::optional<bool> pin_memory);

}  // namespace torch_tpu::eager
