#include "eager/operator_info.h"

#include <ATen/core/jit_type.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace torch_tpu::eager {

namespace {

ArgumentKind classify(const c10::Argument& argument) {
  c10::TypePtr type = argument.real_type();
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return ArgumentKind::kTensor;
    case c10::TypeKind::NumberType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::ComplexType:
      return ArgumentKind::kNumber;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::MemoryFormatType:
      return ArgumentKind::kInt;
    case c10::TypeKind::BoolType:
    case c10::TypeKind::SymBoolType:
      return argument.name() == "pin_memory" ? ArgumentKind::kIgnored : ArgumentKind::kBool;
    case c10::TypeKind::StringType:
      return ArgumentKind::kString;
    case c10::TypeKind::ScalarTypeType:
      return ArgumentKind::kDtype;
    case c10::TypeKind::GeneratorType:
      return ArgumentKind::kGenerator;
    case c10::TypeKind::ListType: {
      c10::TypePtr element = type->expectRef<c10::ListType>().getElementType();
      if (const auto optional = element->cast<c10::OptionalType>()) {
        element = optional->getElementType();
      }
      switch (element->kind()) {
        case c10::TypeKind::TensorType:
          return ArgumentKind::kTensorList;
        case c10::TypeKind::NumberType:
        case c10::TypeKind::FloatType:
          return ArgumentKind::kNumberList;
        case c10::TypeKind::IntType:
        case c10::TypeKind::SymIntType:
          return ArgumentKind::kIntList;
        case c10::TypeKind::BoolType:
          return ArgumentKind::kBoolList;
        default:
          return ArgumentKind::kIgnored;
      }
    }
    default:
      return ArgumentKind::kIgnored;
  }
}

bool is_device(const c10::Argument& argument) {
  c10::TypePtr type = argument.real_type();
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return type->kind() == c10::TypeKind::DeviceObjType;
}

bool lists(const std::vector<std::string>& names, const std::string& name) {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& n) { return n == "*" || n == name; });
}

// The operators of optimizers: `_foreach_<op>` of any, and a whole update (`_fused_adamw_`).
bool is_element_by_element(const OperatorInfo& info) {
  if (!info.name.starts_with("aten::_foreach_") && !info.name.starts_with("aten::_fused_")) {
    return false;
  }
  return !info.arguments.empty() && info.arguments[0].kind == ArgumentKind::kTensorList &&
         std::ranges::all_of(info.returns, [](const ReturnInfo& r) {
           return r.kind == ReturnInfo::Kind::kTensorList;
         });
}

std::unique_ptr<OperatorInfo> describe(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  auto info = std::make_unique<OperatorInfo>();
  info->name = schema.name();
  info->overload = schema.overload_name();
  info->rule = lowering::Registry::instance().find(info->name, info->overload);
  bool any_written = false;
  for (const c10::Argument& a : schema.arguments()) {
    ArgumentInfo arg;
    arg.name = a.name();
    arg.kind = classify(a);
    arg.written = a.alias_info() != nullptr && a.alias_info()->isWrite();
    arg.is_out = arg.written && a.is_out();
    any_written |= arg.written;
    if (is_device(a)) info->device_argument = static_cast<int>(info->arguments.size());
    if (info->rule) {
      const lowering::RuleOptions& options = info->rule->options;
      arg.known_number = lists(options.known_numbers, arg.name);
      if (lists(options.mutates, arg.name)) arg.written = true;
    }
    info->arguments.push_back(std::move(arg));
  }
  for (const c10::Argument& r : schema.returns()) {
    ReturnInfo ret;
    if (r.alias_info() != nullptr && r.alias_info()->isWrite()) {
      for (size_t i = 0; i < schema.arguments().size(); ++i) {
        const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
        if (alias && alias->isWrite() && alias->beforeSets() == r.alias_info()->beforeSets()) {
          ret.alias = static_cast<int>(i);
        }
      }
    }
    switch (r.type()->kind()) {
      case c10::TypeKind::TensorType:
        ret.kind = ReturnInfo::Kind::kTensor;
        break;
      case c10::TypeKind::ListType:
        ret.kind = r.type()->expectRef<c10::ListType>().getElementType()->kind() ==
                           c10::TypeKind::TensorType
                       ? ReturnInfo::Kind::kTensorList
                       : ReturnInfo::Kind::kOther;
        break;
      default:
        ret.kind = ReturnInfo::Kind::kOther;
        break;
    }
    info->returns.push_back(ret);
  }
  info->mutates_only = any_written && std::all_of(info->returns.begin(), info->returns.end(),
                                                  [](const ReturnInfo& r) { return r.alias >= 0; });
  info->element_by_element = is_element_by_element(*info);
  return info;
}

}  // namespace

const OperatorInfo& operator_info(const c10::OperatorHandle& op) {
  static std::mutex mutex;
  static std::unordered_map<c10::OperatorName, std::unique_ptr<OperatorInfo>> infos;
  const std::lock_guard lock(mutex);
  std::unique_ptr<OperatorInfo>& info = infos[op.operator_name()];
  if (!info) info = describe(op);
  return *info;
}

}  // namespace torch_tpu::eager
