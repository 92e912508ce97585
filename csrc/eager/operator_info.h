// What the dispatcher needs to know of an operator, worked out once from its schema.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <string>
#include <vector>

#include "lowering/registry.h"

namespace torch_tpu::eager {

enum class ArgumentKind : uint8_t {
  kTensor,      // Tensor, Tensor?
  kTensorList,  // Tensor[], Tensor?[]
  kNumber,      // Scalar, float, optional or not
  kNumberList,  // Scalar[], float[]
  kInt,         // int, and MemoryFormat
  kIntList,
  kBool,
  kBoolList,
  kString,
  kDtype,
  kGenerator,
  kIgnored,  // Device, Layout, pin_memory: no part in the values
};

struct ArgumentInfo {
  std::string name;
  ArgumentKind kind = ArgumentKind::kIgnored;
  bool written = false;       // the schema says so, or the rule's options do
  bool is_out = false;        // written and never read: an out= argument
  bool known_number = false;  // numbers choose the program
};

struct ReturnInfo {
  enum class Kind : uint8_t { kTensor, kTensorList, kOther } kind = Kind::kTensor;
  int alias = -1;  // the argument that is returned
};

struct OperatorInfo {
  std::string name;      // aten::add
  std::string overload;  // Tensor
  const lowering::RuleEntry* rule = nullptr;
  std::vector<ArgumentInfo> arguments;
  std::vector<ReturnInfo> returns;
  int device_argument = -1;   // of a factory or a *_like operator: where the result goes
  bool mutates_only = false;  // an out= or in-place variant: written arguments are the results
  // Its lists go together element by element, and so do its results.
  bool element_by_element = false;
  // Whether some program of it takes products of float32: then every signature says how. Found out
  // when the first one is lowered, whatever rule or decomposition does it.
  mutable std::atomic<bool> uses_precision{false};

  std::string qualified() const { return overload.empty() ? name : name + "." + overload; }
};

// Lives as long as the process. Thread-safe.
const OperatorInfo& operator_info(const c10::OperatorHandle& op);

}  // namespace torch_tpu::eager
