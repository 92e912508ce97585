// Tensors without contents: empty and empty_strided take no device memory.
#include "eager/factories.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/arange.h>

#include "eager/device_context.h"
#include "eager/device_storage.h"
#include "eager/scalar_types.h"

namespace torch_tpu::eager {

namespace {

void check_options(std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                   std::optional<bool> pin_memory) {
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  TORCH_CHECK_NOT_IMPLEMENTED(layout.value_or(c10::Layout::Strided) == c10::Layout::Strided,
                              "the tpu device has only strided tensors, got layout ",
                              layout.value_or(c10::Layout::Strided));
  to_element_type(dtype.value_or(c10::get_default_dtype_as_scalartype()));
}

int device_of(std::optional<c10::Device> device) {
  const int index = device ? resolve_device(*device) : current_device();
  if (index > 0) check_device(index);
  return index;
}

}  // namespace

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                         std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  check_options(dtype, layout, pin_memory);
  at::detail::check_size_nonnegative(size);
  const c10::ScalarType type = dtype.value_or(c10::get_default_dtype_as_scalartype());
  const size_t nbytes = at::detail::computeStorageNbytes(size, stride, c10::elementSize(type));
  return make_tensor(nullptr, type, size, stride, 0, nbytes, device_of(device));
}

at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype,
                 std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                 std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> memory_format) {
  const auto strides = row_major_strides(size);
  at::Tensor t = empty_strided(size, strides, dtype, layout, device, pin_memory);
  if (memory_format && *memory_format != c10::MemoryFormat::Contiguous) {
    TORCH_CHECK(*memory_format != c10::MemoryFormat::Preserve, "unsupported memory format option ",
                *memory_format);
    t.unsafeGetTensorImpl()->empty_tensor_restride(*memory_format);
  }
  return t;
}

at::Tensor arange_start_step(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step,
                             std::optional<c10::ScalarType> dtype,
                             std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                             std::optional<bool> pin_memory) {
  const at::Tensor meta = at::arange(start, end, step, dtype, layout, c10::kMeta, std::nullopt);
  at::Tensor out =
      empty(meta.sizes(), meta.scalar_type(), layout, device, pin_memory, std::nullopt);
  return at::arange_out(out, start, end, step);
}

at::Tensor arange_start(const at::Scalar& start, const at::Scalar& end,
                        std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                        std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  return arange_start_step(start, end, 1, dtype, layout, device, pin_memory);
}

at::Tensor arange(const at::Scalar& end, std::optional<c10::ScalarType> dtype,
                  std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                  std::optional<bool> pin_memory) {
  return arange_start_step(0, end, 1, dtype, layout, device, pin_memory);
}

at::Tensor efficient_zero_tensor(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype,
                                 std::optional<c10::Layout> layout,
                                 std::optional<c10::Device> device,
                                 std::optional<bool> pin_memory) {
  return empty(size, dtype, layout, device, pin_memory, std::nullopt).zero_();
}

}  // namespace torch_tpu::eager
