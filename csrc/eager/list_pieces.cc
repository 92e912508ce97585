#include "eager/list_pieces.h"

#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>

#include <utility>

#include "runtime/hash.h"
#include "runtime/periodic_pieces.h"

namespace torch_tpu::eager {

namespace {

// Shorter lists stay as they are: more programs take more time to start.
constexpr size_t kMinList = 96;

thread_local ListPiece current;

class PieceScope {
 public:
  PieceScope() : before_(current) {}
  ~PieceScope() { current = before_; }
  PieceScope(const PieceScope&) = delete;
  PieceScope& operator=(const PieceScope&) = delete;

 private:
  const ListPiece before_;
};

uint64_t description(const at::Tensor& tensor) {
  uint64_t hash = static_cast<uint64_t>(tensor.scalar_type());
  for (const int64_t size : tensor.sizes()) hash = runtime::mix(hash, static_cast<uint64_t>(size));
  return hash;
}

// A model's lists are the same in each step. (Any division will do for lists with the same hash.)
const std::vector<size_t>& pieces_of(const c10::List<at::Tensor>& tensors) {
  struct Known {
    uint64_t hash = 0;
    std::vector<size_t> ends;
  };
  constexpr size_t kKept = 16;
  thread_local std::vector<Known> known;
  thread_local size_t oldest = 0;

  static const std::vector<size_t> whole;
  std::vector<uint64_t> elements;
  elements.reserve(tensors.size());
  uint64_t hash = tensors.size();
  bool shared = false;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !tensor.has_storage()) return whole;
    elements.push_back(description(tensor));
    hash = runtime::mix(hash, elements.back());
    shared |= tensor.storage().nbytes() != tensor.nbytes();
  }
  // Writing one view after the other needs all that was written before.
  if (shared) return whole;
  for (const Known& k : known) {
    if (k.hash == hash && k.ends.back() == tensors.size()) return k.ends;
  }
  Known added{hash, runtime::periodic_pieces(elements)};
  if (known.size() < kKept) return known.emplace_back(std::move(added)).ends;
  known[oldest] = std::move(added);
  return known[std::exchange(oldest, (oldest + 1) % kKept)].ends;
}

c10::IValue part_of(const c10::IValue& list, size_t begin, size_t end) {
  const c10::impl::GenericList all = list.toList();
  if (all.empty()) return list;
  c10::impl::GenericList part(all.elementType());
  part.reserve(end - begin);
  for (size_t i = begin; i < end; ++i) part.push_back(all.get(i));
  return part;
}

}  // namespace

ListPiece current_list_piece() { return current; }

bool call_in_pieces(const OperatorInfo& info, torch::jit::Stack& stack,
                    c10::function_ref<void(torch::jit::Stack&)> call) {
  const size_t count = info.arguments.size();
  const size_t base = stack.size() - count;
  if (!info.element_by_element || !stack[base].isTensorList()) return false;
  const c10::List<at::Tensor> first = stack[base].toTensorList();
  const size_t n = first.size();
  if (n < kMinList) return false;
  for (size_t i = 0; i < count; ++i) {
    if (!stack[base + i].isList()) continue;
    const size_t length = stack[base + i].toListRef().size();
    if (length != n && length != 0) return false;  // it is wrong, and will be refused as a whole
  }
  const std::vector<size_t> ends =
      pieces_of(first);  // a copy: calls may come to lists of their own
  if (ends.size() <= 1) return false;

  const torch::jit::Stack arguments = torch::jit::pop(stack, count);
  std::vector<c10::impl::GenericList> results;
  const PieceScope scope;
  for (size_t k = 0; k < ends.size(); ++k) {
    torch::jit::Stack piece;
    for (const c10::IValue& argument : arguments) {
      piece.push_back(argument.isList() ? part_of(argument, k ? ends[k - 1] : 0, ends[k])
                                        : argument);
    }
    current = {static_cast<uint32_t>(k + 1), k + 1 == ends.size()};
    call(piece);
    for (size_t r = 0; r < piece.size(); ++r) {
      const c10::impl::GenericList part = piece[r].toList();
      if (k == 0) results.emplace_back(part.elementType());
      results[r].append(part);
    }
  }
  for (c10::impl::GenericList& list : results) stack.emplace_back(std::move(list));
  return true;
}

}  // namespace torch_tpu::eager
