#include "compile/control_flow.h"

#include <algorithm>
#include <optional>

#include "eager/device_context.h"
#include "eager/device_storage.h"
#include "eager/scalar_types.h"
#include "eager/trace.h"
#include "lowering/view.h"

namespace torch_tpu::compile {

namespace sh = stablehlo;
using eager::Trace;
using eager::TraceAborted;
using Values = CompiledGraph::Values;
using Body = CompiledGraph::Body;

namespace {

Trace& current_trace(const char* what) {
  Trace* const trace = Trace::current();
  TORCH_CHECK(trace, what, ": expected to be called while a graph is being lowered");
  return *trace;
}

// The elements of a tensor of the trace.
sh::Value read(Trace& trace, const at::Tensor& t) {
  if (!eager::is_tpu(t)) throw TraceAborted("control flow uses a tensor that is not on the device");
  const sh::TensorType type{eager::to_element_type(t.scalar_type()), t.sizes().vec()};
  eager::DeviceStorage& storage = eager::device_storage(t);
  if (!storage.contents().filled()) return sh::splat(trace.builder(), type, 0);
  sh::Value value = lowering::read_view(trace.base(storage), eager::view_of(t));
  if (t.is_conj()) value = sh::complex(sh::real(value), sh::negate(sh::imag(value)));
  if (t.is_neg()) value = sh::negate(value);
  return value;
}

// What a tensor looks like. As a value of the program it has its elements in the order of the
// memory, so that passing it through a region moves nothing.
class Form {
 public:
  explicit Form(const at::Tensor& t)
      : dtype_(t.scalar_type()), sizes_(t.sizes().vec()), device_(t.device().index()) {
    if (const auto order = lowering::dense_order(sizes_, t.strides())) {
      order_ = *order;
      strides_ = t.strides().vec();
    } else {
      for (int64_t i = 0; i < t.dim(); ++i) order_.push_back(i);
      const auto strides = eager::row_major_strides(sizes_);
      strides_.assign(strides.begin(), strides.end());
    }
  }

  // A tensor of this form, one dimension larger, in the order of its dimensions.
  Form stacked(int64_t count) const {
    Form out = *this;
    out.sizes_.insert(out.sizes_.begin(), count);
    out.order_.clear();
    for (size_t i = 0; i < out.sizes_.size(); ++i) out.order_.push_back(static_cast<int64_t>(i));
    const auto strides = eager::row_major_strides(out.sizes_);
    out.strides_.assign(strides.begin(), strides.end());
    return out;
  }

  sh::TensorType type() const {
    sh::TensorType out{eager::to_element_type(dtype_), {}};
    for (const int64_t dim : order_) out.dims.push_back(sizes_[static_cast<size_t>(dim)]);
    return out;
  }

  sh::Value value_of(Trace& trace, const at::Tensor& t, const char* what) const {
    TORCH_CHECK(t.scalar_type() == dtype_ && t.sizes() == at::IntArrayRef(sizes_), what,
                ": expected a tensor of ", dtype_, sh::to_string(sizes_), ", got ", t.scalar_type(),
                t.sizes());
    return in_order(read(trace, t));
  }

  sh::Value in_order(sh::Value value) const {
    return std::is_sorted(order_.begin(), order_.end()) ? value : sh::transpose(value, order_);
  }

  at::Tensor tensor(sh::Value value) const {
    const auto nbytes = static_cast<size_t>(value.numel()) * c10::elementSize(dtype_);
    at::Tensor t = eager::make_tensor(nullptr, dtype_, sizes_, strides_, 0, nbytes, device_);
    eager::device_storage(t).set_traced(value);
    return t;
  }

 private:
  c10::ScalarType dtype_;
  std::vector<int64_t> sizes_, strides_;
  sh::Dims order_;
  int device_;
};

using Forms = std::vector<Form>;

Forms forms_of(const Values& tensors, const char* what) {
  Forms out;
  out.reserve(tensors.size());
  for (const c10::IValue& value : tensors) {
    if (!value.isTensor()) throw TraceAborted(std::string(what) + " takes what is no tensor");
    out.emplace_back(value.toTensor());
  }
  return out;
}

Values tensors_of(const Forms& forms, const sh::Value* values) {
  Values out;
  out.reserve(forms.size());
  for (const Form& form : forms) out.emplace_back(form.tensor(*values++));
  return out;
}

Values joined(std::initializer_list<const Values*> parts) {
  Values out;
  for (const Values* part : parts) out.insert(out.end(), part->begin(), part->end());
  return out;
}

// How many regions the body that is being traced is in.
int& region_depth() {
  thread_local int depth = 0;
  return depth;
}

bool in_region() { return region_depth() > 0; }

class InRegion {
 public:
  InRegion() { ++region_depth(); }
  ~InRegion() { --region_depth(); }
  InRegion(const InRegion&) = delete;
  InRegion& operator=(const InRegion&) = delete;
};

// Runs a body whose region may not run: what it writes would be seen outside of it.
Values run_region(const Body& body, const Values& inputs, const char* what) {
  const InRegion region;
  std::vector<std::pair<eager::DeviceStorage*, sh::Value>> before;
  for (const c10::IValue& value : inputs) {
    if (!value.isTensor() || !eager::is_tpu(value.toTensor())) continue;
    eager::DeviceStorage& storage = eager::device_storage(value.toTensor());
    before.emplace_back(&storage, storage.contents().traced);
  }
  Values out = body(inputs);
  bool wrote = false;
  for (const auto& [storage, value] : before) {
    if (storage->contents().traced == value) continue;
    wrote = true;
    if (value) {
      storage->set_traced(value);
    } else {
      storage->clear();
    }
  }
  if (wrote) throw TraceAborted(std::string(what) + ": a body writes to a tensor it was given");
  return out;
}

sh::Value predicate_of(Trace& trace, const at::Tensor& t, const char* what) {
  TORCH_CHECK(t.numel() == 1, what, ": expected a predicate of one element, got ", t.sizes());
  return sh::reshape(sh::convert(read(trace, t), sh::ElementType::kPred), {});
}

// What a body gives, found out by tracing it into a program that is thrown away.
struct Outline {
  std::vector<std::optional<Form>> forms;  // of its results; empty: no tensor
  Values constants;                        // the results that are no tensors
  int64_t random_count = 0;
};

class Draft {
 public:
  Draft() : trace_([this] { return trace_.builder().parameter({sh::ElementType::kU64, {2}}); }) {}

  // `inputs`: tensors of another trace, or unfilled ones.
  Outline run(const Body& body, const Values& inputs) {
    Values given;
    given.reserve(inputs.size());
    for (const c10::IValue& value : inputs) {
      if (!value.isTensor() || !eager::is_tpu(value.toTensor())) {
        given.push_back(value);
        continue;
      }
      const at::Tensor& t = value.toTensor();
      const eager::Contents contents = eager::device_storage(t).contents();
      const sh::Value base =
          contents.filled() ? trace_.builder().parameter(contents.layout->type) : sh::Value();
      const at::Tensor input = trace_.placeholder(base, t);
      input.unsafeGetTensorImpl()->_set_conj(t.is_conj());
      input.unsafeGetTensorImpl()->_set_neg(t.is_neg());
      given.emplace_back(input);
    }
    const eager::TraceGuard guard(trace_);
    Outline out;
    out.constants = body(given);
    for (c10::IValue& value : out.constants) {
      if (value.isTensor() && value.toTensor().defined()) {
        out.forms.emplace_back(value.toTensor());
        value = c10::IValue();
      } else {
        out.forms.emplace_back();
      }
    }
    out.random_count = trace_.random_count();
    return out;
  }

 private:
  Trace trace_;
};

// Counter steps behind (seed, offset) `state`: as many as `each` times `index`.
sh::Value moved(sh::Value state, sh::Value index, int64_t each) {
  const std::array<int64_t, 2> words{0, each};
  const sh::Value step = sh::constant(state.builder(), words, sh::ElementType::kU64);
  const sh::Value times = sh::broadcast_in_dim(sh::convert(index, sh::ElementType::kU64), {2}, {});
  return sh::add(state, sh::multiply(step, times));
}

// Counter steps behind (seed, offset) `state`.
sh::Value moved(sh::Value state, int64_t steps) {
  const std::array<int64_t, 2> words{0, steps};
  return sh::add(state, sh::constant(state.builder(), words, sh::ElementType::kU64));
}

class RandomSourceGuard {
 public:
  RandomSourceGuard(Trace& trace, sh::Value state)
      : trace_(trace), previous_(trace.random_source()) {
    trace.random_source() = {state, 0, false, {}};
  }
  ~RandomSourceGuard() { trace_.random_source() = previous_; }
  RandomSourceGuard(const RandomSourceGuard&) = delete;
  RandomSourceGuard& operator=(const RandomSourceGuard&) = delete;

 private:
  Trace& trace_;
  const Trace::RandomSource previous_;
};

}  // namespace

Values cond(const at::Tensor& predicate, const Body& on_true, const Body& on_false,
            const Values& operands) {
  constexpr const char* kWhat = "cond";
  Trace& trace = current_trace(kWhat);
  const sh::Value which = predicate_of(trace, predicate, kWhat);
  const Outline outline = Draft().run(on_true, operands);
  std::vector<sh::TensorType> types;
  for (const std::optional<Form>& form : outline.forms) {
    if (form) types.push_back(form->type());
  }
  // Both branches begin with the same random numbers, as they would if only one was there.
  const int64_t drawn = trace.random_source().count;
  int64_t most = drawn;
  const auto branch = [&](const Body& body) {
    return [&](const sh::Values&) {
      trace.random_source().count = drawn;
      const Values results = run_region(body, operands, kWhat);
      most = std::max(most, trace.random_source().count);
      TORCH_CHECK(results.size() == outline.forms.size(),
                  "cond: expected both branches to give as many results, got ",
                  outline.forms.size(), " and ", results.size());
      sh::Values out;
      for (size_t i = 0; i < results.size(); ++i) {
        const bool is_tensor = results[i].isTensor() && results[i].toTensor().defined();
        if (is_tensor && outline.forms[i]) {
          out.push_back(outline.forms[i]->value_of(trace, results[i].toTensor(), kWhat));
        } else if (is_tensor || outline.forms[i] || outline.constants[i] != results[i]) {
          throw TraceAborted("cond: the branches give different numbers");
        }
      }
      return out;
    };
  };
  const sh::Values made = sh::if_(which, branch(on_true), branch(on_false), types);
  trace.random_source().count = most;
  Values out = outline.constants;
  size_t next = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    if (outline.forms[i]) out[i] = outline.forms[i]->tensor(made[next++]);
  }
  return out;
}

Values while_loop(const Body& condition, const Body& body, const Values& carried,
                  const Values& others) {
  constexpr const char* kWhat = "while_loop";
  Trace& trace = current_trace(kWhat);
  const Forms forms = forms_of(carried, kWhat);
  sh::Values init;
  for (size_t i = 0; i < carried.size(); ++i) {
    init.push_back(forms[i].value_of(trace, carried[i].toTensor(), kWhat));
  }
  if (init.empty()) throw TraceAborted("while_loop: nothing is carried");
  Trace::RandomSource& source = trace.random_source();
  const Outline outline = Draft().run(body, joined({&carried, &others}));
  const int64_t random_steps = outline.random_count / 4;
  if (random_steps > 0) {
    // How many are drawn in all is not known before the loop has run.
    if (!source.may_follow || in_region()) {
      throw TraceAborted("while_loop: random numbers are drawn in a loop");
    }
    init.push_back(trace.random(0));
  }
  const int64_t drawn = source.count;
  const auto run = [&](const Body& part, const sh::Values& values) {
    const Values now = tensors_of(forms, values.data());
    return run_region(part, joined({&now, &others}), kWhat);
  };
  const sh::Values made = sh::while_(
      init,
      [&](const sh::Values& values) {
        const Values results = run(condition, values);
        if (source.count != drawn) {
          throw TraceAborted("while_loop: the condition draws random numbers");
        }
        if (results.size() != 1 || !results[0].isTensor()) {
          throw TraceAborted("while_loop: the condition is no tensor");
        }
        return sh::Values{predicate_of(trace, results[0].toTensor(), kWhat)};
      },
      [&](const sh::Values& values) {
        std::optional<RandomSourceGuard> random;
        if (random_steps > 0) random.emplace(trace, values.back());
        const Values results = run(body, values);
        TORCH_CHECK(results.size() == forms.size(), "while_loop: expected the body to give ",
                    forms.size(), " results, got ", results.size());
        sh::Values out;
        for (size_t i = 0; i < results.size(); ++i) {
          if (!results[i].isTensor()) throw TraceAborted("while_loop carries what is no tensor");
          out.push_back(forms[i].value_of(trace, results[i].toTensor(), kWhat));
        }
        if (random_steps > 0) out.push_back(moved(values.back(), random_steps));
        return out;
      });
  if (random_steps > 0) {
    if (!source.first) source.first = source.state;
    // Those of before the loop are in `count`.
    const std::array<int64_t, 2> words{0, drawn / 4};
    source.state =
        sh::subtract(made.back(), sh::constant(trace.builder(), words, sh::ElementType::kU64));
  }
  return tensors_of(forms, made.data());
}

Values scan(const Body& body, const Values& carried, const Values& slices, const Values& others) {
  constexpr const char* kWhat = "scan";
  Trace& trace = current_trace(kWhat);
  sh::Builder& builder = trace.builder();
  const Forms carried_forms = forms_of(carried, kWhat);
  const Forms whole_forms = forms_of(slices, kWhat);
  TORCH_CHECK(!slices.empty(), "scan: expected at least one tensor to take slices of");
  const int64_t steps = slices[0].toTensor().size(0);
  TORCH_CHECK(steps > 0, "scan: expected a first dimension that is not 0, got ",
              slices[0].toTensor().sizes());
  sh::Values wholes;
  Forms slice_forms;
  Values any_slices;
  for (const c10::IValue& value : slices) {
    const at::Tensor& t = value.toTensor();
    TORCH_CHECK(t.dim() > 0 && t.size(0) == steps,
                "scan: expected tensors of the same first dimension, got ", t.sizes(), " and ",
                slices[0].toTensor().sizes());
    wholes.push_back(read(trace, t));
    const auto sizes = t.sizes().slice(1);
    const at::Tensor any = eager::make_tensor(
        nullptr, t.scalar_type(), sizes, eager::row_major_strides(sizes), 0,
        static_cast<size_t>(t.numel() / steps) * t.itemsize(), t.device().index());
    slice_forms.emplace_back(any);
    any_slices.emplace_back(any);
  }
  const Outline outline = Draft().run(body, joined({&carried, &any_slices, &others}));
  TORCH_CHECK(outline.forms.size() >= carried.size(), "scan: expected the body to give at least ",
              carried.size(), " results, got ", outline.forms.size());
  // The loop carries the index, what is carried, and the results so far. None among the results
  // stays None.
  sh::Values init{sh::scalar(builder, sh::ElementType::kS32, 0)};
  for (size_t i = 0; i < carried.size(); ++i) {
    init.push_back(carried_forms[i].value_of(trace, carried[i].toTensor(), kWhat));
  }
  std::vector<std::optional<Form>> result_forms;
  for (size_t i = carried.size(); i < outline.forms.size(); ++i) {
    result_forms.emplace_back();
    if (outline.forms[i]) {
      result_forms.back() = outline.forms[i]->stacked(steps);
      init.push_back(sh::splat(builder, result_forms.back()->type(), 0));
    } else if (!outline.constants[i].isNone()) {
      throw TraceAborted("scan: the body gives a number");
    }
  }
  const int64_t random_steps = outline.random_count / 4;
  const sh::Value random_start = random_steps > 0 ? trace.random(0) : sh::Value();
  const auto place = [&](sh::Value index, int64_t rank) {
    sh::Values start(static_cast<size_t>(rank), sh::scalar(builder, sh::ElementType::kS32, 0));
    start[0] = index;
    return start;
  };
  const auto step = [&](const sh::Values& values) {
    const sh::Value index = values[0];
    const Values now = tensors_of(carried_forms, values.data() + 1);
    Values current;
    for (size_t i = 0; i < wholes.size(); ++i) {
      sh::Dims dims = wholes[i].dims();
      dims[0] = 1;
      const sh::Value slice = sh::dynamic_slice(wholes[i], place(index, wholes[i].rank()), dims);
      current.emplace_back(slice_forms[i].tensor(sh::squeeze_dim(slice, 0)));
    }
    std::optional<RandomSourceGuard> random;
    if (random_start) random.emplace(trace, moved(random_start, index, random_steps));
    const Values results = run_region(body, joined({&now, &current, &others}), kWhat);
    sh::Values next{sh::add(index, sh::scalar(builder, sh::ElementType::kS32, 1))};
    for (size_t i = 0; i < carried.size(); ++i) {
      next.push_back(carried_forms[i].value_of(trace, results[i].toTensor(), kWhat));
    }
    for (size_t i = 0; i < result_forms.size(); ++i) {
      if (!result_forms[i]) continue;
      const sh::Value so_far = values[next.size()];
      const sh::Value row = sh::expand_dim(read(trace, results[carried.size() + i].toTensor()), 0);
      next.push_back(sh::dynamic_update_slice(so_far, row, place(index, so_far.rank())));
    }
    return next;
  };
  const sh::Values made = sh::while_(
      init,
      [&](const sh::Values& values) {
        return sh::Values{sh::lt(values[0], sh::scalar(builder, sh::ElementType::kS32, steps))};
      },
      step);
  trace.random_source().count += outline.random_count * steps;
  Values out = tensors_of(carried_forms, made.data() + 1);
  size_t next = 1 + carried.size();
  for (const std::optional<Form>& form : result_forms) {
    out.emplace_back(form ? c10::IValue(form->tensor(made[next++])) : c10::IValue());
  }
  return out;
}

at::Tensor random_position(int device) {
  Trace& trace = current_trace("random_position");
  const sh::Value state = trace.random(0);
  at::Tensor t = eager::make_tensor(nullptr, at::kUInt64, {2}, {1}, 0, 16, device);
  eager::device_storage(t).set_traced(state);
  return t;
}

Values at_random_position(const at::Tensor& position, const Body& body, const Values& inputs) {
  Trace& trace = current_trace("at_random_position");
  TORCH_CHECK(position.scalar_type() == at::kUInt64 && position.numel() == 2,
              "at_random_position: expected a uint64 tensor of 2 elements, got ",
              position.scalar_type(), position.sizes());
  const RandomSourceGuard guard(trace, read(trace, position));
  return body(inputs);
}

}  // namespace torch_tpu::compile
