#include "lowering/call.h"

#include <algorithm>

namespace torch_tpu::lowering {

namespace {

[[noreturn]] void missing(const Call& call, std::string_view name, const char* expected) {
  throw Unsupported(call.op() + "." + call.overload() + ": argument '" + std::string(name) +
                    "' is not " + expected);
}

}  // namespace

const Argument* Call::find(std::string_view name) const {
  const auto it = arguments_.find(name);
  return it == arguments_.end() ? nullptr : &it->second;
}

bool Call::has(std::string_view name) const {
  const Argument* arg = find(name);
  if (!arg || std::holds_alternative<std::monostate>(*arg)) return false;
  if (const auto* t = std::get_if<TensorArgument>(arg)) return static_cast<bool>(t->value);
  return true;
}

const TensorArgument& Call::tensor_argument(std::string_view name) const {
  const Argument* arg = find(name);
  const auto* t = arg ? std::get_if<TensorArgument>(arg) : nullptr;
  if (!t || !t->value) missing(*this, name, "a tensor");
  return *t;
}

Value Call::tensor(std::string_view name) const { return tensor_argument(name).value; }

Value Call::tensor_or_empty(std::string_view name) const {
  return has(name) ? tensor(name) : Value();
}

Values Call::tensors(std::string_view name) const {
  const Argument* arg = find(name);
  Values out;
  if (!arg || std::holds_alternative<std::monostate>(*arg)) return out;
  const auto* list = std::get_if<std::vector<TensorArgument>>(arg);
  if (!list) missing(*this, name, "a list of tensors");
  out.reserve(list->size());
  for (const TensorArgument& t : *list) out.push_back(t.value);
  return out;
}

bool Call::is_wrapped_number(std::string_view name) const {
  return tensor_argument(name).wrapped_number;
}

Value Call::materialize(const Number& number, ElementType type) const {
  if (number.operand) return stablehlo::convert(number.operand, type);
  if (stablehlo::is_complex(type)) return stablehlo::scalar(builder_, type, *number.known);
  if (number.known_int && !stablehlo::is_float(type)) {
    if (stablehlo::is_bool(type)) return stablehlo::scalar(builder_, type, *number.known_int != 0);
    // Wraps like PyTorch, and like an operand: -1 as uint8 is 255.
    return stablehlo::convert(stablehlo::scalar(builder_, ElementType::kS64, *number.known_int),
                              type);
  }
  const double value = number.known->real();
  if (stablehlo::is_bool(type)) return stablehlo::scalar(builder_, type, value != 0);
  if (stablehlo::is_integer(type)) {
    return stablehlo::convert(
        stablehlo::scalar(builder_, ElementType::kS64, static_cast<int64_t>(value)), type);
  }
  return stablehlo::scalar(builder_, type, value);
}

Value Call::number(std::string_view name, ElementType type) const {
  const Argument* arg = find(name);
  if (arg) {
    if (const auto* n = std::get_if<Number>(arg)) return materialize(*n, type);
    if (const auto* i = std::get_if<int64_t>(arg)) {
      return materialize(Number{ElementType::kS64, static_cast<double>(*i), *i, {}}, type);
    }
    if (const auto* b = std::get_if<bool>(arg)) {
      return materialize(Number{ElementType::kPred, *b ? 1.0 : 0.0, *b ? 1 : 0, {}}, type);
    }
    if (const auto* t = std::get_if<TensorArgument>(arg); t && t->value && t->value.rank() == 0) {
      return stablehlo::convert(t->value, type);
    }
  }
  missing(*this, name, "a number");
}

Value Call::number_or(std::string_view name, double otherwise, ElementType type) const {
  if (has(name)) return number(name, type);
  return materialize(Number{ElementType::kF64, otherwise, std::nullopt, {}}, type);
}

Values Call::numbers(std::string_view name, ElementType type) const {
  const Argument* arg = find(name);
  Values out;
  if (!arg || std::holds_alternative<std::monostate>(*arg)) return out;
  const auto* list = std::get_if<std::vector<Number>>(arg);
  if (!list) missing(*this, name, "a list of numbers");
  for (const Number& n : *list) out.push_back(materialize(n, type));
  return out;
}

std::optional<double> Call::known_number(std::string_view name) const {
  const Argument* arg = find(name);
  if (!arg) return std::nullopt;
  if (const auto* n = std::get_if<Number>(arg)) {
    if (n->known) return n->known->real();
    return std::nullopt;
  }
  if (const auto* i = std::get_if<int64_t>(arg)) return static_cast<double>(*i);
  if (const auto* b = std::get_if<bool>(arg)) return *b ? 1.0 : 0.0;
  return std::nullopt;
}

bool Call::is_known(std::string_view name, double value) const {
  const std::optional<double> known = known_number(name);
  return known && *known == value;
}

ElementType Call::number_type(std::string_view name) const {
  const Argument* arg = find(name);
  if (arg) {
    if (const auto* n = std::get_if<Number>(arg)) return n->type;
    if (std::holds_alternative<int64_t>(*arg)) return ElementType::kS64;
    if (std::holds_alternative<bool>(*arg)) return ElementType::kPred;
  }
  missing(*this, name, "a number");
}

int64_t Call::integer(std::string_view name) const {
  const Argument* arg = find(name);
  if (arg) {
    if (const auto* i = std::get_if<int64_t>(arg)) return *i;
    if (const auto* n = std::get_if<Number>(arg); n && n->known_int) return *n->known_int;
  }
  missing(*this, name, "an integer known while lowering");
}

int64_t Call::integer_or(std::string_view name, int64_t otherwise) const {
  return has(name) ? integer(name) : otherwise;
}

bool Call::boolean(std::string_view name, bool otherwise) const {
  const Argument* arg = find(name);
  if (!arg || std::holds_alternative<std::monostate>(*arg)) return otherwise;
  const auto* b = std::get_if<bool>(arg);
  if (!b) missing(*this, name, "a bool");
  return *b;
}

Dims Call::ints(std::string_view name) const {
  const Argument* arg = find(name);
  if (!arg || std::holds_alternative<std::monostate>(*arg)) return {};
  if (const auto* d = std::get_if<Dims>(arg)) return *d;
  if (const auto* i = std::get_if<int64_t>(arg)) return {*i};
  missing(*this, name, "a list of integers");
}

std::vector<bool> Call::bools(std::string_view name) const {
  const Argument* arg = find(name);
  const auto* b = arg ? std::get_if<std::vector<bool>>(arg) : nullptr;
  if (!b) missing(*this, name, "a list of bools");
  return *b;
}

std::string Call::string(std::string_view name, std::string_view otherwise) const {
  const Argument* arg = find(name);
  if (!arg || std::holds_alternative<std::monostate>(*arg)) return std::string(otherwise);
  const auto* s = std::get_if<std::string>(arg);
  if (!s) missing(*this, name, "a string");
  return *s;
}

std::optional<ElementType> Call::dtype(std::string_view name) const {
  const Argument* arg = find(name);
  if (!arg || std::holds_alternative<std::monostate>(*arg)) return std::nullopt;
  const auto* t = std::get_if<ElementType>(arg);
  if (!t) missing(*this, name, "a dtype");
  return *t;
}

const TensorType& Call::output(size_t i) const {
  if (i >= outputs_.size()) {
    throw Unsupported(op_ + "." + overload_ + ": the type of result " + std::to_string(i) +
                      " is not known");
  }
  return outputs_[i];
}

Value Call::rng_state(int64_t count) {
  if (!rng_) throw Unsupported(op_ + ": random numbers are not available here");
  return rng_(count);
}

int64_t wrap_dim(int64_t dim, int64_t rank) {
  const int64_t n = std::max<int64_t>(rank, 1);
  if (dim < -n || dim >= n) {
    throw InvalidArgument("Dimension out of range (expected to be in range of [" +
                              std::to_string(-n) + ", " + std::to_string(n - 1) + "], but got " +
                              std::to_string(dim) + ")",
                          InvalidArgument::Kind::kIndex);
  }
  return dim < 0 ? dim + n : dim;
}

Dims wrap_dims(const Dims& dims, int64_t rank) {
  Dims out;
  if (dims.empty()) {
    for (int64_t i = 0; i < rank; ++i) out.push_back(i);
    return out;
  }
  for (const int64_t d : dims) {
    const int64_t w = wrap_dim(d, rank);
    if (rank > 0) out.push_back(w);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace torch_tpu::lowering
