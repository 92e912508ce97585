// Running a call to learn which programs it needs, without computing anything.
//
// In a dry run programs are compiled in the background and not executed. Results are hollow
// buffers; the contents of storages that are written are put away and come back at the end, so that
// layouts go through the states they will go through for real. Random state stays where it is.
#pragma once

#include <atomic>
#include <unordered_map>
#include <vector>

#include "eager/program.h"

namespace torch_tpu::eager {

class DryRun {
 public:
  using Results = c10::SmallVector<runtime::DeviceBufferPtr, 8>;

  // The dry run this thread is in, or null. Costs a load while there is none in the process.
  static DryRun* current() {
    return running_.load(std::memory_order_relaxed) == 0 ? nullptr : of_this_thread();
  }

  DryRun() = default;
  ~DryRun();
  DryRun(const DryRun&) = delete;
  DryRun& operator=(const DryRun&) = delete;

  // From begin() to end() this thread runs dry. May be repeated. Threads that run dry at the same
  // time must not share tensors.
  void begin();
  // Puts the contents of storages back. Throws what resizing a storage throws.
  void end();
  // The distinct programs that calls needed so far.
  const std::vector<runtime::CompiledProgramPtr>& programs() const { return programs_; }

  // What run_program() does instead of executing.
  void run(const Program& program, const CallState& state, Results& results);
  // The contents of the storage are about to change.
  void before_write(DeviceStorage& storage);
  void before_resize(const c10::Storage& storage);
  // The storage is new: there is nothing to put back.
  void mark_made(DeviceStorage& storage) const { storage.dry_run = {id_, true}; }

  // Hollow buffers. A dry run knows small values of integers and booleans that come from the host
  // or were computed from known ones: lengths, positions and masks decide how far loops go.
  static runtime::DeviceBufferPtr unknown(const runtime::Layout* layout, int device);
  static runtime::DeviceBufferPtr from_host(const void* data, const runtime::Layout* layout,
                                            int device);
  // The values if they are known, else zeros. May wait for a program.
  static void read(const runtime::DeviceBufferPtr& hollow, void* dst);

 private:
  struct Resized {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    size_t nbytes;  // before
  };

  static DryRun* of_this_thread();

  static std::atomic<int> running_;

  uint32_t id_ = 0;  // of this time between begin() and end(), in the process
  std::unordered_map<uintptr_t, Contents> put_away_;  // by the storages' addresses
  std::vector<Resized> resized_;
  std::unordered_map<const runtime::CompiledProgram*, size_t> places_;  // in programs_
  std::vector<runtime::CompiledProgramPtr> programs_;
};

// To be called where a storage's contents change.
inline void before_write(DeviceStorage& storage) {
  if (DryRun* run = DryRun::current()) [[unlikely]] {
    run->before_write(storage);
  }
}

}  // namespace torch_tpu::eager
