#include "eager/fused_program.h"

#include <algorithm>
#include <deque>
#include <unordered_map>

namespace torch_tpu::eager {

namespace sh = stablehlo;

std::vector<sh::ComposedAlias> find_aliases(const runtime::Batch& batch, const GraphCalls& what,
                                            std::span<const uint32_t> given_up) {
  constexpr uint32_t kNone = ~uint32_t{0};
  std::vector<uint32_t> replaced, made_by;  // of each value: an input or kNone, its call
  std::vector<uint32_t> last_read(batch.inputs.size(), 0);
  for (uint32_t c = 0; c < what.calls.size(); ++c) {
    const Program& program = *what.calls[c].program;
    const uint32_t* const operands = what.operands.data() + what.calls[c].first_operand;
    std::unordered_map<int, uint32_t> origins;  // of the storages it writes
    for (size_t k = 0; k < program.parameters.size(); ++k) {
      const uint32_t index = operands[k] >> 1;
      if (!is_value(operands[k])) last_read[index] = c;
      if (!program.parameters[k].donated) continue;
      origins.emplace(static_cast<int>(program.parameters[k].index),
                      is_value(operands[k]) ? replaced[index] : index);
    }
    for (const Program::Output& o : program.outputs) {
      const auto origin = origins.find(o.slot);
      replaced.push_back(origin == origins.end() ? kNone : origin->second);
      made_by.push_back(c);
    }
  }
  std::vector<bool> free_input(batch.inputs.size(), false);
  for (const uint32_t i : given_up) free_input[i] = true;
  std::vector<sh::ComposedAlias> aliases;
  std::unordered_map<const runtime::Layout*, std::deque<uint32_t>> others;  // results
  for (uint32_t r = 0; r < batch.outputs.size(); ++r) {
    const uint32_t i = replaced[what.live[r]];
    const runtime::Layout* const layout = batch.outputs[r]->layout();
    if (i != kNone && free_input[i] && batch.inputs[i]->layout() == layout) {
      free_input[i] = false;
      aliases.push_back({i, r});
    } else {
      others[layout].push_back(r);
    }
  }
  for (const uint32_t i : given_up) {
    const auto it = free_input[i] ? others.find(batch.inputs[i]->layout()) : others.end();
    if (it == others.end()) continue;
    const auto result = std::ranges::find_if(
        it->second, [&](uint32_t r) { return made_by[what.live[r]] >= last_read[i]; });
    if (result == it->second.end()) continue;
    aliases.push_back({i, *result});
    it->second.erase(result);
  }
  std::ranges::sort(aliases, {}, &sh::ComposedAlias::parameter);
  return aliases;
}

std::string compose(const runtime::Batch& batch, const GraphCalls& what,
                    std::span<const sh::ComposedAlias> aliases) {
  std::deque<sh::FunctionText> texts;
  std::vector<const sh::FunctionText*> functions;
  std::unordered_map<uint64_t, uint32_t> known;  // by the program's id
  std::vector<std::pair<uint32_t, uint32_t>> value_places;
  for (size_t c = 0; c < what.calls.size(); ++c) {
    const Program& program = *what.calls[c].program;
    for (size_t r = 0; r < program.outputs.size(); ++r) {
      value_places.emplace_back(static_cast<uint32_t>(c), static_cast<uint32_t>(r));
    }
  }
  const auto value_of = [&](uint32_t code) {
    if (!is_value(code)) return sh::ComposedValue{sh::ComposedValue::kParameter, code >> 1};
    const auto& [call, result] = value_places[code >> 1];
    return sh::ComposedValue{call, result};
  };
  std::vector<sh::ComposedValue> operands;
  operands.reserve(what.operands.size());
  for (const uint32_t code : what.operands) operands.push_back(value_of(code));
  std::vector<sh::ComposedCall> calls;
  for (const Call& call : what.calls) {
    const auto [it, is_new] =
        known.emplace(call.program->id, static_cast<uint32_t>(functions.size()));
    if (is_new) {
      texts.emplace_back(call.program->executable->text());
      functions.push_back(&texts.back());
    }
    calls.push_back(
        {it->second, {operands.data() + call.first_operand, call.program->parameters.size()}});
  }
  std::vector<std::string> parameters;
  for (const runtime::DeviceBufferPtr& input : batch.inputs) {
    parameters.push_back(sh::to_string(input->layout()->type));
  }
  std::vector<sh::ComposedValue> results;
  for (const uint32_t v : what.live) results.push_back(value_of(value_code(v)));
  return sh::compose(functions, parameters, calls, results, aliases);
}

GraphForm form_of(const GraphCalls& what, const runtime::Batch& batch) {
  GraphForm form;
  uint32_t values = 0;
  for (const Call& call : what.calls) {
    const Program& program = *call.program;
    form.calls.push_back({program.id, &program.executable->what(), call.first_operand, values});
    values += static_cast<uint32_t>(program.outputs.size());
  }
  form.operands = what.operands;
  form.live = what.live;
  for (const int64_t input : batch.donated) form.donated.push_back(static_cast<uint32_t>(input));
  return form;
}

std::string describe(const GraphCalls& what) {
  return "a fused program of " + std::to_string(what.calls.size()) + " operators (" +
         names_of(what) + ")";
}

}  // namespace torch_tpu::eager
