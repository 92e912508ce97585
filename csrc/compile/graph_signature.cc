#include "compile/graph_signature.h"

#include <c10/core/ScalarType.h>

#include <sstream>

#include "eager/device_context.h"

namespace torch_tpu::compile {

namespace {

// So much more does it count that two values are of different kinds.
constexpr int kFarther = 3;

std::string name_of(c10::ScalarType type) { return std::string(c10::getDtypeNames(type).first); }

}  // namespace

GraphSignature::GraphSignature(const std::vector<c10::IValue>& values, size_t num_given,
                               const eager::CallState& state)
    : num_given_(num_given), settings_(state.key.front()), precision_(state.precision()) {
  values_.reserve(values.size());
  for (const c10::IValue& value : values) {
    Value& v = values_.emplace_back();
    if (value.isTensor() && value.toTensor().defined()) {
      const at::Tensor& t = value.toTensor();
      v.kind = Value::Kind::kTensor;
      v.form = TensorForm(t);
      v.slot = state.find_slot(eager::device_storage(t));
      if (v.slot >= 0) v.base = state.contents[static_cast<size_t>(v.slot)].layout;
    } else if (!value.isTensor() && !value.isNone()) {
      v.kind = Value::Kind::kInteger;
      v.integer = value.toInt();
    }
  }
}

GraphSignature::Difference GraphSignature::from(const GraphSignature& before) const {
  Difference out;
  const auto differ = [&](size_t place, const auto& what, const auto& is, const auto& was) {
    if (out.count++ > 0) return;
    std::ostringstream text;
    if (place < num_given_) {
      text << "input " << place;
    } else {
      text << "the graph's own tensor " << place - num_given_;
    }
    text << ": " << what << ' ' << is << ", was " << was;
    out.first = text.str();
  };
  const auto kind_name = [](const Value& v) {
    return v.kind == Value::Kind::kNone      ? "None"
           : v.kind == Value::Kind::kInteger ? "a number"
                                             : "a tensor";
  };
  const auto base_name = [](const Value& v) {
    return v.base ? stablehlo::to_string(v.base->type) : std::string("empty");
  };
  for (size_t i = 0; i < values_.size() && i < before.values_.size(); ++i) {
    const Value &now = values_[i], &old = before.values_[i];
    if (now.kind != old.kind) {
      differ(i, "it is", kind_name(now), kind_name(old));
      out.count += kFarther;
      continue;
    }
    if (now.integer != old.integer) differ(i, "it is", now.integer, old.integer);
    if (now.kind != Value::Kind::kTensor) continue;
    const TensorForm &form = now.form, &its = old.form;
    const int so_far = out.count;
    if (form.dtype != its.dtype) differ(i, "dtype", name_of(form.dtype), name_of(its.dtype));
    if (form.sizes.size() != its.sizes.size()) {
      differ(i, "its dimensions are", form.sizes.size(), its.sizes.size());
      out.count += kFarther;
      continue;
    }
    for (size_t d = 0; d < form.sizes.size(); ++d) {
      if (form.sizes[d] != its.sizes[d]) {
        differ(i, "dimension " + std::to_string(d) + " is", form.sizes[d], its.sizes[d]);
      }
    }
    if (out.count > so_far) continue;  // the strides and the storage follow
    for (size_t d = 0; d < form.sizes.size(); ++d) {
      if (form.strides[d] != its.strides[d]) {
        differ(i, "the stride of dimension " + std::to_string(d) + " is", form.strides[d],
               its.strides[d]);
      }
    }
    if (form.offset != its.offset) {
      differ(i, "its offset in the storage is", form.offset, its.offset);
    }
    if (form.conj != its.conj || form.neg != its.neg) {
      differ(i, "its values are", "conjugated or negated otherwise", "not");
    }
    if (now.slot != old.slot) {
      differ(i, "it shares its storage", "with other inputs", "not with these");
    }
    if (now.base != old.base) differ(i, "its storage is", base_name(now), base_name(old));
  }
  if (settings_ != before.settings_ && out.count++ == 0) {
    out.first = precision_ != before.precision_ ? "the precision of float32 products is another one"
                                                : "the default dtype is another one";
  }
  return out;
}

}  // namespace torch_tpu::compile
