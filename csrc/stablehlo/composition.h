// One program out of many: each becomes a function, and main calls them in order.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace torch_tpu::stablehlo {

// A module as Builder::finish writes it, taken apart. Views into the module's text.
class FunctionText {
 public:
  // Throws BuildError when the text is not such a module.
  explicit FunctionText(std::string_view module);

  const std::vector<std::string_view>& parameter_types() const { return parameter_types_; }
  const std::vector<std::string_view>& result_types() const { return result_types_; }
  // Appends the private function `name`. Donation is left out: it is for main to say.
  void append_to(std::string& out, std::string_view name) const;

 private:
  std::vector<std::string_view> parameter_names_, parameter_types_, result_types_;
  std::string_view body_;  // with the return
};

// A value inside main: one of its parameters, or a result of an earlier call.
struct ComposedValue {
  static constexpr uint32_t kParameter = ~uint32_t{0};
  uint32_t call = kParameter;
  uint32_t index = 0;  // of the parameter or the result

  bool operator==(const ComposedValue&) const = default;
};

struct ComposedCall {
  uint32_t function = 0;
  std::span<const ComposedValue> operands;
};

// The parameter's memory may become the result's.
struct ComposedAlias {
  uint32_t parameter = 0;
  uint32_t result = 0;
};

// `parameter_types` are main's. Throws BuildError when a call does not fit its function.
std::string compose(std::span<const FunctionText* const> functions,
                    std::span<const std::string> parameter_types,
                    std::span<const ComposedCall> calls, std::span<const ComposedValue> results,
                    std::span<const ComposedAlias> aliases);

}  // namespace torch_tpu::stablehlo
