// A program that was compiled elsewhere or earlier, and is run as it is: nothing is compiled here.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "eager/program.h"

namespace torch_tpu::compile {

// Thread-safe.
class LoadedProgram {
 public:
  struct Type {
    c10::ScalarType dtype = c10::ScalarType::Undefined;
    std::vector<int64_t> sizes;
  };
  // Output `output` is what input `input` holds afterwards.
  struct Write {
    size_t output = 0, input = 0;
  };

  // `bytes` is an executable of this process's plugin; the types are those of the program's
  // row-major arrays, and `names` say for messages what the inputs are. With a `random_count`, the
  // program has one more input, the generator's state. Throws pjrt::Error when the plugin refuses
  // the bytes.
  LoadedProgram(std::string name, std::string_view bytes, std::vector<Type> inputs,
                std::vector<std::string> names, const std::vector<Type>& outputs,
                std::span<const Write> writes, int64_t random_count);

  // Runs it. Inputs that are on the CPU, or in another order in memory, are copied first. Those
  // that the program writes are written in place, and are the outputs that stand for them; it is an
  // error if another input shares their memory.
  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& inputs) const;

 private:
  void check_written(const std::vector<at::Tensor>& inputs) const;
  // The input as the program takes it.
  at::Tensor fit(size_t place, const at::Tensor& input, int device) const;

  const std::string name_;
  const std::vector<Type> inputs_;
  const std::vector<std::string> names_;  // of the inputs
  const std::vector<Type> outputs_;
  eager::ProgramPtr program_;
};

}  // namespace torch_tpu::compile
