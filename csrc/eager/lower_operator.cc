#include "eager/lower_operator.h"

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>

#include <algorithm>
#include <set>

#include "eager/call_state.h"
#include "eager/cpu_error.h"
#include "eager/list_order.h"
#include "eager/scalar_types.h"
#include "lowering/platform.h"
#include "lowering/promotion.h"
#include "runtime/runtime.h"

namespace torch_tpu::eager {

namespace sh = stablehlo;
using lowering::Unsupported;

namespace {

at::Tensor to_meta(const at::Tensor& t) {
  // A number in tensor's clothes stays what it is: it counts less in type promotion.
  if (!t.defined() || t.device().is_meta() || t.unsafeGetTensorImpl()->is_wrapped_number()) {
    return t;
  }
  return at::detail::empty_strided_meta(t.sizes(), t.strides(), t.scalar_type());
}

c10::IValue to_meta(const c10::IValue& value) {
  if (value.isTensor()) return to_meta(value.toTensor());
  if (value.isTensorList()) {
    std::vector<at::Tensor> out;
    for (const at::Tensor& t : value.toTensorVector()) out.push_back(to_meta(t));
    return out;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> out;
    for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector()) {
      out.push_back(t && t->defined() ? std::optional<at::Tensor>(to_meta(*t)) : std::nullopt);
    }
    return out;
  }
  if (value.isDevice()) return c10::Device(c10::kMeta);
  if (value.isGenerator()) return c10::IValue();  // meta kernels draw nothing
  return value;
}

// The tensors among a written argument.
std::vector<at::Tensor> tensors_of(const c10::IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  if (value.isTensorList()) return value.toTensorVector();
  return {};
}

class OperatorLowering {
 public:
  OperatorLowering(const OperatorInfo& info, std::span<const c10::IValue> arguments,
                   LoweringInputs& inputs)
      : info_(info),
        arguments_(arguments),
        inputs_(inputs),
        call_(inputs.builder(), info.name, info.overload) {}

  LoweredCall lower(const std::optional<torch::jit::Stack>& meta) {
    prepare(meta);
    sh::Values values = info_.rule->rule(call_);
    const size_t expected = expected_fresh(values.size()) + written_.size();
    if (values.size() != expected) {
      throw Unsupported(info_.qualified() + ": the rule returned " + std::to_string(values.size()) +
                        " values where " + std::to_string(expected) + " were expected");
    }
    take_results(values, meta);
    return std::move(result_);
  }

  // The same for lists whose entries depend on each other: one call of the rule for each entry, on
  // what the ones before it have left.
  LoweredCall lower_in_order(ListOrder order, const std::optional<torch::jit::Stack>& meta) {
    prepare(meta);
    const size_t list = order == ListOrder::kParts ? info_.arguments.size() - 1 : 0;
    const size_t count = arguments_[list].toListRef().size();
    for (size_t e = 0; e < count; ++e) {
      const std::vector<Written> written = written_by_entry(e, count);
      if (order == ListOrder::kParts) {
        lowering::Call one = call_;
        set_entry(e, order, one);
        write(written.front(), info_.rule->rule(one).at(e));
        continue;
      }
      lowering::Call one(call_.builder(), info_.name, info_.overload);
      set_entry(e, order, one);
      std::vector<sh::TensorType> types;
      for (const Written& w : written) types.push_back(type_of(w.tensor));
      one.set_outputs(std::move(types));
      const sh::Values values = info_.rule->rule(one);
      if (values.size() != written.size()) {
        throw Unsupported(info_.qualified() + ": not one result for each list that is written");
      }
      for (size_t k = 0; k < written.size(); ++k) write(written[k], values[k]);
    }
    for (const ReturnInfo& r : info_.returns) {
      result_.returns.push_back({CallReturn::Kind::kArgument, static_cast<size_t>(r.alias), 1, {}});
    }
    return std::move(result_);
  }

 private:
  struct Written {
    at::Tensor tensor;
    uint32_t place;  // among the call's tpu tensors
    bool is_out;
  };

  void prepare(const std::optional<torch::jit::Stack>& meta) {
    for (size_t i = 0; i < info_.arguments.size(); ++i) argument(i);
    plan_results(meta);
    call_.set_rng([this](int64_t count) { return inputs_.random(count); });
  }

  // Of each list that is written entry e, and what else is written.
  std::vector<Written> written_by_entry(size_t e, size_t count) const {
    std::vector<Written> out;
    size_t next = 0;
    for (size_t i = 0; i < info_.arguments.size(); ++i) {
      if (!info_.arguments[i].written) continue;
      const size_t n = tensors_of(arguments_[i]).size();
      const bool is_list = info_.arguments[i].kind == ArgumentKind::kTensorList;
      if ((is_list && n != 0 && n != count) || next + n > written_.size()) {
        throw Unsupported(info_.qualified() + ": lists of different lengths, or not on the device");
      }
      if (n > 0) out.push_back(written_[next + (is_list ? e : 0)]);
      next += n;
    }
    return out;
  }

  void set_entry(size_t e, ListOrder order, lowering::Call& one) {
    for (size_t i = 0; i < info_.arguments.size(); ++i) set_entry(i, e, order, one);
  }

  // What an argument is for entry e: tensors are read again, since they may have been written.
  void set_entry(size_t i, size_t e, ListOrder order, lowering::Call& one) {
    const ArgumentInfo& info = info_.arguments[i];
    const lowering::Argument* whole = call_.find(info.name);
    if (!whole) return;
    const auto read_again = [&](const c10::IValue& value, const lowering::TensorArgument& before) {
      return value.isTensor() && is_tpu(value.toTensor()) ? tensor(value.toTensor()) : before;
    };
    if (const auto* before = std::get_if<lowering::TensorArgument>(whole)) {
      one.set(info.name, read_again(arguments_[i], *before));
    } else if (order == ListOrder::kParts) {
      return;
    } else if (const auto* list = std::get_if<std::vector<lowering::TensorArgument>>(whole)) {
      std::vector<lowering::TensorArgument> entry;
      if (!list->empty()) entry.push_back(read_again(arguments_[i].toListRef()[e], list->at(e)));
      one.set(info.name, std::move(entry));
    } else if (const auto* numbers = std::get_if<std::vector<lowering::Number>>(whole)) {
      one.set(info.name, std::vector<lowering::Number>{numbers->at(e)});
    } else {
      one.set(info.name, *whole);
    }
  }

  void argument(size_t i) {
    const ArgumentInfo& info = info_.arguments[i];
    const c10::IValue& value = arguments_[i];
    if (info.written) {
      uint32_t place = next_tensor_;
      for (const at::Tensor& t : tensors_of(value)) {
        if (t.defined() && is_tpu(t)) written_.push_back({t, place++, info.is_out});
        // A written argument that is absent has no place among the results.
      }
      if (info.is_out) next_tensor_ = place;
    }
    if (info.is_out || info.kind == ArgumentKind::kIgnored || value.isNone()) return;
    switch (info.kind) {
      case ArgumentKind::kTensor:
        call_.set(info.name, tensor(value.toTensor()));
        break;
      case ArgumentKind::kTensorList: {
        std::vector<lowering::TensorArgument> list;
        for (const c10::IValue& entry : value.toListRef()) {
          list.push_back(entry.isNone() ? lowering::TensorArgument{} : tensor(entry.toTensor()));
        }
        call_.set(info.name, std::move(list));
        break;
      }
      case ArgumentKind::kNumber:
        call_.set(info.name, inputs_.number(value, info.known_number, false));
        break;
      case ArgumentKind::kNumberList: {
        std::vector<lowering::Number> list;
        if (value.isDoubleList()) {
          for (const double d : value.toDoubleList()) {
            list.push_back(inputs_.number(c10::IValue(d), info.known_number, true));
          }
        } else {
          for (const c10::IValue& entry : value.toListRef()) {
            list.push_back(inputs_.number(entry, info.known_number, true));
          }
        }
        call_.set(info.name, std::move(list));
        break;
      }
      case ArgumentKind::kInt:
        call_.set(info.name, value.toInt());
        break;
      case ArgumentKind::kIntList:
        if (value.isInt()) {
          call_.set(info.name, sh::Dims{value.toInt()});
        } else {
          call_.set(info.name, value.toIntVector());
        }
        break;
      case ArgumentKind::kBool:
        call_.set(info.name, value.toBool());
        break;
      case ArgumentKind::kBoolList: {
        std::vector<bool> list;
        for (const bool b : value.toBoolList()) list.push_back(b);
        call_.set(info.name, std::move(list));
        break;
      }
      case ArgumentKind::kString:
        call_.set(info.name, value.toStringRef());
        break;
      case ArgumentKind::kDtype:
        call_.set(info.name, to_element_type(static_cast<c10::ScalarType>(value.toInt())));
        break;
      case ArgumentKind::kGenerator:
      case ArgumentKind::kIgnored:
        break;
    }
  }

  lowering::TensorArgument tensor(const at::Tensor& t) {
    if (!t.defined()) return {};
    const bool wrapped = t.unsafeGetTensorImpl()->is_wrapped_number();
    if (!is_tpu(t)) return {inputs_.cpu_scalar(t), wrapped};
    const uint32_t place = next_tensor_++;
    DeviceStorage& storage = device_storage(t);
    sh::Value value;
    const sh::Value written = value_written(storage);
    if (t.numel() == 0 || (!written && !storage.contents().filled())) {
      // Nothing to read: an unfilled tensor's values are arbitrary.
      value = sh::splat(inputs_.builder(), {to_element_type(t.scalar_type()), t.sizes().vec()}, 0);
    } else {
      const sh::Value base = written ? written : inputs_.base(storage);
      const std::optional<LoweringInputs::Moving> moving = inputs_.moving(place);
      value = lazy_bits(
          t, moving ? lowering::read_moving_view(base, view_of(t), moving->box, moving->start)
                    : lowering::read_view(base, view_of(t)));
    }
    return {value, wrapped, t.is_contiguous()};
  }

  // The types of the results, in a rule's order.
  void plan_results(const std::optional<torch::jit::Stack>& meta) {
    if (!meta) return;
    std::vector<sh::TensorType> types;
    for (size_t i = 0; i < info_.returns.size(); ++i) {
      if (info_.returns[i].alias >= 0) continue;
      for (const at::Tensor& t : tensors_of((*meta)[i])) {
        types.push_back(t.defined()
                            ? sh::TensorType{to_element_type(t.scalar_type()), t.sizes().vec()}
                            : sh::TensorType{});
      }
    }
    for (const Written& w : written_) types.push_back(type_of(w.tensor));
    call_.set_outputs(std::move(types));
    have_meta_ = true;
  }

  size_t expected_fresh(size_t given) {
    size_t fresh = 0;
    for (const ReturnInfo& r : info_.returns) {
      if (r.alias >= 0) continue;
      if (r.kind == ReturnInfo::Kind::kTensor) ++fresh;
      if (r.kind == ReturnInfo::Kind::kTensorList) {
        // A list's length is the meta kernel's, else all that is left.
        return have_meta_ ? call_.num_outputs() - written_.size() : given - written_.size();
      }
    }
    return fresh;
  }

  static sh::TensorType type_of(const at::Tensor& t) {
    return {to_element_type(t.scalar_type()), t.sizes().vec()};
  }

  // Linear algebra operators get conjugated and negated tensors as they are. The same turns a
  // value into what the storage of such a tensor holds.
  static sh::Value lazy_bits(const at::Tensor& t, sh::Value v) {
    if (t.is_conj()) v = sh::complex(sh::real(v), sh::negate(sh::imag(v)));
    if (t.is_neg()) v = sh::negate(v);
    return v;
  }

  static sh::Value fit(sh::Value v, c10::ScalarType dtype, const sh::Dims& sizes) {
    return sh::broadcast_to(lowering::cast(v, to_element_type(dtype)), sizes);
  }

  // The layout results of this rank take from the arguments the rule names.
  std::optional<c10::MemoryFormat> memory_format(size_t rank) const {
    for (size_t i = 0; i < info_.arguments.size(); ++i) {
      const auto& names = info_.rule->options.memory_format_of;
      if (std::find(names.begin(), names.end(), info_.arguments[i].name) == names.end() ||
          !arguments_[i].isTensor()) {
        continue;
      }
      const at::Tensor& t = arguments_[i].toTensor();
      if (!t.defined() || static_cast<size_t>(t.dim()) != rank) continue;
      const c10::MemoryFormat format = t.suggest_memory_format();
      if (format != c10::MemoryFormat::Contiguous) return format;
    }
    return std::nullopt;
  }

  static std::vector<int64_t> channels_last_strides(const std::vector<int64_t>& sizes,
                                                    c10::MemoryFormat format) {
    return format == c10::MemoryFormat::ChannelsLast3d ? c10::get_channels_last_strides_3d(sizes)
                                                       : c10::get_channels_last_strides_2d(sizes);
  }

  size_t add_fresh(sh::Value value, const at::Tensor* meta) {
    LoweredCall::Fresh fresh;
    if (value) {
      fresh.dtype = meta ? meta->scalar_type() : to_scalar_type(value.dtype());
      fresh.sizes = meta ? meta->sizes().vec() : value.dims();
      sh::Value v = fit(value, fresh.dtype, fresh.sizes);
      std::optional<sh::Dims> order;
      if (meta) {
        fresh.strides = meta->strides().vec();
      } else if (const auto format = memory_format(fresh.sizes.size())) {
        fresh.strides = channels_last_strides(fresh.sizes, *format);
      }
      if (!fresh.strides.empty()) order = lowering::dense_order(fresh.sizes, fresh.strides);
      if (order) {
        v = in_order(v, *order);
      } else {
        const auto strides = row_major_strides(fresh.sizes);
        fresh.strides.assign(strides.begin(), strides.end());
      }
      fresh.value = v;
    }
    result_.fresh.push_back(std::move(fresh));
    return result_.fresh.size() - 1;
  }

  static sh::Value in_order(sh::Value v, const sh::Dims& order) {
    for (size_t i = 0; i < order.size(); ++i) {
      if (order[i] != static_cast<int64_t>(i)) return sh::transpose(v, order);
    }
    return v;
  }

  void take_results(const sh::Values& values, const std::optional<torch::jit::Stack>& meta) {
    size_t next = 0;
    for (size_t i = 0; i < info_.returns.size(); ++i) {
      const ReturnInfo& r = info_.returns[i];
      const c10::IValue* m = meta ? &(*meta)[i] : nullptr;
      CallReturn ret{CallReturn::Kind::kTensor, 0, 1, {}};
      if (r.alias >= 0) {
        ret.kind = CallReturn::Kind::kArgument;
        ret.index = static_cast<size_t>(r.alias);
      } else if (r.kind == ReturnInfo::Kind::kTensor) {
        const at::Tensor meta_tensor = m && m->isTensor() ? m->toTensor() : at::Tensor();
        sh::Value v = values[next++];
        if (m && !meta_tensor.defined()) v = {};
        ret.index = add_fresh(v, meta_tensor.defined() ? &meta_tensor : nullptr);
      } else if (r.kind == ReturnInfo::Kind::kTensorList) {
        ret.kind = CallReturn::Kind::kTensorList;
        const std::vector<at::Tensor> metas = m ? tensors_of(*m) : std::vector<at::Tensor>();
        ret.count = m ? metas.size() : values.size() - written_.size();
        ret.index = result_.fresh.size();
        for (size_t k = 0; k < ret.count; ++k) add_fresh(values[next++], m ? &metas[k] : nullptr);
      } else {
        ret.kind = CallReturn::Kind::kConstant;
        ret.constant = m ? *m : c10::IValue(int64_t{0});
      }
      result_.returns.push_back(std::move(ret));
    }
    resize_outputs(values, next);
    for (const Written& w : written_) write(w, values[next++]);
  }

  // Where no meta kernel has said how large they are: to what the rule has for them.
  void resize_outputs(const sh::Values& values, size_t first) const {
    bool resized = false;
    for (size_t i = 0; i < written_.size(); ++i) {
      const at::Tensor& t = written_[i].tensor;
      const sh::Value v = values[first + i];
      if (!written_[i].is_out || !v || t.numel() > 0 || v.numel() == 0) continue;
      at::native::resize_output(t, v.dims());
      resized = true;
    }
    if (resized) throw GatherAgain{};
  }

  // What the call has made of a storage so far; empty if it has not written to it.
  sh::Value value_written(const DeviceStorage& storage) const {
    const auto it = std::find_if(result_.writes.begin(), result_.writes.end(),
                                 [&](const auto& w) { return w.first == &storage; });
    return it != result_.writes.end() ? it->second : sh::Value();
  }

  // `result` is empty where the tensor stays as it is.
  void write(const Written& w, sh::Value result) {
    const at::Tensor& t = w.tensor;
    if (!result || t.numel() == 0) return;
    const sh::Value value = lazy_bits(t, fit(result, t.scalar_type(), t.sizes().vec()));
    DeviceStorage& storage = device_storage(t);
    auto it = std::find_if(result_.writes.begin(), result_.writes.end(),
                           [&](const auto& write) { return write.first == &storage; });
    const auto before = [&] {
      if (it != result_.writes.end()) return it->second;
      if (storage.contents().filled()) return inputs_.base(storage);
      return unfilled_base(inputs_.builder(), t);
    };
    const std::optional<LoweringInputs::Moving> moving = inputs_.moving(w.place);
    const sh::Value base = moving ? lowering::write_moving_view(before(), view_of(t), moving->box,
                                                                moving->start, value)
                                  : write_tensor(t, value, before);
    if (it != result_.writes.end()) {
      it->second = base;
    } else {
      result_.writes.emplace_back(&storage, base);
    }
  }

  const OperatorInfo& info_;
  std::span<const c10::IValue> arguments_;
  LoweringInputs& inputs_;
  lowering::Call call_;
  std::vector<Written> written_;
  uint32_t next_tensor_ = 0;
  bool have_meta_ = false;
  LoweredCall result_;
};

// Operators that PyTorch lets write one value to elements that share their place.
bool may_write_overlapping(const OperatorInfo& info) {
  static const std::set<std::string_view> names{"aten::fill_",        "aten::zero_",
                                                "aten::masked_fill_", "aten::index_put_",
                                                "aten::index_fill_",  "aten::_index_put_impl_"};
  return names.contains(info.name);
}

// Throws if PyTorch's CPU kernel refuses tensors that overlap as these do; it is asked with zeros
// in the same places. False if it cannot be asked.
bool check_overlaps_as_cpu_does(const c10::OperatorHandle& op,
                                std::span<const c10::IValue> arguments) {
  try {
    return throw_as_cpu_does(op, arguments);
  } catch (const c10::Error& e) {
    // Others are of the values it was tried with, or come up later.
    if (e.msg().starts_with("unsupported operation")) throw;
  }
  return true;
}

// Writing where several elements share a place, or where input and output overlap in a way that the
// operator cannot do, is refused as on the CPU.
void check_overlaps(const OperatorInfo& info, const c10::OperatorHandle& op,
                    std::span<const c10::IValue> arguments) {
  check_entries(info, arguments);
  std::vector<at::Tensor> read, written;
  bool may_ask = true;
  for (size_t i = 0; i < info.arguments.size(); ++i) {
    const ArgumentInfo& argument = info.arguments[i];
    if (argument.kind == ArgumentKind::kTensorList && argument.written) {
      if (argument.is_out && list_order(info, arguments) == ListOrder::kParts) {
        check_overlaps_as_cpu_does(op, arguments);
      }
      return;
    }
    // It would draw from the CPU's generator.
    if (argument.kind == ArgumentKind::kGenerator) may_ask = false;
    std::vector<at::Tensor>& tensors = argument.written ? written : read;
    if (arguments[i].isTensor()) {
      tensors.push_back(arguments[i].toTensor());
    } else if (argument.kind == ArgumentKind::kTensorList && !arguments[i].isNone()) {
      for (const c10::IValue& entry : arguments[i].toListRef()) {
        if (entry.isTensor()) tensors.push_back(entry.toTensor());
      }
    }
  }
  bool overlap = false;
  for (size_t i = 0; i < written.size(); ++i) {
    const at::Tensor& w = written[i];
    if (!is_tpu(w)) continue;
    if (!may_write_overlapping(info)) at::assert_no_internal_overlap(w);
    const auto overlaps = [&](const at::Tensor& t) {
      return is_tpu(t) && w.is_alias_of(t) &&
             at::get_overlap_status(w, t) != at::MemOverlapStatus::No;
    };
    overlap |= std::ranges::any_of(read, overlaps);
    overlap |= std::any_of(written.begin(), written.begin() + static_cast<ptrdiff_t>(i), overlaps);
  }
  if (!overlap || (may_ask && check_overlaps_as_cpu_does(op, arguments))) return;
  for (const at::Tensor& w : written) {
    for (const at::Tensor& r : read) {
      if (is_tpu(w) && is_tpu(r) && !r.is_same(w)) at::assert_no_partial_overlap(w, r);
    }
  }
}

// Runs PyTorch's meta kernel, so that wrong arguments throw PyTorch's own errors. nullopt when the
// operator has none.
std::optional<torch::jit::Stack> run_meta(const c10::OperatorHandle& op,
                                          std::span<const c10::IValue> arguments) {
  torch::jit::Stack stack;
  stack.reserve(arguments.size());
  for (const c10::IValue& a : arguments) stack.push_back(to_meta(a));
  try {
    op.callBoxed(stack);
  } catch (const c10::NotImplementedError&) {
    return std::nullopt;
  }
  return stack;
}

// With out= tensors that are empty in the meta kernel's eyes: it need not warn that it resizes
// them, as the real ones will be.
std::optional<torch::jit::Stack> run_meta_for_out(const OperatorInfo& info,
                                                  const c10::OperatorHandle& op,
                                                  std::span<const c10::IValue> arguments) {
  std::vector<c10::IValue> given(arguments.begin(), arguments.end());
  if (info.rule) {
    for (const std::string& name : info.rule->options.bytes_as_int64) {
      const std::optional<int> at = op.schema().argumentIndexWithName(name);
      if (!at) continue;
      c10::IValue& value = given[static_cast<size_t>(*at)];
      if (!value.isTensor() || value.toTensor().scalar_type() != at::kByte) continue;
      value = at::detail::empty_meta(value.toTensor().sizes(), at::kLong);
      arguments = given;
    }
  }
  bool any = false;
  for (size_t i = 0; i < given.size(); ++i) {
    if (!info.arguments[i].is_out || !given[i].isTensor()) continue;
    const at::Tensor& out = given[i].toTensor();
    if (!is_tpu(out) || out.numel() == 0) continue;
    given[i] = at::detail::empty_meta({0}, out.scalar_type());
    any = true;
  }
  if (any) {
    try {
      return run_meta(op, given);
    } catch (...) {  // also what a meta kernel in Python raises
      // Perhaps it wants to know the tensors as they are.
    }
  }
  try {
    return run_meta(op, arguments);
  } catch (...) {
    // Of complex numbers it may want the real result's own dtype. The CPU, which casts, has been
    // asked about this one.
    if (!any || !arguments[0].isTensor() || !arguments[0].toTensor().is_complex()) throw;
    const c10::ScalarType real = c10::toRealValueType(arguments[0].toTensor().scalar_type());
    for (size_t i = 0; i < given.size(); ++i) {
      if (info.arguments[i].is_out) given[i] = at::detail::empty_meta({0}, real);
    }
    return run_meta(op, given);
  }
}

// Meta kernels of in-place operators let results be cast to any dtype. The functional variant
// knows which dtype the result has.
void check_cast_in_place(const OperatorInfo& info, const c10::OperatorHandle& op,
                         std::span<const c10::IValue> arguments) {
  const std::string& name = info.name;
  if (!name.ends_with('_') || name.ends_with("__") || info.returns.size() != 1 ||
      info.returns[0].alias != 0 || !arguments[0].isTensor()) {
    return;
  }
  // These compute in the dtype of a result that is given.
  if (name == "aten::cumsum_" || name == "aten::cumprod_") return;
  const auto functional =
      c10::Dispatcher::singleton().findSchema({name.substr(0, name.size() - 1), info.overload});
  if (!functional) return;
  const auto& wanted = op.schema().arguments();
  const auto& given = functional->schema().arguments();
  if (!std::equal(wanted.begin(), wanted.end(), given.begin(), given.end(),
                  [](const c10::Argument& a, const c10::Argument& b) {
                    return a.name() == b.name() && *a.type() == *b.type();
                  })) {
    return;
  }
  const std::optional<torch::jit::Stack> meta = run_meta(*functional, arguments);
  if (!meta || meta->size() != 1 || !(*meta)[0].isTensor()) return;
  const c10::ScalarType result = (*meta)[0].toTensor().scalar_type();
  const c10::ScalarType self = arguments[0].toTensor().scalar_type();
  TORCH_CHECK(c10::canCast(result, self), "result type ", result,
              " can't be cast to the desired output type ", self);
}

// Meta kernels let results be cast to the dtype of `out`; some of the CPU's kernels want it to be
// their own. They are asked where it is not the input's, or where the result may be no integer.
void check_out_dtypes(const OperatorInfo& info, const c10::OperatorHandle& op,
                      std::span<const c10::IValue> arguments) {
  std::optional<c10::ScalarType> input;
  bool unusual = false;
  for (size_t i = 0; i < info.arguments.size(); ++i) {
    for (const at::Tensor& t : tensors_of(arguments[i])) {
      if (!t.defined()) continue;
      const c10::ScalarType type = t.scalar_type();
      if (!info.arguments[i].is_out) {
        if (!input) input = type;
      } else if (input && (type != *input || at::isIntegralType(type, /*includeBool=*/false))) {
        unusual = true;
      }
    }
  }
  if (!unusual) return;
  try {
    throw_as_cpu_does(op, arguments);
  } catch (const c10::NotImplementedError&) {
    throw;
  } catch (const c10::Error& e) {
    // Others are of the values it was tried with.
    if (e.msg().find("type") != std::string::npos) throw;
  }
}

}  // namespace

std::optional<torch::jit::Stack> check_call(const OperatorInfo& info, const c10::OperatorHandle& op,
                                            std::span<const c10::IValue> arguments) {
  check_overlaps(info, op, arguments);
  check_out_dtypes(info, op, arguments);
  if (info.rule && info.rule->options.own_types) return std::nullopt;
  std::optional<torch::jit::Stack> meta = run_meta_for_out(info, op, arguments);
  check_cast_in_place(info, op, arguments);
  if (!meta) return meta;
  bool resized = false;
  for (size_t i = 0; i < info.returns.size(); ++i) {
    const int alias = info.returns[i].alias;
    if (alias < 0 || !info.arguments[static_cast<size_t>(alias)].is_out || !(*meta)[i].isTensor()) {
      continue;
    }
    const at::Tensor& out = arguments[static_cast<size_t>(alias)].toTensor();
    const at::Tensor& wanted = (*meta)[i].toTensor();
    if (out.sizes() == wanted.sizes()) continue;
    at::native::resize_output(out, wanted.sizes());
    if (out.strides() != wanted.strides()) out.as_strided_(wanted.sizes(), wanted.strides());
    resized = true;
  }
  if (resized) throw GatherAgain{};
  return meta;
}

lowering::Platform LoweringInputs::platform() const {
  static const bool for_tpu = runtime::Runtime::get().platform() == "tpu";
  return for_tpu ? lowering::Platform::kTpu : lowering::Platform::kCpu;
}

LoweredCall lower_operator(const OperatorInfo& info, const c10::OperatorHandle& op,
                           std::span<const c10::IValue> arguments, LoweringInputs& inputs) {
  const std::optional<torch::jit::Stack> meta = check_call(info, op, arguments);
  if (!info.rule) throw Unsupported(info.qualified() + ": no rule");
  const lowering::CompilingFor compiler(inputs.platform());
  const lowering::DefaultFloat float_type(to_element_type(c10::get_default_dtype_as_scalartype()));
  OperatorLowering lowering(info, arguments, inputs);
  const ListOrder order = list_order(info, arguments);
  return order == ListOrder::kFree ? lowering.lower(meta) : lowering.lower_in_order(order, meta);
}

sh::Value unfilled_base(sh::Builder& builder, const at::Tensor& tensor) {
  const auto n = static_cast<int64_t>(tensor.storage().nbytes() / tensor.itemsize());
  return sh::splat(builder, {to_element_type(tensor.scalar_type()), {n}}, 0);
}

sh::Value write_tensor(const at::Tensor& tensor, sh::Value value,
                       const std::function<sh::Value()>& base) {
  if (const std::optional<sh::Dims> order = whole_order(tensor)) {
    for (size_t i = 0; i < order->size(); ++i) {
      if ((*order)[i] != static_cast<int64_t>(i)) return sh::transpose(value, *order);
    }
    return value;
  }
  return lowering::write_view(base(), view_of(tensor), value);
}

}  // namespace torch_tpu::eager
