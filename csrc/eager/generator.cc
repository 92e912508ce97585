#include "eager/generator.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/GeneratorImpl.h>

#include <array>
#include <cstring>
#include <mutex>

#include "eager/device_context.h"

namespace torch_tpu::eager {

namespace {

// Seed and offset, 8 bytes each: the layout DTensor's random tracker and fork_rng expect.
constexpr int64_t kStateBytes = 16;

class TpuGenerator final : public c10::GeneratorImpl {
 public:
  explicit TpuGenerator(int device)
      : GeneratorImpl(c10::Device(kTpu, static_cast<c10::DeviceIndex>(device)),
                      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  static c10::DeviceType device_type() { return kTpu; }

  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    const uint64_t random = c10::detail::getNonDeterministicRandom(true);
    set_current_seed(random);
    return random;
  }
  void set_state(const c10::TensorImpl& state) override {
    at::detail::check_rng_state(state);
    TORCH_CHECK(state.numel() == kStateBytes, "tpu generator: a state has ", kStateBytes,
                " bytes (seed and offset), got ", state.numel());
    std::array<uint64_t, 2> words;
    std::memcpy(words.data(), state.data(), kStateBytes);
    seed_ = words[0];
    offset_ = words[1];
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::Tensor state = at::detail::empty_cpu({kStateBytes}, c10::ScalarType::Byte);
    const std::array<uint64_t, 2> words{seed_, offset_};
    std::memcpy(state.mutable_data_ptr(), words.data(), kStateBytes);
    return state.getIntrusivePtr();
  }

  std::pair<uint64_t, uint64_t> reserve(int64_t count) {
    const std::lock_guard lock(mutex_);
    const uint64_t offset = offset_;
    offset_ += static_cast<uint64_t>((count + 3) / 4);
    return {seed_, offset};
  }

 private:
  TpuGenerator* clone_impl() const override {
    auto copy = c10::make_intrusive<TpuGenerator>(device_.index());
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy.release();
  }

  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

struct DefaultGenerators {
  std::mutex mutex;
  std::array<at::Generator, runtime::kMaxDevices> made;
  uint64_t seed = c10::default_rng_seed_val;  // of those made later
};

DefaultGenerators& default_generators() {
  static DefaultGenerators g;
  return g;
}

void seed_generator(at::Generator& g, uint64_t seed) {
  const std::lock_guard lock(g.mutex());
  g.set_current_seed(seed);
}

}  // namespace

at::Generator make_generator(int device) {
  return at::Generator(
      c10::intrusive_ptr<c10::GeneratorImpl>(c10::make_intrusive<TpuGenerator>(device)));
}

const at::Generator& default_generator(int device) {
  const int index = device < 0 ? current_device() : device;
  TORCH_CHECK(index < runtime::kMaxDevices, "tpu:", index, " does not exist");
  DefaultGenerators& all = default_generators();
  const std::lock_guard lock(all.mutex);
  at::Generator& g = all.made[static_cast<size_t>(index)];
  if (!g.defined()) {
    g = make_generator(index);
    seed_generator(g, all.seed);
  }
  return g;
}

void seed_all_generators(uint64_t seed) {
  DefaultGenerators& all = default_generators();
  const std::lock_guard lock(all.mutex);
  all.seed = seed;
  for (at::Generator& g : all.made) {
    if (g.defined()) seed_generator(g, seed);
  }
}

std::pair<uint64_t, uint64_t> reserve_random(const std::optional<at::Generator>& generator,
                                             int device, int64_t count) {
  const at::Generator& g =
      generator && generator->defined() ? *generator : default_generator(device);
  TORCH_CHECK(g.device().type() == kTpu, "Expected a 'tpu' device type for generator but found '",
              g.device().type(), "'");
  return static_cast<TpuGenerator*>(g.unsafeGetGeneratorImpl())->reserve(count);
}

}  // namespace torch_tpu::eager
