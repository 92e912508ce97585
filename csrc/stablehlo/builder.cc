#include "stablehlo/builder.h"

#include <algorithm>

#include "stablehlo/attributes.h"
#include "stablehlo/check.h"

namespace torch_tpu::stablehlo {
namespace {

void append_name(std::string& out, int32_t id) {
  out += '%';
  append_integer(out, id);
}

void append_names(std::string& out, const Values& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (i) out += ", ";
    append_name(out, values[i].id());
  }
}

void append_type(std::string& out, const TensorType& type) {
  out += "tensor<";
  for (const int64_t d : type.dims) {
    append_integer(out, d);
    out += 'x';
  }
  out += name(type.dtype);
  out += '>';
}

void append_types(std::string& out, const Values& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (i) out += ", ";
    append_type(out, values[i].type());
  }
}

// XLA makes a computation without captures of the regions of every operation but these.
bool may_capture(std::string_view op) { return op == "stablehlo.if" || op == "stablehlo.while"; }

bool is_bare_symbol(std::string_view text) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  if (text.empty() || !(letter(text[0]) || text[0] == '_')) return false;
  return std::all_of(text.begin(), text.end(),
                     [&](char c) { return letter(c) || digit(c) || c == '_' || c == '$'; });
}

}  // namespace

const TensorType& Value::type() const {
  if (!builder_) throw BuildError("value: expected a value, got an empty handle");
  return builder_->type(id_);
}

Builder::Builder(std::string module_name) : module_name_(std::move(module_name)) {}

Value Builder::new_value(const TensorType& type) {
  for (const int64_t d : type.dims) {
    if (d < 0) throw BuildError("value: a dimension is negative in " + to_string(type));
  }
  values_.push_back({type});
  return Value(this, static_cast<int32_t>(values_.size() - 1));
}

Value Builder::parameter(const TensorType& type) {
  const Value value = new_value(type);
  parameters_.push_back(value.id());
  return value;
}

bool Builder::is_parameter(Value value) const {
  return std::binary_search(parameters_.begin(), parameters_.end(), value.id());
}

void Builder::alias(size_t parameter, size_t result) {
  if (parameter >= parameters_.size()) {
    fail("alias", "parameter " + std::to_string(parameter) + " does not exist, there are " +
                      std::to_string(parameters_.size()));
  }
  for (const auto& [p, r] : aliases_) {
    if (p == parameter || r == result) {
      fail("alias", "parameter " + std::to_string(p) + " and result " + std::to_string(r) +
                        " are aliased already");
    }
  }
  aliases_.emplace_back(parameter, result);
}

const Builder::Rearrangement* Builder::rearrangement(Value result) const {
  const auto found = rearrangements_.find(result.id());
  return found == rearrangements_.end() ? nullptr : &found->second;
}

void Builder::note_rearrangement(Value result, Rearrangement rearrangement) {
  rearrangements_.insert_or_assign(result.id(), std::move(rearrangement));
}

void Builder::check_operands(std::string_view op, const Values& operands) const {
  for (const Value v : operands) {
    if (!v) fail(op, "expected a value, got an empty handle");
    if (&v.builder() != this) fail(op, "an operand belongs to another program");
    const auto id = static_cast<size_t>(v.id());
    if (id >= values_.size() || !values_[id].in_scope) {
      fail(op, "an operand was made in a region that has ended; return it from the region");
    }
    if (v.id() < isolated_from_ && !values_[id].constant) {
      fail(op, "an operand of type " + to_string(v.type()) +
                   " was made outside of the enclosing reduction, sort or scatter body, which can "
                   "use its own arguments and constants only");
    }
  }
}

void Builder::indent() { body_.append(static_cast<size_t>(2 * depth_ + 4), ' '); }

void Builder::append_region(std::string_view op, const std::vector<TensorType>& arguments,
                            const Region& region) {
  const size_t first = values_.size();
  const int32_t outer_isolated_from = isolated_from_;
  if (!may_capture(op)) isolated_from_ = static_cast<int32_t>(first);
  Values values;
  values.reserve(arguments.size());
  for (const TensorType& type : arguments) values.push_back(new_value(type));

  body_ += "{\n";
  if (!values.empty()) {
    indent();
    body_ += "^bb0(";
    for (size_t i = 0; i < values.size(); ++i) {
      if (i) body_ += ", ";
      append_name(body_, values[i].id());
      body_ += ": ";
      append_type(body_, arguments[i]);
    }
    body_ += "):\n";
  }
  ++depth_;
  const Values results = region(values);
  check_operands(op, results);
  indent();
  body_ += "\"stablehlo.return\"(";
  append_names(body_, results);
  body_ += ") : (";
  append_types(body_, results);
  body_ += ") -> ()\n";
  --depth_;
  isolated_from_ = outer_isolated_from;
  indent();
  body_ += '}';

  for (size_t i = first; i < values_.size(); ++i) values_[i].in_scope = false;
  // A parameter is main's, wherever it was asked for.
  for (const int32_t id : parameters_) values_[static_cast<size_t>(id)].in_scope = true;
}

std::string Builder::shared_name(std::string_view op, const Values& operands,
                                 std::string_view attributes,
                                 const std::vector<TensorType>& results) const {
  // A barrier is there to make the same values others.
  if (depth_ > 0 || op == "stablehlo.optimization_barrier" || op == "stablehlo.custom_call") {
    return {};
  }
  std::string name(op);
  for (const Value v : operands) append_name(name, v.id());
  name += ' ';
  name += attributes;
  for (const TensorType& type : results) append_type(name, type);
  return name;
}

Values Builder::append(std::string_view op, const Values& operands, std::string_view attributes,
                       const std::vector<TensorType>& results,
                       const std::vector<std::pair<std::vector<TensorType>, Region>>& regions) {
  check_operands(op, operands);
  std::string shared;
  if (shares_equal_ && regions.empty()) {
    shared = shared_name(op, operands, attributes, results);
    const auto known = shared_.find(shared);
    if (known != shared_.end()) return known->second;
  }
  const size_t old_size = body_.size();
  const size_t old_values = values_.size();
  const size_t old_operations = num_operations_;
  const int old_depth = depth_;
  const int32_t old_isolated_from = isolated_from_;
  try {
    Values made;
    made.reserve(results.size());
    for (const TensorType& type : results) {
      made.push_back(new_value(type));
      values_.back().constant = op == "stablehlo.constant";
    }
    ++num_operations_;

    indent();
    if (!made.empty()) {
      append_names(body_, made);
      body_ += " = ";
    }
    body_ += '"';
    body_ += op;
    body_ += "\"(";
    append_names(body_, operands);
    body_ += ')';
    if (!regions.empty()) {
      // The results exist only after the operation; its regions must not use them.
      for (const Value v : made) values_[static_cast<size_t>(v.id())].in_scope = false;
      body_ += " (";
      for (size_t i = 0; i < regions.size(); ++i) {
        if (i) body_ += ", ";
        append_region(op, regions[i].first, regions[i].second);
      }
      body_ += ')';
      for (const Value v : made) values_[static_cast<size_t>(v.id())].in_scope = true;
    }
    if (!attributes.empty()) {
      body_ += " {";
      body_ += attributes;
      body_ += '}';
    }
    body_ += " : (";
    append_types(body_, operands);
    body_ += ") -> ";
    const bool parentheses = made.size() != 1;
    if (parentheses) body_ += '(';
    append_types(body_, made);
    if (parentheses) body_ += ')';
    body_ += '\n';
    if (!shared.empty()) shared_.emplace(std::move(shared), made);
    return made;
  } catch (...) {
    // A refused operation leaves the program as it was, so that the caller can try another way.
    body_.resize(old_size);
    while (values_.size() > old_values &&
           (parameters_.empty() || parameters_.back() < static_cast<int32_t>(values_.size()) - 1)) {
      values_.pop_back();
    }
    for (size_t i = old_values; i < values_.size(); ++i) values_[i].in_scope = false;
    for (const int32_t id : parameters_) values_[static_cast<size_t>(id)].in_scope = true;
    num_operations_ = old_operations;
    depth_ = old_depth;
    isolated_from_ = old_isolated_from;
    throw;
  }
}

Value Builder::append1(std::string_view op, const Values& operands, std::string_view attributes,
                       const TensorType& result) {
  return append(op, operands, attributes, {result})[0];
}

std::string Builder::finish(const Values& results) {
  if (finished_) fail("finish", "the program is finished already");
  if (depth_ != 0) fail("finish", "called from inside a region");
  check_operands("finish", results);
  finished_ = true;

  std::string out = "module @";
  out += is_bare_symbol(module_name_) ? module_name_ : quoted(module_name_);
  out += " {\n  func.func public @main(";
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (i) out += ", ";
    append_name(out, parameters_[i]);
    out += ": ";
    append_type(out, type(parameters_[i]));
    for (const auto& [parameter, result] : aliases_) {
      if (parameter != i) continue;
      if (result >= results.size()) {
        fail("finish", "parameter " + std::to_string(i) + " is aliased to result " +
                           std::to_string(result) + ", but there are only " +
                           std::to_string(results.size()) + " results");
      }
      if (results[result].type() != type(parameters_[i])) {
        fail("finish", "parameter " + std::to_string(i) + " of type " +
                           to_string(type(parameters_[i])) + " cannot be aliased to result " +
                           std::to_string(result) + " of type " +
                           to_string(results[result].type()));
      }
      out += " {tf.aliasing_output = ";
      append_integer(out, static_cast<int64_t>(result));
      out += " : i32}";
    }
  }
  out += ") -> (";
  append_types(out, results);
  out += ") {\n";
  out += body_;
  body_.clear();
  out += "    \"func.return\"(";
  append_names(out, results);
  out += ") : (";
  append_types(out, results);
  out += ") -> ()\n  }\n}\n";
  return out;
}

}  // namespace torch_tpu::stablehlo
