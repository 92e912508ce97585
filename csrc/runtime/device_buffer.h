// A value on a device: an immutable array, perhaps still to be computed, perhaps left out.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "pjrt/buffer.h"
#include "pjrt/error.h"
#include "runtime/layout.h"
#include "runtime/memory.h"

namespace torch_tpu::runtime {

// Where the arrays of buffers come from that do not have them yet.
class PendingValue {
 public:
  virtual ~PendingValue() = default;
  // Sees to it that the arrays are made, and waits until they are there. Throws what went wrong.
  virtual void demand() const = 0;
  // Sees to it that they will be made without further ado. Does not wait.
  virtual void begin() const {}
  // What makes them, for messages.
  virtual std::string describe() const { return {}; }
  virtual size_t operators() const { return 1; }
};

// Gives messages the calls that programs are of: asked with DeviceBuffer::maker().
void set_call_names(std::function<std::string(uint64_t maker)> names);

// Where a value stands in a graph that is being recorded (eager/fusion_graph.h). Only who has set
// the graph may go by the rest: others read while it is set.
class GraphPlace {
 public:
  struct Where {
    uint64_t graph = 0;
    uint32_t code = 0;
    uint16_t part = 0;
    uint16_t lane = 0;
  };
  void set(const Where& where) {
    code_.store(where.code, std::memory_order_relaxed);
    part_.store(where.part, std::memory_order_relaxed);
    lane_.store(where.lane, std::memory_order_relaxed);
    graph_.store(where.graph, std::memory_order_relaxed);
  }
  uint64_t graph() const { return graph_.load(std::memory_order_relaxed); }
  uint32_t code() const { return code_.load(std::memory_order_relaxed); }
  uint16_t part() const { return part_.load(std::memory_order_relaxed); }
  uint16_t lane() const { return lane_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> graph_{0};
  std::atomic<uint32_t> code_{0};
  std::atomic<uint16_t> part_{0};
  std::atomic<uint16_t> lane_{0};
};

// Immutable and shared: two storages with the same contents (after clone()) share one. Its memory
// counts, mostly from the time it has its array, until it is given away or destroyed.
class DeviceBuffer {
 public:
  DeviceBuffer(pjrt::Buffer buffer, const Layout* layout, int device)
      : DeviceBuffer(std::move(buffer), layout, device, Counted()) {
    memory_counters(device_).add(static_cast<int64_t>(layout_->nbytes));
  }
  // One whose memory was counted together with that of others.
  struct Counted {};
  DeviceBuffer(pjrt::Buffer buffer, const Layout* layout, int device, Counted)
      : buffer_(std::move(buffer)), handle_(buffer_.handle()), layout_(layout), device_(device) {
    layout_->live.fetch_add(1, std::memory_order_relaxed);
  }
  // One whose array is made later: fulfil() gives it. Whoever asks before waits. Where it is
  // certain that it will be made, its memory counts from now on.
  DeviceBuffer(std::shared_ptr<const PendingValue> source, const Layout* layout, int device,
               bool certain)
      : source_(std::move(source)), layout_(layout), device_(device), counted_(false) {
    if (certain) count();
  }
  // A hollow one: it has a layout but no array, since a dry run computes nothing. It takes no
  // memory, and must not be read.
  DeviceBuffer(const Layout* layout, int device)
      : layout_(layout), device_(device), counted_(false) {}
  ~DeviceBuffer();
  // The array was donated: its memory is a program's result now, and is counted there.
  void given_away() const;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  bool is_hollow() const { return !has_array() && !source_; }
  bool has_array() const { return handle_.load(std::memory_order_acquire) != nullptr; }
  // Waits for the array. Throws pjrt::Error for a hollow one, and what its making threw.
  const pjrt::Buffer& pjrt() const {
    if (handle() == nullptr) [[unlikely]] {
      refuse_hollow();
    }
    return buffer_;
  }
  // Waits for the array, like pjrt(). Null for a hollow one.
  PJRT_Buffer* handle() const {
    if (PJRT_Buffer* const h = handle_.load(std::memory_order_acquire)) [[likely]] {
      return h;
    }
    return source_ ? wait() : nullptr;
  }
  // Waits until the array has its value.
  void await() const;
  // The plugin's error about this value, with what should have made it.
  [[noreturn]] void rethrow_named(const pjrt::Error& error) const;
  // What it waits for is at least queued afterwards.
  void begin() const {
    if (!has_array() && source_) source_->begin();
  }
  // Once, by the source.
  void fulfil(pjrt::Buffer array) const;
  // Throws what pjrt() throws for a hollow one.
  [[noreturn]] static void refuse_hollow();
  const Layout* layout() const { return layout_; }
  int device() const { return device_; }
  GraphPlace& place() const { return place_; }
  // The program whose result it is, by its id; 0 when that is not known.
  uint64_t& maker() const { return maker_; }
  // References that batches in the queue have: they go by themselves.
  std::atomic<int>& queued() const { return queued_; }

 private:
  PJRT_Buffer* wait() const;
  void count() const;
  void discount() const;

  mutable pjrt::Buffer buffer_;
  mutable std::atomic<PJRT_Buffer*> handle_{nullptr};  // of buffer_, once it may be used
  std::shared_ptr<const PendingValue> source_;
  const Layout* layout_;
  int device_;
  mutable GraphPlace place_;
  mutable uint64_t maker_ = 0;
  mutable std::atomic<int> queued_{0};
  mutable std::atomic<bool> counted_{true};  // among the live arrays
};

using DeviceBufferPtr = std::shared_ptr<const DeviceBuffer>;

}  // namespace torch_tpu::runtime
