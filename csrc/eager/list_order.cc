#include "eager/list_order.h"

#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "eager/device_storage.h"

namespace torch_tpu::eager {

namespace {

// What the order is if it matters.
ListOrder order_of(const OperatorInfo& info) {
  static const std::set<std::string_view> parts{"aten::split_copy", "aten::split_with_sizes_copy",
                                                "aten::unbind_copy"};
  if (!info.mutates_only) return ListOrder::kFree;
  const ArgumentInfo &first = info.arguments.front(), &last = info.arguments.back();
  if (first.kind == ArgumentKind::kTensorList && first.written && !first.is_out) {
    return ListOrder::kEntries;
  }
  return last.is_out && parts.contains(info.name) ? ListOrder::kParts : ListOrder::kFree;
}

// The memory from a tensor's first element to its last.
struct Extent {
  const DeviceStorage* storage;
  int64_t begin, end;  // bytes
  size_t entry;
  bool written;
};

class Extents {
 public:
  void add(const at::Tensor& t, size_t entry, bool written) {
    if (!is_tpu(t) || t.numel() == 0) return;
    int64_t last = t.storage_offset();
    for (int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
    const auto width = static_cast<int64_t>(t.itemsize());
    extents_.push_back(
        {&device_storage(t), t.storage_offset() * width, (last + 1) * width, entry, written});
  }

  // Whether one that is written overlaps one of a later entry.
  bool order_matters() {
    std::ranges::sort(extents_, [](const Extent& a, const Extent& b) {
      return std::tie(a.storage, a.begin) < std::tie(b.storage, b.begin);
    });
    for (auto a = extents_.begin(); a != extents_.end(); ++a) {
      for (auto b = a + 1; b != extents_.end() && b->storage == a->storage && b->begin < a->end;
           ++b) {
        if ((a->written && a->entry < b->entry) || (b->written && b->entry < a->entry)) return true;
      }
    }
    return false;
  }

 private:
  std::vector<Extent> extents_;
};

at::Tensor tensor_of(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

}  // namespace

ListOrder list_order(const OperatorInfo& info, std::span<const c10::IValue> arguments) {
  const ListOrder order = order_of(info);
  if (order == ListOrder::kFree) return order;
  const bool parts = order == ListOrder::kParts;
  const size_t count = arguments[parts ? arguments.size() - 1 : 0].toListRef().size();
  if (count < 2) return ListOrder::kFree;
  Extents extents;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const ArgumentInfo& info_i = info.arguments[i];
    if (info_i.kind == ArgumentKind::kTensorList) {
      const auto list = arguments[i].toListRef();
      for (size_t e = 0; e < list.size(); ++e) extents.add(tensor_of(list[e]), e, info_i.written);
    } else if (info_i.kind == ArgumentKind::kTensor) {
      // Each entry reads it, the last one as well.
      extents.add(tensor_of(arguments[i]), count - 1, false);
    }
  }
  return extents.order_matters() ? order : ListOrder::kFree;
}

void check_entries(const OperatorInfo& info, std::span<const c10::IValue> arguments) {
  if (order_of(info) != ListOrder::kEntries || !info.name.starts_with("aten::_foreach_")) return;
  const auto written = arguments[0].toListRef();
  // Which may write the same to all of them.
  const bool may_repeat = info.name == "aten::_foreach_zero_";
  for (size_t e = 0; e < written.size(); ++e) {
    const at::Tensor w = tensor_of(written[e]);
    if (!is_tpu(w)) continue;
    if (!may_repeat) at::assert_no_internal_overlap(w);
    for (size_t i = 1; i < arguments.size(); ++i) {
      at::Tensor r;
      if (info.arguments[i].kind == ArgumentKind::kTensor) r = tensor_of(arguments[i]);
      if (info.arguments[i].kind == ArgumentKind::kTensorList) {
        const auto list = arguments[i].toListRef();
        if (list.size() == written.size()) r = tensor_of(list[e]);
      }
      if (is_tpu(r) && !r.is_same(w)) at::assert_no_partial_overlap(w, r);
    }
  }
}

}  // namespace torch_tpu::eager
