// Runs programs of the builder on the plugin under test.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>

#include "pjrt_test_support.h"
#include "stablehlo/builder.h"

namespace torch_tpu::stablehlo {

inline PJRT_Buffer_Type pjrt_type(ElementType type) {
  switch (type) {
    case ElementType::kPred:
      return PJRT_Buffer_Type_PRED;
    case ElementType::kS8:
      return PJRT_Buffer_Type_S8;
    case ElementType::kS16:
      return PJRT_Buffer_Type_S16;
    case ElementType::kS32:
      return PJRT_Buffer_Type_S32;
    case ElementType::kS64:
      return PJRT_Buffer_Type_S64;
    case ElementType::kU8:
      return PJRT_Buffer_Type_U8;
    case ElementType::kU16:
      return PJRT_Buffer_Type_U16;
    case ElementType::kU32:
      return PJRT_Buffer_Type_U32;
    case ElementType::kU64:
      return PJRT_Buffer_Type_U64;
    case ElementType::kF8E4M3FN:
      return PJRT_Buffer_Type_F8E4M3FN;
    case ElementType::kF8E5M2:
      return PJRT_Buffer_Type_F8E5M2;
    case ElementType::kBF16:
      return PJRT_Buffer_Type_BF16;
    case ElementType::kF16:
      return PJRT_Buffer_Type_F16;
    case ElementType::kF32:
      return PJRT_Buffer_Type_F32;
    case ElementType::kF64:
      return PJRT_Buffer_Type_F64;
    case ElementType::kC64:
      return PJRT_Buffer_Type_C64;
    case ElementType::kC128:
      return PJRT_Buffer_Type_C128;
  }
  return PJRT_Buffer_Type_INVALID;
}

template <typename T>
constexpr ElementType element_type() {
  if constexpr (std::same_as<T, bool>) return ElementType::kPred;
  if constexpr (std::same_as<T, int8_t>) return ElementType::kS8;
  if constexpr (std::same_as<T, int16_t>) return ElementType::kS16;
  if constexpr (std::same_as<T, int32_t>) return ElementType::kS32;
  if constexpr (std::same_as<T, int64_t>) return ElementType::kS64;
  if constexpr (std::same_as<T, uint8_t>) return ElementType::kU8;
  if constexpr (std::same_as<T, uint16_t>) return ElementType::kU16;
  if constexpr (std::same_as<T, uint32_t>) return ElementType::kU32;
  if constexpr (std::same_as<T, uint64_t>) return ElementType::kU64;
  if constexpr (std::same_as<T, float>) return ElementType::kF32;
  if constexpr (std::same_as<T, double>) return ElementType::kF64;
  if constexpr (std::same_as<T, std::complex<float>>) return ElementType::kC64;
  if constexpr (std::same_as<T, std::complex<double>>) return ElementType::kC128;
}

// A tensor in host memory, row-major.
struct HostTensor {
  TensorType type;
  std::string bytes;

  template <typename T>
  std::vector<T> as() const {
    std::vector<T> values(bytes.size() / sizeof(T));
    for (size_t i = 0; i < values.size(); ++i) {
      T value;
      std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
      values[i] = value;
    }
    return values;
  }
};

template <typename T>
HostTensor tensor(std::initializer_list<T> values, const Dims& dims) {
  HostTensor host{{element_type<T>(), dims}, std::string(values.size() * sizeof(T), '\0')};
  size_t i = 0;
  for (const T& v : values) std::memcpy(host.bytes.data() + sizeof(T) * i++, &v, sizeof(T));
  return host;
}

template <typename T>
HostTensor tensor(std::initializer_list<T> values) {
  return tensor(values, {static_cast<int64_t>(values.size())});
}

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class ExecutionTest : public pjrt::PluginTest {
 protected:
  using Program = std::function<Values(Builder&, const Values&)>;

  // Writes, compiles and runs a program whose parameters are `inputs`.
  std::vector<HostTensor> run(const std::vector<HostTensor>& inputs, const Program& program) const {
    Builder b("test");
    Values parameters;
    for (const HostTensor& input : inputs) parameters.push_back(b.parameter(input.type));
    const Values results = program(b, parameters);
    std::vector<TensorType> types;
    for (const Value v : results) types.push_back(v.type());
    return run_text(b.finish(results), inputs, types);
  }

  // Compiles and runs a finished program.
  std::vector<HostTensor> run_text(const std::string& text, const std::vector<HostTensor>& inputs,
                                   const std::vector<TensorType>& types) const {
    SCOPED_TRACE(text);

    pjrt::CompileOptions options;
    // XLA's CPU compiler drops NaN in maximum and minimum unless told not to.
    options.env_overrides = {{"xla_cpu_enable_fast_min_max", false}};
    const auto executable = client->compile(text, options);
    std::vector<pjrt::Buffer> arguments;
    std::vector<PJRT_Buffer*> handles;
    for (const HostTensor& input : inputs) {
      arguments.push_back(
          client->buffer_from_host(input.bytes.data(), pjrt_type(input.type.dtype), input.type.dims,
                                   device(), pjrt::HostSemantics::ImmutableOnlyDuringCall, {}));
      handles.push_back(arguments.back().handle());
    }
    std::vector<PJRT_Buffer*> raw(executable->num_outputs());
    executable->execute(handles.data(), handles.size(), raw.data(), {}, device().handle);
    std::vector<HostTensor> outputs;
    for (size_t i = 0; i < raw.size(); ++i) {
      const pjrt::Buffer buffer = pjrt::Buffer::adopt(client->api(), raw[i]);
      EXPECT_EQ(buffer.dimensions(), types[i].dims);
      EXPECT_EQ(buffer.element_type(), pjrt_type(types[i].dtype));
      HostTensor host{types[i], ""};
      host.bytes.resize(static_cast<size_t>(types[i].numel()) * byte_size(types[i].dtype));
      buffer.to_host(host.bytes.data(), host.bytes.size()).await();
      outputs.push_back(std::move(host));
    }
    return outputs;
  }

  // The only result of a program of one or more inputs.
  HostTensor run1(const std::vector<HostTensor>& inputs,
                  const std::function<Value(const Values&)>& program) const {
    return run(inputs, [&](Builder&, const Values& v) { return Values{program(v)}; })[0];
  }
};

// Exact equality, NaN being equal to NaN and 0 different from -0.
template <typename T>
::testing::AssertionResult is(const HostTensor& given, std::initializer_list<T> expected) {
  if (given.type.dtype != element_type<T>()) {
    return ::testing::AssertionFailure() << "the type is " << to_string(given.type);
  }
  const std::vector<T> values = given.as<T>();
  bool same = values.size() == expected.size();
  for (size_t i = 0; same && i < values.size(); ++i) {
    const T e = expected.begin()[i];
    same = values[i] == e;
    if constexpr (std::floating_point<T>) {
      same = std::isnan(e) ? std::isnan(values[i])
                           : same && std::signbit(values[i]) == std::signbit(e);
    }
  }
  if (same) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "expected " << ::testing::PrintToString(std::vector<T>(expected)) << ", got "
         << ::testing::PrintToString(values);
}

// Equality within a relative error (absolute below 1).
inline ::testing::AssertionResult is_near(const HostTensor& given,
                                          std::initializer_list<double> expected,
                                          double tolerance = 2e-5) {
  const std::vector<float> values = given.as<float>();
  bool same = given.type.dtype == ElementType::kF32 && values.size() == expected.size();
  for (size_t i = 0; same && i < values.size(); ++i) {
    const double e = expected.begin()[i];
    const double v = values[i];
    same = std::isnan(e)   ? std::isnan(v)
           : std::isinf(e) ? v == e
                           : std::fabs(v - e) <= tolerance * std::max(1.0, std::fabs(e));
  }
  if (same) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "expected " << ::testing::PrintToString(std::vector<double>(expected)) << ", got "
         << ::testing::PrintToString(values);
}

}  // namespace torch_tpu::stablehlo
