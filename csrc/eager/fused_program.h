// A closed graph as one program.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "eager/explain.h"
#include "eager/graph_calls.h"
#include "runtime/batch.h"
#include "stablehlo/composition.h"

namespace torch_tpu::eager {

// Which input's memory becomes which result's: first that of the value a result replaced in
// place, then any of its type that is not read after the result was computed. Otherwise the
// compiler would copy the input first.
// `given_up`: inputs that nobody needs afterwards.
std::vector<stablehlo::ComposedAlias> find_aliases(const runtime::Batch& batch,
                                                   const GraphCalls& what,
                                                   std::span<const uint32_t> given_up);

// The program's text: the calls' own programs are its functions.
std::string compose(const runtime::Batch& batch, const GraphCalls& what,
                    std::span<const stablehlo::ComposedAlias> aliases);

GraphForm form_of(const GraphCalls& what, const runtime::Batch& batch);

// For messages.
std::string describe(const GraphCalls& what);

}  // namespace torch_tpu::eager
