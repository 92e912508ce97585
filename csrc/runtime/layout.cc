#include "runtime/layout.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace torch_tpu::runtime {

namespace {

using Key = std::pair<stablehlo::ElementType, stablehlo::Dims>;

// How many array types describe_live_arrays() lists.
constexpr size_t kListed = 5;

struct Layouts {
  std::mutex mutex;
  std::map<Key, std::unique_ptr<Layout>> by_type;
};

// Never destroyed: buffers may die later than static objects.
Layouts& layouts() {
  static Layouts& all = *std::make_unique<Layouts>().release();
  return all;
}

}  // namespace

const Layout* intern_layout(const stablehlo::TensorType& type) {
  Layouts& all = layouts();
  const std::lock_guard lock(all.mutex);
  std::unique_ptr<Layout>& layout = all.by_type[Key(type.dtype, type.dims)];
  if (!layout) {
    layout = std::make_unique<Layout>();
    layout->type = type;
    layout->numel = type.numel();
    layout->nbytes = static_cast<size_t>(layout->numel) * stablehlo::byte_size(type.dtype);
  }
  return layout.get();
}

std::string describe_live_arrays() {
  struct Line {
    const Layout* layout;
    int64_t count;
    double bytes() const {
      return static_cast<double>(count) * static_cast<double>(layout->nbytes);
    }
  };
  std::vector<Line> lines;
  {
    Layouts& all = layouts();
    const std::lock_guard lock(all.mutex);
    for (const auto& [key, layout] : all.by_type) {
      const int64_t count = layout->live.load(std::memory_order_relaxed);
      if (count > 0 && layout->nbytes > 0) lines.push_back({layout.get(), count});
    }
  }
  std::sort(lines.begin(), lines.end(),
            [](const Line& a, const Line& b) { return a.bytes() > b.bytes(); });
  std::string out;
  for (size_t i = 0; i < std::min(lines.size(), kListed); ++i) {
    char mebibytes[32];
    std::snprintf(mebibytes, sizeof mebibytes, "%.1f", lines[i].bytes() / (1 << 20));
    const stablehlo::TensorType& type = lines[i].layout->type;
    out += (i > 0 ? ", " : "") + std::to_string(lines[i].count) + " x " +
           std::string(stablehlo::name(type.dtype)) + stablehlo::to_string(type.dims) + " = " +
           mebibytes + " MiB";
  }
  return out;
}

}  // namespace torch_tpu::runtime
