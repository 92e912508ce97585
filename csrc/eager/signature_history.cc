#include "eager/signature_history.h"

#include <c10/util/SmallVector.h>

#include <deque>
#include <mutex>
#include <sstream>
#include <unordered_map>

#include "eager/device_context.h"

namespace torch_tpu::eager {

namespace {

namespace sh = stablehlo;

// So many forms of an operator are kept.
constexpr size_t kMaxForms = 48;

// An argument, or an entry of a list of tensors or numbers.
struct Form {
  enum class Kind : uint8_t {
    kNone,
    kTensor,
    kNumber,
    kKnownNumber,
    kInteger,
    kFlag,
    kText,
    kList
  };

  Kind kind = Kind::kNone;
  uint16_t argument = 0;
  int32_t entry = -1;
  // Of a tensor its storage's slot; of a list its length; else the value.
  int64_t value = 0;
  double real = 0;                                     // of a number
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // of a tensor, a number or a dtype argument
  c10::SmallVector<int64_t, 4> sizes, strides;         // of a tensor
  int64_t offset = 0;                                  // of a tensor
  const runtime::Layout* base = nullptr;               // of a tensor; null: unfilled
  bool conj = false, neg = false;                      // of a tensor
  std::string text;
};

struct CallForm {
  uint64_t program = 0;
  bool moves = false;       // where its views start are operands
  uint64_t float_type = 0;  // PyTorch's default dtype
  PrecisionCode precision = 0;
  std::string name;  // describe_call()
  std::vector<Form> forms;
};

std::string name_of(c10::ScalarType type) {
  return type == c10::ScalarType::Undefined ? "none" : std::string(c10::getDtypeNames(type).first);
}

std::string precision_name(PrecisionCode code) {
  if (code == 0) return "left open";
  const stablehlo::Float32Products products = float32_products(code);
  const std::string emulated = products.emulated ? " (emulated)" : "";
  switch (products.precision) {
    case Precision::kDefault:
      return "medium" + emulated;
    case Precision::kHigh:
      return "high" + emulated;
    case Precision::kHighest:
      return "highest" + emulated;
  }
  return "";
}

// Mirrors what gather() puts into the key.
class Describer {
 public:
  Describer(const OperatorInfo& info, bool all_known, const CallState& state, CallForm& out)
      : info_(info), all_known_(all_known), state_(state), out_(out) {}

  void argument(size_t i, const c10::IValue& value) {
    const ArgumentInfo& arg = info_.arguments[i];
    if (arg.kind == ArgumentKind::kIgnored || arg.kind == ArgumentKind::kGenerator) return;
    argument_ = static_cast<uint16_t>(i);
    if (value.isNone()) {
      add(Form::Kind::kNone);
      return;
    }
    switch (arg.kind) {
      case ArgumentKind::kTensor:
        tensor(value.toTensor(), -1);
        break;
      case ArgumentKind::kTensorList: {
        const auto list = value.toListRef();
        add(Form::Kind::kList).value = static_cast<int64_t>(list.size());
        for (size_t k = 0; k < list.size(); ++k) {
          tensor(list[k].isNone() ? at::Tensor() : list[k].toTensor(), static_cast<int32_t>(k));
        }
        break;
      }
      case ArgumentKind::kNumber:
        number(value, arg.known_number || is_special_number(value), -1);
        break;
      case ArgumentKind::kNumberList: {
        const c10::List<c10::IValue> list = value.to<c10::List<c10::IValue>>();
        add(Form::Kind::kList).value = static_cast<int64_t>(list.size());
        for (size_t k = 0; k < list.size(); ++k) {
          number(list.get(k), arg.known_number, static_cast<int32_t>(k));
        }
        break;
      }
      case ArgumentKind::kInt:
        add(Form::Kind::kInteger).value = value.toInt();
        break;
      case ArgumentKind::kIntList:
        integers(value.isInt() ? std::vector{value.toInt()} : value.toIntVector());
        break;
      case ArgumentKind::kBool:
        add(Form::Kind::kFlag).value = value.toBool();
        break;
      case ArgumentKind::kBoolList: {
        std::vector<int64_t> bits;
        for (const bool b : value.toBoolList()) bits.push_back(b);
        integers(bits);
        break;
      }
      case ArgumentKind::kString:
        add(Form::Kind::kText).text = value.toStringRef();
        break;
      case ArgumentKind::kDtype:
        add(Form::Kind::kText).text = name_of(static_cast<c10::ScalarType>(value.toInt()));
        break;
      case ArgumentKind::kGenerator:
      case ArgumentKind::kIgnored:
        break;
    }
  }

 private:
  Form& add(Form::Kind kind, int32_t entry = -1) {
    Form& form = out_.forms.emplace_back();
    form.kind = kind;
    form.argument = argument_;
    form.entry = entry;
    return form;
  }

  void integers(const std::vector<int64_t>& values) {
    add(Form::Kind::kList).value = static_cast<int64_t>(values.size());
    for (size_t k = 0; k < values.size(); ++k) {
      add(Form::Kind::kInteger, static_cast<int32_t>(k)).value = values[k];
    }
  }

  void number(const c10::IValue& value, bool known, int32_t entry) {
    known = known || all_known_;
    Form& form = add(known ? Form::Kind::kKnownNumber : Form::Kind::kNumber, entry);
    form.dtype = value.isBool()     ? c10::ScalarType::Bool
                 : value.isInt()    ? c10::ScalarType::Long
                 : value.isDouble() ? c10::ScalarType::Double
                                    : value.toScalar().type();
    if (known && !value.isComplexDouble()) form.real = value.toScalar().toDouble();
  }

  void tensor(const at::Tensor& t, int32_t entry) {
    if (!t.defined()) {
      add(Form::Kind::kNone, entry);
      return;
    }
    if (t.device().type() != kTpu) {
      Form& form = add(all_known_ ? Form::Kind::kKnownNumber : Form::Kind::kNumber, entry);
      form.dtype = t.scalar_type();
      if (all_known_ && !t.is_complex()) form.real = t.item().toDouble();
      return;
    }
    Form& form = add(Form::Kind::kTensor, entry);
    form.value = state_.find_slot(device_storage(t));
    form.dtype = t.scalar_type();
    form.sizes.assign(t.sizes().begin(), t.sizes().end());
    form.strides.assign(t.strides().begin(), t.strides().end());
    form.offset = t.storage_offset();
    form.conj = t.is_conj();
    form.neg = t.is_neg();
    if (form.value >= 0) form.base = state_.contents[static_cast<size_t>(form.value)].layout;
  }

  const OperatorInfo& info_;
  const bool all_known_;
  const CallState& state_;
  CallForm& out_;
  uint16_t argument_ = 0;
};

// Of a new form to an old one: how many differences, and the first in words.
class Comparison {
 public:
  Comparison(const OperatorInfo& info, const CallForm& now, const CallForm& before, bool in_words)
      : info_(info), now_(now), before_(before), in_words_(in_words) {
    size_t i = 0, j = 0;
    while (i < now.forms.size() || j < before.forms.size()) {
      // Lists of different lengths: on to the next argument.
      const bool left = i < now.forms.size(), right = j < before.forms.size();
      const auto at = [](const Form& f) { return std::pair(f.argument, f.entry); };
      if (left && (!right || at(now.forms[i]) < at(before.forms[j]))) {
        count_ += 1;
        ++i;
      } else if (right && (!left || at(before.forms[j]) < at(now.forms[i]))) {
        count_ += 1;
        ++j;
      } else {
        compare(now.forms[i++], before.forms[j++]);
      }
    }
    if (now.float_type != before.float_type) {
      differ([&] {
        return "the default dtype is " + name_of(static_cast<c10::ScalarType>(now.float_type)) +
               ", was " + name_of(static_cast<c10::ScalarType>(before.float_type));
      });
    }
    if (now.precision != before.precision) {
      differ([&] {
        return "the precision of float32 products is " + precision_name(now.precision) + ", was " +
               precision_name(before.precision);
      });
    }
    if (now.moves != before.moves) {
      differ([] { return std::string("where a view starts has become an operand"); });
    }
  }

  int count() const { return count_; }
  std::string first() const {
    return count_ == 0 ? "nothing in the call: its program had been dropped, or a setting changed"
                       : first_;
  }

 private:
  template <typename Words>
  void differ(Words&& words, int weight = 1) {
    if (in_words_ && first_.empty()) first_ = words();
    count_ += weight;
  }

  const std::string& argument(size_t i) const { return info_.arguments[i].name; }
  std::string argument(const Form& form) const {
    std::string out = "argument '" + argument(form.argument) + "'";
    if (form.entry >= 0) out += ", entry " + std::to_string(form.entry);
    return out;
  }
  std::string attribute(const Form& form) const {
    std::string out = argument(form.argument);
    if (form.entry >= 0) out += "[" + std::to_string(form.entry) + "]";
    return out;
  }

  static std::string value_of(const Form& form) {
    switch (form.kind) {
      case Form::Kind::kNone:
        return "None";
      case Form::Kind::kTensor:
        return "a tensor";
      case Form::Kind::kNumber:
        return "another number";
      case Form::Kind::kKnownNumber: {
        if (form.dtype == c10::ScalarType::Bool) return form.real != 0 ? "True" : "False";
        std::ostringstream out;
        out << form.real;
        return out.str();
      }
      case Form::Kind::kInteger:
        return std::to_string(form.value);
      case Form::Kind::kFlag:
        return form.value != 0 ? "True" : "False";
      case Form::Kind::kText:
        return "'" + form.text + "'";
      case Form::Kind::kList:
        return "a list of " + std::to_string(form.value);
    }
    return "";
  }

  void compare(const Form& now, const Form& before) {
    using Kind = Form::Kind;
    if (now.kind != before.kind) {
      differ([&] { return attribute(now) + " is " + value_of(now) + ", was " + value_of(before); },
             4);
      return;
    }
    switch (now.kind) {
      case Kind::kTensor:
        compare_tensors(now, before);
        return;
      case Kind::kNumber:
      case Kind::kKnownNumber:
        if (now.dtype != before.dtype) {
          differ([&] {
            return attribute(now) + " is a number of dtype " + name_of(now.dtype) + ", was " +
                   name_of(before.dtype);
          });
          return;
        }
        [[fallthrough]];
      default:
        if (now.value == before.value && now.real == before.real && now.text == before.text) return;
        differ(
            [&] { return attribute(now) + " is " + value_of(now) + ", was " + value_of(before); });
    }
  }

  void compare_tensors(const Form& now, const Form& before) {
    const auto say = [&](const auto& what, const auto& is, const auto& was) {
      std::ostringstream out;
      out << argument(now) << ": " << what << ' ' << is << ", was " << was;
      return out.str();
    };
    if (now.dtype != before.dtype) {
      differ([&] { return say("dtype", name_of(now.dtype), name_of(before.dtype)); });
    }
    if (now.sizes.size() != before.sizes.size()) {
      differ([&] { return say("its dimensions are", now.sizes.size(), before.sizes.size()); }, 3);
      return;
    }
    const int so_far = count_;
    for (size_t d = 0; d < now.sizes.size(); ++d) {
      if (now.sizes[d] == before.sizes[d]) continue;
      differ([&] {
        return say("dimension " + std::to_string(d) + " is", now.sizes[d], before.sizes[d]);
      });
    }
    if (count_ > so_far) return;  // the strides follow
    for (size_t d = 0; d < now.sizes.size(); ++d) {
      if (now.strides[d] == before.strides[d]) continue;
      differ([&] {
        return say("the stride of dimension " + std::to_string(d) + " is", now.strides[d],
                   before.strides[d]);
      });
    }
    if (now.offset != before.offset) {
      differ([&] { return say("its offset in the storage is", now.offset, before.offset); });
    }
    if (now.value != before.value) {
      differ([&] {
        return argument(now) + ": it shares its storage with other arguments than before";
      });
    }
    if (now.conj != before.conj || now.neg != before.neg) {
      differ([&] {
        return argument(now) + ": its values are conjugated or negated otherwise than before";
      });
    }
    if (now.base != before.base && now.dtype == before.dtype) {
      const auto base = [](const Form& f) {
        return f.base ? sh::to_string(f.base->type) : std::string("empty");
      };
      differ([&] { return say("its storage is", base(now), base(before)); });
    }
  }

  const OperatorInfo& info_;
  const CallForm &now_, &before_;
  const bool in_words_;
  int count_ = 0;
  std::string first_;
};

struct Operator {
  const OperatorInfo* info = nullptr;
  std::deque<CallForm> forms;  // the oldest first
};

struct History {
  std::mutex mutex;
  std::unordered_map<const OperatorInfo*, Operator> operators;
  std::unordered_map<uint64_t, Operator*> of_program;

  const CallForm* find(uint64_t program) const {
    const auto it = of_program.find(program);
    if (it == of_program.end()) return nullptr;
    for (const CallForm& form : it->second->forms) {
      if (form.program == program) return &form;
    }
    return nullptr;
  }
};

// Never destroyed: calls may come while the process ends.
History& history() {
  static History& h = *std::make_unique<History>().release();
  return h;
}

}  // namespace

std::string describe_call(const OperatorInfo& info, std::span<const c10::IValue> arguments,
                          const Program& program) {
  std::ostringstream out;
  out << info.qualified() << '(';
  const char* separator = "";
  const auto add = [&](const at::Tensor& t) {
    if (!t.defined()) return;
    out << separator << name_of(t.scalar_type()) << t.sizes();
    separator = ", ";
  };
  for (const c10::IValue& a : arguments) {
    if (a.isTensor()) {
      add(a.toTensor());
    } else if (a.isTensorList()) {
      for (const at::Tensor& t : a.toTensorVector()) add(t);
    }
  }
  out << ')';
  const bool has_operands = *separator != '\0';
  if (has_operands && info.device_argument < 0) return out.str();
  separator = " -> ";
  for (const Program::NewTensor& t : program.tensors) {
    if (t.output < 0) continue;
    out << separator << name_of(t.dtype) << at::IntArrayRef(t.sizes);
    separator = ", ";
  }
  return out.str();
}

std::string note_signature(const OperatorInfo& info, std::span<const c10::IValue> arguments,
                           bool all_known, const CallState& state, const Program& program,
                           bool wanted) {
  CallForm form;
  form.program = program.id;
  form.moves = !state.moving.empty();
  form.float_type = state.key[0] >> 56;
  form.precision = state.precision();
  form.name = describe_call(info, arguments, program);
  Describer describer(info, all_known, state, form);
  for (size_t i = 0; i < info.arguments.size(); ++i) describer.argument(i, arguments[i]);

  History& h = history();
  const std::lock_guard lock(h.mutex);
  Operator& op = h.operators[&info];
  op.info = &info;
  std::string difference;
  if (wanted && !op.forms.empty()) {
    const CallForm* nearest = nullptr;
    int least = 0;
    for (auto it = op.forms.rbegin(); it != op.forms.rend(); ++it) {
      const int count = Comparison(info, form, *it, false).count();
      if (nearest && count >= least) continue;
      nearest = &*it;
      least = count;
    }
    difference = Comparison(info, form, *nearest, true).first();
  }
  if (op.forms.size() == kMaxForms) {
    h.of_program.erase(op.forms.front().program);
    op.forms.pop_front();
  }
  h.of_program[form.program] = &op;
  op.forms.push_back(std::move(form));
  return difference;
}

std::string signature_difference(uint64_t program, uint64_t other) {
  const History& h = history();
  const std::lock_guard lock(history().mutex);
  const CallForm *now = h.find(program), *before = h.find(other);
  if (!now || !before || h.of_program.at(program) != h.of_program.at(other)) return {};
  return Comparison(*h.of_program.at(program)->info, *now, *before, true).first();
}

std::string call_of_program(uint64_t program, const std::string& otherwise) {
  const History& h = history();
  const std::lock_guard lock(history().mutex);
  const CallForm* form = h.find(program);
  return form ? form->name : otherwise;
}

}  // namespace torch_tpu::eager
