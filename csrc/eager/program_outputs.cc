#include "eager/program_outputs.h"

namespace torch_tpu::eager {

int ProgramOutputs::add(stablehlo::Value value, int slot) {
  values_.push_back(value);
  const runtime::Layout* layout = runtime::intern_layout(value.type());
  program_.outputs.push_back({layout, slot});
  program_.output_bytes += layout->nbytes;
  return static_cast<int>(values_.size()) - 1;
}

void ProgramOutputs::write(int slot, stablehlo::Value value) {
  const int output = add(value, slot);
  for (size_t p = 0; p < program_.parameters.size(); ++p) {
    Program::Parameter& parameter = program_.parameters[p];
    if (parameter.kind != Program::Parameter::Kind::kStorage ||
        static_cast<int>(parameter.index) != slot) {
      continue;
    }
    if (state_.contents[parameter.index].layout->type == value.type() && value.numel() > 0) {
      parameter.donated = true;
      builder_.alias(p, static_cast<size_t>(output));
    }
  }
}

}  // namespace torch_tpu::eager
