#include "eager/program_record.h"

#include <bit>
#include <cstring>
#include <string_view>

#include "cache/program_cache.h"
#include "eager/compile_program.h"
#include "eager/lowering_hash.h"
#include "runtime/compile_service.h"
#include "runtime/runtime.h"

namespace torch_tpu::eager {

namespace {

// Thrown by Reader for what Writer cannot have written.
struct Malformed {};

class Writer {
 public:
  template <typename T>
  void plain(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    out_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void text(std::string_view s) {
    plain<uint64_t>(s.size());
    out_.append(s);
  }
  void integers(std::span<const int64_t> values) {
    plain<uint64_t>(values.size());
    for (const int64_t v : values) plain(v);
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

class Reader {
 public:
  explicit Reader(std::string_view in) : in_(in) {}
  template <typename T>
  T plain() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    if (in_.size() < sizeof value) throw Malformed{};
    std::memcpy(&value, in_.data(), sizeof value);
    in_.remove_prefix(sizeof value);
    return value;
  }
  // One of 0..last, whatever it stands for.
  template <typename T>
  T choice(T last) {
    const auto value = plain<uint8_t>();
    if (value > static_cast<uint8_t>(last)) throw Malformed{};
    return static_cast<T>(value);
  }
  // Of entries that take at least `each` bytes.
  size_t count(size_t each) {
    const auto n = plain<uint64_t>();
    if (n > in_.size() / each) throw Malformed{};
    return n;
  }
  std::string_view text() {
    const size_t n = count(1);
    const std::string_view s = in_.substr(0, n);
    in_.remove_prefix(n);
    return s;
  }
  std::vector<int64_t> integers() {
    std::vector<int64_t> values(count(sizeof(int64_t)));
    for (int64_t& v : values) v = plain<int64_t>();
    return values;
  }
  void end() const {
    if (!in_.empty()) throw Malformed{};
  }

 private:
  std::string_view in_;
};

// Constants that a call may return.
enum class ConstantKind : uint8_t { kNone, kBool, kInt, kDouble };

bool write_constant(Writer& w, const c10::IValue& value) {
  if (value.isNone()) {
    w.plain(ConstantKind::kNone);
  } else if (value.isBool()) {
    w.plain(ConstantKind::kBool);
    w.plain<uint8_t>(value.toBool());
  } else if (value.isInt()) {
    w.plain(ConstantKind::kInt);
    w.plain(value.toInt());
  } else if (value.isDouble()) {
    w.plain(ConstantKind::kDouble);
    w.plain(value.toDouble());
  } else {
    return false;
  }
  return true;
}

c10::IValue read_constant(Reader& r) {
  switch (r.choice(ConstantKind::kDouble)) {
    case ConstantKind::kNone:
      return {};
    case ConstantKind::kBool:
      return r.plain<uint8_t>() != 0;
    case ConstantKind::kInt:
      return r.plain<int64_t>();
    case ConstantKind::kDouble:
      return r.plain<double>();
  }
  throw Malformed{};
}

void write_type(Writer& w, const stablehlo::TensorType& type) {
  w.plain(static_cast<uint8_t>(type.dtype));
  w.integers(type.dims);
}

stablehlo::TensorType read_type(Reader& r) {
  stablehlo::TensorType type;
  type.dtype = r.choice(stablehlo::ElementType::kC128);
  type.dims = r.integers();
  for (const int64_t size : type.dims) {
    if (size < 0) throw Malformed{};
  }
  return type;
}

// nullopt: something in it has no written form.
std::optional<std::string> write_program(const Program& program) {
  Writer w;
  w.plain(static_cast<uint8_t>(program.kind));
  w.plain<uint8_t>(program.by_rule);
  w.plain<uint64_t>(program.precision);
  w.plain<uint64_t>(program.parameters.size());
  for (const Program::Parameter& p : program.parameters) {
    w.plain(static_cast<uint8_t>(p.kind));
    w.plain<uint8_t>(p.donated);
    w.plain(p.index);
  }
  w.plain<uint64_t>(program.outputs.size());
  for (const Program::Output& o : program.outputs) {
    write_type(w, o.layout->type);
    w.plain<int32_t>(o.slot);
  }
  w.plain<uint64_t>(program.tensors.size());
  for (const Program::NewTensor& t : program.tensors) {
    w.plain<int32_t>(t.output);
    w.plain(static_cast<uint8_t>(t.dtype));
    w.integers(t.sizes);
    w.integers(t.strides);
    w.plain<uint64_t>(t.nbytes);
  }
  w.plain<uint64_t>(program.returns.size());
  for (const CallReturn& c : program.returns) {
    w.plain(static_cast<uint8_t>(c.kind));
    w.plain<uint64_t>(c.index);
    w.plain<uint64_t>(c.count);
    if (!write_constant(w, c.constant)) return std::nullopt;
  }
  w.plain(program.random_count);
  w.text(program.executable ? std::string_view(program.executable->text()) : std::string_view());
  return w.take();
}

// Every place it names exists: `info` and `state` are the call's.
Program read_program(Reader r, const OperatorInfo& info, const CallState& state,
                     std::string_view& text) {
  const auto check = [](bool ok) {
    if (!ok) throw Malformed{};
  };
  Program program;
  program.kind = r.choice(Program::Kind::kKnownNumbers);
  program.by_rule = r.plain<uint8_t>() != 0;
  program.precision = r.plain<uint64_t>();
  check(program.precision >> kPrecisionBits == 0);
  program.parameters.resize(r.count(6));
  for (Program::Parameter& p : program.parameters) {
    p.kind = r.choice(Program::Parameter::Kind::kRandom);
    p.donated = r.plain<uint8_t>() != 0;
    p.index = r.plain<uint32_t>();
    if (p.kind == Program::Parameter::Kind::kStorage) {
      check(p.index < state.contents.size() && state.contents[p.index].filled());
    } else if (p.kind == Program::Parameter::Kind::kNumber) {
      check(p.index < state.numbers.size());
    }
    check(!p.donated || p.kind == Program::Parameter::Kind::kStorage);
  }
  program.outputs.resize(r.count(13));
  for (Program::Output& o : program.outputs) {
    o.layout = runtime::intern_layout(read_type(r));
    o.slot = r.plain<int32_t>();
    check(o.slot >= -1 && o.slot < static_cast<int>(state.storages.size()));
    program.output_bytes += o.layout->nbytes;
  }
  program.tensors.resize(r.count(29));
  for (Program::NewTensor& t : program.tensors) {
    t.output = r.plain<int32_t>();
    t.dtype = r.choice(c10::ScalarType::NumOptions);
    t.sizes = r.integers();
    t.strides = r.integers();
    t.nbytes = r.plain<uint64_t>();
    check(t.output >= -1 && t.output < static_cast<int>(program.outputs.size()) &&
          t.sizes.size() == t.strides.size());
  }
  program.returns.resize(r.count(18));
  for (CallReturn& c : program.returns) {
    c.kind = r.choice(CallReturn::Kind::kConstant);
    c.index = r.plain<uint64_t>();
    c.count = r.plain<uint64_t>();
    c.constant = read_constant(r);
    switch (c.kind) {
      case CallReturn::Kind::kArgument:
        check(c.index < info.arguments.size());
        break;
      case CallReturn::Kind::kTensor:
        check(c.index < program.tensors.size());
        break;
      case CallReturn::Kind::kTensorList:
        check(c.index <= program.tensors.size() && c.count <= program.tensors.size() - c.index);
        break;
      case CallReturn::Kind::kConstant:
        break;
    }
  }
  program.random_count = r.plain<int64_t>();
  text = r.text();
  r.end();
  check(text.empty() == program.outputs.empty());
  return program;
}

// Other operators' schemas and kernels may differ between processes.
bool recordable(const OperatorInfo& info) {
  return info.name.starts_with("aten::") || info.name.starts_with("prims::");
}

std::string& torch_version() {
  static std::string version;
  return version;
}

// The signature without addresses: what they stand for is written out after it.
cache::EntryKey record_key(const OperatorInfo& info, bool all_known, PrecisionCode precision,
                           const CallState& state) {
  std::vector<uint64_t> words = state.key;
  // The default dtype is in the upper bits; the lower ones are an address.
  words[0] = static_cast<uint64_t>(all_known) | precision << 1 | words[0] >> 56 << 56;
  Writer types;
  for (const uint32_t place : state.layout_places) {
    write_type(types, reinterpret_cast<const runtime::Layout*>(words[place])->type);
    words[place] = 0;
  }
  std::string material = info.qualified() + "\n";
  material.append(reinterpret_cast<const char*>(words.data()), words.size() * sizeof words[0]);
  material += types.take();
  return {cache::EntryKind::kCall, record_scope(), std::move(material)};
}

}  // namespace

void set_torch_version(std::string version) { torch_version() = std::move(version); }

const std::string& record_scope() {
  static const std::string s = "torch: " + torch_version() + "\nlowering: " + lowering_hash() +
                               "\nplatform: " + runtime::Runtime::get().platform() + "\n";
  return s;
}

ProgramPtr load_record(const OperatorInfo& info, bool all_known, PrecisionCode precision,
                       const CallState& state, const std::string& what) {
  if (!recordable(info)) return nullptr;
  const cache::EntryKey key = record_key(info, all_known, precision, state);
  cache::ProgramCache& cache = cache::ProgramCache::get();
  const cache::Lookup found = cache.find(key);
  if (!found) return nullptr;
  std::string_view text;
  Program program;
  try {
    program = read_program(Reader(found.hit->payload.bytes()), info, state, text);
  } catch (const Malformed&) {
    cache.drop(key, "the record of a call is malformed");
    return nullptr;
  }
  if (!text.empty()) program.executable = compile_program(std::string(text), what);
  return std::make_shared<const Program>(std::move(program));
}

void store_record(const OperatorInfo& info, bool all_known, PrecisionCode precision,
                  const CallState& state, const Program& program) noexcept {
  if (!recordable(info)) return;
  try {
    if (const std::optional<std::string> payload = write_program(program)) {
      cache::ProgramCache::get().store(record_key(info, all_known, precision, state), *payload);
    }
  } catch (const std::exception&) {
    // The cache is an aid: without it the next process does the work again.
  }
}

}  // namespace torch_tpu::eager
