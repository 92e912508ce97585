#include "runtime/layout.h"

#include <map>
#include <memory>
#include <mutex>

namespace torch_tpu::runtime {

const Layout* intern_layout(const stablehlo::TensorType& type) {
  using Key = std::pair<stablehlo::ElementType, stablehlo::Dims>;
  static std::mutex mutex;
  static std::map<Key, std::unique_ptr<Layout>> layouts;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Layout>& layout = layouts[Key(type.dtype, type.dims)];
  if (!layout) {
    layout = std::make_unique<Layout>();
    layout->type = type;
    layout->numel = type.numel();
    layout->nbytes = static_cast<size_t>(layout->numel) * stablehlo::byte_size(type.dtype);
  }
  return layout.get();
}

}  // namespace torch_tpu::runtime
