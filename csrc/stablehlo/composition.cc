#include "stablehlo/composition.h"

#include "stablehlo/builder.h"

namespace torch_tpu::stablehlo {

namespace {

constexpr std::string_view kMain = "func.func public @main(";
constexpr std::string_view kArrow = ") -> (";
constexpr std::string_view kOpen = ") {\n";
constexpr std::string_view kClose = "  }\n}\n";

// Splits at the commas that are in no bracket.
std::vector<std::string_view> split(std::string_view list) {
  std::vector<std::string_view> parts;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    const char c = list[i];
    if (c == '<' || c == '{') ++depth;
    if (c == '>' || c == '}') --depth;
    if (c != ',' || depth != 0) continue;
    parts.push_back(list.substr(begin, i - begin));
    begin = i + 2;  // and a space
  }
  if (begin < list.size()) parts.push_back(list.substr(begin));
  return parts;
}

void append_list(std::string& out, std::span<const std::string_view> items) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i) out += ", ";
    out += items[i];
  }
}

[[noreturn]] void fail(const std::string& what) { throw BuildError("compose: " + what); }

}  // namespace

FunctionText::FunctionText(std::string_view module) {
  const size_t main = module.find(kMain);
  if (main == std::string_view::npos) fail("the module has no main");
  const size_t parameters = main + kMain.size();
  const size_t arrow = module.find(kArrow, parameters);
  const size_t open = arrow == std::string_view::npos ? arrow : module.find(kOpen, arrow);
  if (open == std::string_view::npos || !module.ends_with(kClose)) {
    fail("the module is not as the builder writes it");
  }
  for (std::string_view p : split(module.substr(parameters, arrow - parameters))) {
    const size_t colon = p.find(": ");
    if (colon == std::string_view::npos) fail("a parameter without a type");
    parameter_names_.push_back(p.substr(0, colon));
    p.remove_prefix(colon + 2);
    parameter_types_.push_back(p.substr(0, p.find(" {")));
  }
  const size_t results = arrow + kArrow.size();
  result_types_ = split(module.substr(results, open - results));
  const size_t body = open + kOpen.size();
  body_ = module.substr(body, module.size() - kClose.size() - body);
}

void FunctionText::append_to(std::string& out, std::string_view name) const {
  out += "  func.func private @";
  out += name;
  out += '(';
  for (size_t i = 0; i < parameter_names_.size(); ++i) {
    if (i) out += ", ";
    out += parameter_names_[i];
    out += ": ";
    out += parameter_types_[i];
  }
  out += kArrow;
  append_list(out, result_types_);
  out += kOpen;
  out += body_;
  out += "  }\n";
}

std::string compose(std::span<const FunctionText* const> functions,
                    std::span<const std::string> parameter_types,
                    std::span<const ComposedCall> calls, std::span<const ComposedValue> results,
                    std::span<const ComposedAlias> aliases) {
  const auto type_of = [&](const ComposedValue& v, size_t before) -> std::string_view {
    if (v.call == ComposedValue::kParameter) {
      if (v.index >= parameter_types.size()) fail("a parameter that does not exist");
      return parameter_types[v.index];
    }
    if (v.call >= before) fail("a value is used before it is computed");
    const auto& types = functions[calls[v.call].function]->result_types();
    if (v.index >= types.size()) fail("a result that does not exist");
    return types[v.index];
  };
  const auto append_value = [&](std::string& out, const ComposedValue& v) {
    if (v.call == ComposedValue::kParameter) {
      out += "%p" + std::to_string(v.index);
      return;
    }
    out += "%c" + std::to_string(v.call);
    if (functions[calls[v.call].function]->result_types().size() > 1) {
      out += "#" + std::to_string(v.index);
    }
  };

  std::string out = "module @torch_tpu {\n";
  for (size_t i = 0; i < functions.size(); ++i) {
    functions[i]->append_to(out, "f" + std::to_string(i));
  }
  out += "  ";
  out += kMain;
  for (size_t i = 0; i < parameter_types.size(); ++i) {
    if (i) out += ", ";
    out += "%p" + std::to_string(i) + ": " + parameter_types[i];
    for (const ComposedAlias& alias : aliases) {
      if (alias.parameter != i) continue;
      if (alias.result >= results.size() ||
          type_of(results[alias.result], calls.size()) != parameter_types[i]) {
        fail("an alias of another type");
      }
      out += " {tf.aliasing_output = " + std::to_string(alias.result) + " : i32}";
    }
  }
  out += kArrow;
  std::vector<std::string_view> types;
  for (const ComposedValue& v : results) types.push_back(type_of(v, calls.size()));
  append_list(out, types);
  out += kOpen;
  for (size_t i = 0; i < calls.size(); ++i) {
    const ComposedCall& call = calls[i];
    const FunctionText& f = *functions[call.function];
    if (call.operands.size() != f.parameter_types().size()) fail("a call with other operands");
    out += "    ";
    if (const size_t n = f.result_types().size()) {
      out += "%c" + std::to_string(i);
      if (n > 1) out += ":" + std::to_string(n);
      out += " = ";
    }
    out += "func.call @f" + std::to_string(call.function) + "(";
    for (size_t k = 0; k < call.operands.size(); ++k) {
      if (type_of(call.operands[k], i) != f.parameter_types()[k]) fail("an operand's type");
      if (k) out += ", ";
      append_value(out, call.operands[k]);
    }
    out += ") : (";
    append_list(out, f.parameter_types());
    out += kArrow;
    append_list(out, f.result_types());
    out += ")\n";
  }
  out += "    func.return";
  for (size_t i = 0; i < results.size(); ++i) {
    out += i ? ", " : " ";
    append_value(out, results[i]);
  }
  if (!results.empty()) {
    out += " : ";
    append_list(out, types);
  }
  out += "\n" + std::string(kClose);
  return out;
}

}  // namespace torch_tpu::stablehlo
