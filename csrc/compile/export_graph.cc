#include "compile/export_graph.h"

#include <optional>

#include "eager/precision.h"
#include "eager/scalar_types.h"
#include "eager/trace.h"

namespace torch_tpu::compile {

namespace sh = stablehlo;

namespace {

class ExportTrace : public eager::Trace {
 public:
  explicit ExportTrace(lowering::Platform platform)
      : Trace([this] { return builder().parameter({sh::ElementType::kU64, {2}}); }),
        platform_(platform) {
    builder().set_float32_products(
        {eager::current_precision(), /*emulated=*/platform == lowering::Platform::kCpu});
  }

  lowering::Platform platform() const override { return platform_; }

  at::Tensor input(const ExportInput& type) {
    const sh::Value parameter =
        builder().parameter({eager::to_element_type(type.dtype), type.sizes});
    // Its storage has the order of the strides.
    const std::optional<sh::Dims> order = lowering::dense_order(type.sizes, type.strides);
    TORCH_CHECK(order, "[export] expected the strides of a dense tensor, got ", type.strides,
                " for sizes ", type.sizes);
    const auto nbytes = static_cast<size_t>(parameter.numel()) * c10::elementSize(type.dtype);
    at::Tensor t =
        eager::make_tensor(nullptr, type.dtype, type.sizes, type.strides, 0, nbytes, /*device=*/0);
    bases_.push_back(sh::transpose(parameter, *order));
    eager::device_storage(t).set_traced(bases_.back());
    inputs_.push_back(t);
    return t;
  }

  void refuse_written_inputs() const {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      TORCH_CHECK(eager::device_storage(inputs_[i]).contents().traced == bases_[i],
                  "[export] expected a graph that writes to none of its inputs, but it writes to "
                  "input ",
                  i, "; ExportedProgram.run_decompositions() makes such writes outputs");
    }
  }

  // The values of a tensor, in the order of its dimensions.
  sh::Value output(const at::Tensor& t) {
    TORCH_CHECK(eager::is_tpu(t),
                "[export] expected the graph's outputs on the device, got one on ", t.device());
    eager::DeviceStorage& storage = eager::device_storage(t);
    if (t.numel() == 0 || !storage.contents().filled()) {
      return sh::splat(builder(), {eager::to_element_type(t.scalar_type()), t.sizes().vec()}, 0);
    }
    sh::Value v = lowering::read_view(base(storage), eager::view_of(t));
    if (t.is_conj()) v = sh::complex(sh::real(v), sh::negate(sh::imag(v)));
    if (t.is_neg()) v = sh::negate(v);
    return v;
  }

 private:
  const lowering::Platform platform_;
  std::vector<at::Tensor> inputs_;
  sh::Values bases_;
};

}  // namespace

ExportedGraph export_graph(std::span<const ExportInput> inputs, const ExportBody& body,
                           lowering::Platform platform) {
  ExportTrace trace(platform);
  std::vector<at::Tensor> given;
  given.reserve(inputs.size());
  for (const ExportInput& input : inputs) given.push_back(trace.input(input));
  ExportResults results;
  {
    const eager::TraceGuard guard(trace);
    results = body(given);
  }
  trace.refuse_written_inputs();
  sh::Values outputs;
  outputs.reserve(results.outputs.size());
  for (const at::Tensor& t : results.outputs) outputs.push_back(trace.output(t));
  for (const ExportAlias& alias : results.aliases) {
    if (outputs.at(alias.output).numel() > 0) trace.builder().alias(alias.input, alias.output);
  }
  return {trace.builder().finish(outputs), trace.random_count()};
}

}  // namespace torch_tpu::compile
