#include "eager/call_state.h"

#include <bit>
#include <cstring>

#include "eager/device_context.h"
#include "eager/moving_views.h"
#include "eager/scalar_types.h"
#include "eager/trace.h"

namespace torch_tpu::eager {

namespace {

// Beyond this many storages slots are found by hashing instead of a linear search.
constexpr size_t kIndexFrom = 24;

// The first word of a key: the operator's address, whose lowest bit and highest 17 are free, and
// what holds for the whole call.
constexpr int kPrecisionShift = 48;
constexpr int kFloatTypeShift = 56;
constexpr uint64_t kPrecisionMask = ((uint64_t{1} << kPrecisionBits) - 1) << kPrecisionShift;

enum Tag : uint64_t {
  kNone = 1,
  kTpuTensor,
  kCpuScalar,
  kKnown,
  kOperand,
  kList,
  kInt,
  kBool,
  kString,
  kDtype,
};

uint64_t bits_of(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

class Gatherer {
 public:
  Gatherer(const OperatorInfo* info, bool all_known, CallState& state)
      : info_(info), all_known_(all_known), state_(state), key_(state.key) {}

  // Without an operator: only tpu tensors, whole numbers and None.
  void value(const c10::IValue& value) {
    if (value.isTensor()) {
      TORCH_INTERNAL_ASSERT(!value.toTensor().defined() || is_tpu(value.toTensor()));
      tensor(value.toTensor());
    } else if (value.isNone()) {
      key_.push_back(kNone);
    } else {
      key_.push_back(kInt);
      key_.push_back(static_cast<uint64_t>(value.toInt()));
    }
  }

  void argument(const ArgumentInfo& arg, const c10::IValue& value) {
    if (arg.kind == ArgumentKind::kIgnored) return;
    if (value.isNone()) {
      key_.push_back(kNone);
      return;
    }
    switch (arg.kind) {
      case ArgumentKind::kTensor:
        tensor(value.toTensor());
        break;
      case ArgumentKind::kTensorList:
        tensor_list(value);
        break;
      case ArgumentKind::kNumber:
        number(value, arg.known_number, true);
        break;
      case ArgumentKind::kNumberList:
        number_list(value, arg.known_number);
        break;
      case ArgumentKind::kInt:
        key_.push_back(kInt);
        key_.push_back(static_cast<uint64_t>(value.toInt()));
        break;
      case ArgumentKind::kIntList:
        int_list(value);
        break;
      case ArgumentKind::kBool:
        key_.push_back(kBool | (value.toBool() ? 1u << 8 : 0));
        break;
      case ArgumentKind::kBoolList: {
        const auto list = value.toBoolList();
        key_.push_back(kList | list.size() << 8);
        for (const bool b : list) key_.push_back(b);
        break;
      }
      case ArgumentKind::kString: {
        const std::string& s = value.toStringRef();
        key_.push_back(kString | s.size() << 8);
        for (size_t i = 0; i < s.size(); i += 8) {
          uint64_t word = 0;
          std::memcpy(&word, s.data() + i, std::min<size_t>(8, s.size() - i));
          key_.push_back(word);
        }
        break;
      }
      case ArgumentKind::kDtype:
        key_.push_back(kDtype | static_cast<uint64_t>(value.toInt()) << 8);
        break;
      case ArgumentKind::kGenerator:
        state_.generator = value.toGenerator();
        break;
      case ArgumentKind::kIgnored:
        break;
    }
  }

 private:
  void tensor(const at::Tensor& t) {
    if (!t.defined()) {
      key_.push_back(kNone);
      return;
    }
    if (t.device().type() != kTpu) {
      cpu_scalar(t);
      return;
    }
    const int device = t.device().index();
    if (state_.device < 0) {
      state_.device = device;
    } else {
      TORCH_CHECK(device == state_.device,
                  "Expected all tensors to be on the same device, but found at least two devices, "
                  "tpu:",
                  state_.device, " and tpu:", device, "!");
    }
    DeviceStorage& storage = device_storage(t);
    const int slot = state_.slot(storage);
    const Contents& contents = state_.contents[static_cast<size_t>(slot)];
    const auto sizes = t.sizes(), strides = t.strides();
    key_.push_back(kTpuTensor | static_cast<uint64_t>(t.scalar_type()) << 8 |
                   static_cast<uint64_t>(sizes.size()) << 16 | static_cast<uint64_t>(slot) << 32 |
                   static_cast<uint64_t>(t.is_conj()) << 62 |
                   static_cast<uint64_t>(t.is_neg()) << 63);
    // An unfilled storage is known by its size: writing to a part of it makes the whole.
    if (contents.filled()) {
      state_.layout_places.push_back(static_cast<uint32_t>(key_.size()));
      key_.push_back(reinterpret_cast<uint64_t>(contents.layout));
      if (t.numel() != contents.layout->numel) partial_view(t, slot, contents);
    } else {
      key_.push_back(t.storage().nbytes() << 1 | 1);
    }
    ++state_.num_tensors;
    key_.push_back(static_cast<uint64_t>(t.storage_offset()));
    key_.insert(key_.end(), sizes.begin(), sizes.end());
    key_.insert(key_.end(), strides.begin(), strides.end());
  }

  void partial_view(const at::Tensor& t, int slot, const Contents& contents) {
    if (t.numel() == 0 || contents.layout->type.dtype != to_element_type(t.scalar_type())) return;
    state_.partial_views.push_back({state_.num_tensors, static_cast<uint32_t>(key_.size()),
                                    static_cast<uint32_t>(t.dim()), static_cast<uint32_t>(slot)});
  }

  void cpu_scalar(const at::Tensor& t) {
    if (!is_cpu_scalar(t)) {
      TORCH_CHECK(t.device().is_cpu() || t.device().is_meta(), what(), ": cannot use a tensor on ",
                  t.device(), " together with tpu tensors");
      TORCH_CHECK(
          false, "Expected all tensors to be on the same device, but found at least two devices, ",
          "tpu:", std::max(state_.device, 0), " and ", t.device(), "! (when calling ", what(), ")");
    }
    key_.push_back(kCpuScalar | static_cast<uint64_t>(t.scalar_type()) << 8 |
                   static_cast<uint64_t>(t.unsafeGetTensorImpl()->is_wrapped_number()) << 16);
    const NumberOperand operand = number_operand(t);
    if (all_known_) {
      key_.insert(key_.end(), operand.bits.begin(), operand.bits.end());
    } else {
      state_.numbers.push_back(operand);
    }
  }

  void tensor_list(const c10::IValue& value) {
    const auto list = value.toListRef();
    key_.push_back(kList | list.size() << 8);
    for (const c10::IValue& entry : list) {
      if (entry.isNone()) {
        key_.push_back(kNone);
      } else {
        tensor(entry.toTensor());
      }
    }
  }

  void number(const c10::IValue& value, bool known, bool special) {
    const NumberOperand operand = number_operand(value);
    const uint64_t type = static_cast<uint64_t>(operand.type) << 8;
    if (known || all_known_ || (special && is_special_number(value))) {
      key_.push_back(kKnown | type);
      key_.insert(key_.end(), operand.bits.begin(), operand.bits.end());
    } else {
      key_.push_back(kOperand | type);
      state_.numbers.push_back(operand);
    }
  }

  void number_list(const c10::IValue& value, bool known) {
    if (value.isDoubleList()) {
      const auto list = value.toDoubleList();
      key_.push_back(kList | list.size() << 8);
      for (const double d : list) number(c10::IValue(d), known, false);
      return;
    }
    const auto list = value.toListRef();
    key_.push_back(kList | list.size() << 8);
    for (const c10::IValue& entry : list) number(entry, known, false);
  }

  void int_list(const c10::IValue& value) {
    if (value.isInt()) {
      key_.push_back(kInt);
      key_.push_back(static_cast<uint64_t>(value.toInt()));
      return;
    }
    const auto list = value.toIntList();
    key_.push_back(kList | list.size() << 8);
    for (const int64_t i : list) key_.push_back(static_cast<uint64_t>(i));
  }

  std::string what() const { return info_->qualified(); }

  const OperatorInfo* info_;
  const bool all_known_;
  CallState& state_;
  std::vector<uint64_t>& key_;
};

struct Pool {
  std::vector<std::unique_ptr<CallState>> states;
  size_t depth = 0;
};

Pool& pool() {
  thread_local Pool p;
  return p;
}

}  // namespace

PrecisionCode CallState::precision() const {
  return (key.front() & kPrecisionMask) >> kPrecisionShift;
}

void CallState::set_precision(PrecisionCode code) {
  key.front() = (key.front() & ~kPrecisionMask) | code << kPrecisionShift;
}

void CallState::clear() {
  key.clear();
  storages.clear();
  contents.clear();
  numbers.clear();
  num_tensors = 0;
  layout_places.clear();
  partial_views.clear();
  moving.clear();
  generator.reset();
  device = -1;
  index_.clear();
}

// Where the storage is in the index, or would be.
size_t CallState::index_place(const DeviceStorage& storage) const {
  const size_t last = index_.size() - 1;
  // Objects of one size, mostly side by side.
  size_t place = (reinterpret_cast<uintptr_t>(&storage) >> 4) * 0x9e3779b97f4a7c15ull >> 40 & last;
  while (index_[place] != 0 && storages[index_[place] - 1] != &storage) place = (place + 1) & last;
  return place;
}

void CallState::index(size_t slot) {
  if (2 * (slot + 1) > index_.size()) {
    index_.assign(std::max(4 * std::bit_ceil(kIndexFrom), 2 * index_.size()), 0);
    for (size_t i = 0; i < slot; ++i) {
      index_[index_place(*storages[i])] = static_cast<uint32_t>(i + 1);
    }
  }
  index_[index_place(*storages[slot])] = static_cast<uint32_t>(slot + 1);
}

int CallState::find_slot(const DeviceStorage& storage) const {
  if (!index_.empty()) {
    return static_cast<int>(index_[index_place(storage)]) - 1;
  }
  for (size_t i = 0; i < storages.size(); ++i) {
    if (storages[i] == &storage) return static_cast<int>(i);
  }
  return -1;
}

int CallState::slot(DeviceStorage& storage) {
  const int found = find_slot(storage);
  if (found >= 0) return found;
  const size_t added = storages.size();
  storages.push_back(&storage);
  contents.push_back(storage.contents());
  if (contents.back().traced && !Trace::current()) [[unlikely]] {
    TORCH_CHECK(false,
                "a tensor is used that has no value: a training step that uses it is being traced, "
                "or was when the tensor was made and kept. Use it after the step, and return from "
                "the step what is needed outside of it");
  }
  if (storages.size() >= kIndexFrom) index(added);
  return static_cast<int>(added);
}

void gather(const OperatorInfo& info, std::span<const c10::IValue> arguments, bool all_known,
            CallState& state) {
  state.clear();
  // The default dtype decides what integers are divided in.
  const auto float_type = static_cast<uint64_t>(c10::get_default_dtype_as_scalartype());
  state.key.push_back(reinterpret_cast<uint64_t>(&info) | (all_known ? 1 : 0) |
                      float_type << kFloatTypeShift);
  if (info.uses_precision.load(std::memory_order_relaxed)) {
    state.set_precision(current_precision_code());
  }
  Gatherer gatherer(&info, all_known, state);
  for (size_t i = 0; i < info.arguments.size(); ++i) {
    gatherer.argument(info.arguments[i], arguments[i]);
  }
  if (info.device_argument >= 0) {
    const c10::IValue& wanted = arguments[static_cast<size_t>(info.device_argument)];
    if (!wanted.isNone()) {
      state.device = resolve_device(wanted.toDevice());
      if (state.device > 0) check_device(state.device);
    }
  }
  if (state.device < 0) state.device = current_device();
  let_views_move(state);
}

void gather_values(std::span<const c10::IValue> values, CallState& state) {
  state.clear();
  const auto float_type = static_cast<uint64_t>(c10::get_default_dtype_as_scalartype());
  state.key.push_back(float_type << kFloatTypeShift);
  state.set_precision(current_precision_code());
  Gatherer gatherer(nullptr, true, state);
  for (const c10::IValue& value : values) gatherer.value(value);
  if (state.device < 0) state.device = current_device();
}

ScopedCallState::ScopedCallState() {
  Pool& p = pool();
  if (p.depth == p.states.size()) p.states.push_back(std::make_unique<CallState>());
  state_ = p.states[p.depth++].get();
}

ScopedCallState::~ScopedCallState() {
  state_->clear();
  --pool().depth;
}

bool is_special_number(const c10::IValue& value) {
  if (value.isBool()) return true;
  if (value.isInt()) return value.toInt() >= -1 && value.toInt() <= 1;
  if (value.isDouble()) {
    const double d = value.toDouble();
    return d == 0.0 || d == 1.0 || d == -1.0;
  }
  return false;
}

NumberOperand number_operand(const c10::IValue& value) {
  using stablehlo::ElementType;
  if (value.isBool()) return {ElementType::kPred, {value.toBool() ? uint64_t{1} : 0, 0}};
  if (value.isInt()) return {ElementType::kS64, {static_cast<uint64_t>(value.toInt()), 0}};
  if (value.isDouble()) return {ElementType::kF64, {bits_of(value.toDouble()), 0}};
  const c10::Scalar scalar = value.toScalar();
  if (scalar.isComplex()) {
    const c10::complex<double> z = scalar.toComplexDouble();
    return {ElementType::kC128, {bits_of(z.real()), bits_of(z.imag())}};
  }
  if (scalar.isBoolean()) return {ElementType::kPred, {scalar.toBool() ? uint64_t{1} : 0, 0}};
  if (scalar.isIntegral(false))
    return {ElementType::kS64, {static_cast<uint64_t>(scalar.toLong()), 0}};
  return {ElementType::kF64, {bits_of(scalar.toDouble()), 0}};
}

lowering::Number known_number(const c10::IValue& value) {
  const NumberOperand operand = number_operand(value);
  lowering::Number number;
  number.type = operand.type;
  if (value.isBool() || value.isInt()) {
    const int64_t i = value.isBool() ? value.toBool() : value.toInt();
    number.known_int = i;
    number.known = static_cast<double>(i);
    return number;
  }
  const c10::Scalar scalar = value.toScalar();
  if (scalar.isComplex()) {
    const c10::complex<double> z = scalar.toComplexDouble();
    number.known = std::complex<double>(z.real(), z.imag());
  } else {
    number.known = scalar.toDouble();
    if (scalar.isIntegral(true)) number.known_int = scalar.toLong();
  }
  return number;
}

NumberOperand number_operand(const at::Tensor& cpu_scalar) {
  NumberOperand operand;
  operand.type = to_element_type(cpu_scalar.scalar_type());
  const at::Tensor plain = cpu_scalar.is_conj() || cpu_scalar.is_neg()
                               ? cpu_scalar.resolve_conj().resolve_neg()
                               : cpu_scalar;
  std::memcpy(operand.bits.data(), plain.const_data_ptr(), plain.itemsize());
  return operand;
}

}  // namespace torch_tpu::eager
