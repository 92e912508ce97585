#include "eager/dry_run.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "eager/dry_run_pause.h"
#include "eager/storage_resize.h"
#include "runtime/compile_service.h"
#include "runtime/runtime.h"
#include "runtime/statistics.h"

namespace torch_tpu::eager {

namespace {

// Values up to this size may be known.
constexpr size_t kMaxKnownBytes = size_t{1} << 16;
// A value that comes after so many others nobody has looked at is not known any more.
constexpr int kMaxDepth = 256;

thread_local DryRun* t_current = nullptr;

bool may_be_known(const runtime::Layout& layout) {
  using E = stablehlo::ElementType;
  switch (layout.type.dtype) {
    case E::kPred:
    case E::kS8:
    case E::kS16:
    case E::kS32:
    case E::kS64:
    case E::kU8:
    case E::kU16:
    case E::kU32:
    case E::kU64:
      return layout.nbytes <= kMaxKnownBytes;
    default:
      return false;
  }
}

// How the values of hollow buffers come about.
struct Origin {
  // On the host, of the only one; or
  std::vector<std::byte> bytes;
  // results of a program that has not been run.
  runtime::CompiledProgramPtr program;
  std::vector<runtime::DeviceBufferPtr> arguments;
  std::vector<int64_t> donated;  // places of arguments
  std::vector<const runtime::Layout*> layouts;
  int depth = 0;  // of programs

  std::vector<runtime::DeviceBufferPtr> values;  // once they have been asked for
};

// Every buffer without an array is one of these.
class HollowBuffer final : public runtime::DeviceBuffer {
 public:
  HollowBuffer(const runtime::Layout* layout, int device, std::shared_ptr<Origin> origin,
               size_t place)
      : DeviceBuffer(layout, device), origin_(std::move(origin)), place_(place) {}

  Origin* origin() const { return origin_.get(); }
  size_t place() const { return place_; }

 private:
  const std::shared_ptr<Origin> origin_;  // null: nothing is known
  const size_t place_;                    // among the origin's values
};

const HollowBuffer& as_hollow(const runtime::DeviceBufferPtr& buffer) {
  TORCH_INTERNAL_ASSERT(buffer->is_hollow());
  return static_cast<const HollowBuffer&>(*buffer);
}

int depth_of(const runtime::DeviceBufferPtr& buffer) {
  if (!buffer->is_hollow()) return 0;
  const Origin* origin = as_hollow(buffer).origin();
  return origin && origin->values.empty() ? origin->depth : 0;
}

// A buffer with an array: the known values, or zeros.
runtime::DeviceBufferPtr value_of(const runtime::DeviceBufferPtr& buffer);

void evaluate(Origin& origin, int device) {
  runtime::Runtime& rt = runtime::Runtime::get();
  if (!origin.program) {
    origin.values.push_back(rt.to_device(origin.bytes.data(), origin.layouts[0], device));
    return;
  }
  std::vector<runtime::DeviceBufferPtr> arguments;
  std::vector<PJRT_Buffer*> handles;
  for (const runtime::DeviceBufferPtr& a : origin.arguments) {
    arguments.push_back(value_of(a));
    handles.push_back(arguments.back()->handle());
  }
  std::vector<PJRT_Buffer*> outputs(origin.layouts.size(), nullptr);
  origin.program->executable().execute(handles.data(), handles.size(), outputs.data(),
                                       origin.donated, rt.device(device).handle);
  runtime::statistics().programs.fetch_add(1, std::memory_order_relaxed);
  for (size_t i = 0; i < outputs.size(); ++i) {
    origin.values.push_back(std::make_shared<const runtime::DeviceBuffer>(
        pjrt::Buffer::adopt(rt.client().api(), outputs[i]), origin.layouts[i], device));
  }
  origin.arguments.clear();
}

runtime::DeviceBufferPtr value_of(const runtime::DeviceBufferPtr& buffer) {
  if (!buffer->is_hollow()) return buffer;
  const HollowBuffer& hollow = as_hollow(buffer);
  if (Origin* origin = hollow.origin()) {
    if (origin->values.empty()) evaluate(*origin, hollow.device());
    return origin->values[hollow.place()];
  }
  const std::vector<std::byte> zeros(hollow.layout()->nbytes);
  return runtime::Runtime::get().to_device(zeros.data(), hollow.layout(), hollow.device());
}

// Null when the results are not to be known.
std::shared_ptr<Origin> origin_of(const Program& program, const CallState& state) {
  auto origin = std::make_shared<Origin>();
  origin->program = program.executable;
  for (const Program::Output& o : program.outputs) {
    if (!may_be_known(*o.layout)) return nullptr;
    origin->layouts.push_back(o.layout);
  }
  for (const Program::Parameter& p : program.parameters) {
    switch (p.kind) {
      case Program::Parameter::Kind::kStorage: {
        const runtime::DeviceBufferPtr& buffer = state.contents[p.index].buffer;
        if (!may_be_known(*buffer->layout())) return nullptr;
        origin->depth = std::max(origin->depth, depth_of(buffer));
        if (p.donated) origin->donated.push_back(static_cast<int64_t>(origin->arguments.size()));
        origin->arguments.push_back(buffer);
        break;
      }
      case Program::Parameter::Kind::kNumber:
        origin->arguments.push_back(number_buffer(state.numbers[p.index], state.device));
        break;
      case Program::Parameter::Kind::kRandom:
        return nullptr;
    }
  }
  return ++origin->depth > kMaxDepth ? nullptr : origin;
}

}  // namespace

std::atomic<int> DryRun::running_{0};

DryRun* DryRun::of_this_thread() { return t_current; }

void DryRunPause::begin() {
  TORCH_INTERNAL_ASSERT(!paused_);
  paused_ = std::exchange(t_current, nullptr);
}

void DryRunPause::end() {
  if (paused_) t_current = std::exchange(paused_, nullptr);
}

DryRun::~DryRun() {
  try {
    end();
  } catch (const std::exception&) {
    // A storage that was made larger has its old contents now, and not yet the room.
  }
}

void DryRun::begin() {
  static std::atomic<uint32_t> last_id{0};
  TORCH_CHECK(!t_current,
              "torch.tpu.warmup: expected to be called outside of a call that is being "
              "warmed up, got called inside one");
  id_ = last_id.fetch_add(1) + 1;
  t_current = this;
  running_.fetch_add(1);
}

void DryRun::end() {
  if (id_ == 0) return;
  t_current = nullptr;
  running_.fetch_sub(1);
  for (auto& [address, contents] : put_away_) {
    DeviceStorage* const storage = storage_at(address);
    // Its own storage may have gone, and another one have taken the address.
    if (!storage || storage->dry_run.id != id_ || storage->dry_run.made_in_it) continue;
    storage->restore(std::move(contents));
  }
  id_ = 0;
  put_away_.clear();
  for (const Resized& r : std::exchange(resized_, {})) {
    const c10::intrusive_ptr<c10::StorageImpl> storage = r.storage.lock();
    if (!storage) continue;
    const size_t now = storage->nbytes();
    storage->set_nbytes(r.nbytes);
    // There are tensors of the new size.
    if (now > r.nbytes) resize_storage(c10::Storage(storage), now);
  }
}

void DryRun::run(const Program& program, const CallState& state, Results& results) {
  if (places_.emplace(program.executable.get(), programs_.size()).second) {
    programs_.push_back(program.executable);
  }
  const std::shared_ptr<Origin> origin = origin_of(program, state);
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    const Program::Output& output = program.outputs[i];
    results.push_back(std::make_shared<const HollowBuffer>(output.layout, state.device, origin, i));
    if (output.slot < 0) continue;
    DeviceStorage& storage = *state.storages[static_cast<size_t>(output.slot)];
    before_write(storage);
    storage.set(results.back());
  }
}

void DryRun::before_write(DeviceStorage& storage) {
  if (storage.dry_run.id == id_) return;
  // What another storage at this address may have left is not needed any more.
  put_away_.insert_or_assign(storage.address(), storage.contents());
  storage.dry_run = {id_, false};
}

void DryRun::before_resize(const c10::Storage& storage) {
  DeviceStorage& slot = device_storage(*storage.unsafeGetStorageImpl());
  before_write(slot);
  if (slot.dry_run.made_in_it) return;
  const auto same = [&](const Resized& r) {
    const auto impl = r.storage.lock();
    return impl.get() == storage.unsafeGetStorageImpl();
  };
  if (std::any_of(resized_.begin(), resized_.end(), same)) return;
  resized_.push_back(
      {c10::weak_intrusive_ptr<c10::StorageImpl>(
           c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage.unsafeGetStorageImpl())),
       storage.nbytes()});
}

runtime::DeviceBufferPtr DryRun::unknown(const runtime::Layout* layout, int device) {
  return std::make_shared<const HollowBuffer>(layout, device, nullptr, 0);
}

runtime::DeviceBufferPtr DryRun::from_host(const void* data, const runtime::Layout* layout,
                                           int device) {
  if (!may_be_known(*layout)) return unknown(layout, device);
  auto origin = std::make_shared<Origin>();
  const auto* const first = static_cast<const std::byte*>(data);
  origin->bytes.assign(first, first + layout->nbytes);
  origin->layouts.push_back(layout);
  return std::make_shared<const HollowBuffer>(layout, device, std::move(origin), 0);
}

void DryRun::read(const runtime::DeviceBufferPtr& buffer, void* dst) {
  const size_t nbytes = buffer->layout()->nbytes;
  if (nbytes == 0) return;
  const Origin* const origin = as_hollow(buffer).origin();
  if (!origin) {
    std::memset(dst, 0, nbytes);
  } else if (!origin->bytes.empty()) {
    std::memcpy(dst, origin->bytes.data(), nbytes);
  } else {
    runtime::Runtime::get().to_host(*value_of(buffer), dst);
  }
}

}  // namespace torch_tpu::eager
