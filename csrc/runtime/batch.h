// One run of a program whose results exist as buffers before it has begun, and the queue of such
// runs.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/compiled_program.h"
#include "runtime/device_buffer.h"
#include "runtime/work_queue.h"

namespace torch_tpu::runtime {

// Filled in by whoever submits it; from then on it belongs to the queue.
class Batch : public PendingValue, public std::enable_shared_from_this<Batch> {
 public:
  CompiledProgramPtr program;
  std::vector<DeviceBufferPtr> inputs;
  // Inputs that the program takes over, where nobody else holds them when it runs.
  std::vector<int64_t> donated;
  std::vector<DeviceBufferPtr> outputs;
  int device = 0;
  StreamId stream = 0;
  bool outputs_counted = false;  // their memory is taken into account already
  // Running ends when the results are there, and takes nothing over: recover() is then asked about
  // every failure, with all inputs to begin from.
  bool is_awaited = false;
  // Asked when compiling or running failed: makes the outputs in another way, or throws what is to
  // be reported. `inputs` are complete unless running had begun.
  std::function<void(Batch& batch, std::exception_ptr error)> recover;

  // Waits until the batch has run. Throws what it failed with. (One that is not submitted yet must
  // override this.)
  void demand() const override;
  std::string describe() const override { return program ? program->what() : std::string(); }

  // For the queue: runs the program. Errors go to those who ask for the outputs.
  void run() noexcept;
  // Gives output `i` its array.
  void fulfil(size_t i, pjrt::Buffer array) const;
  void finish(std::exception_ptr error) noexcept;
  // The buffers' queued() counts this batch's references until it has run.
  void set_queued() {
    queued_ = true;
    mark_queued(1);
  }

 private:
  void execute();
  void mark_queued(int change) const;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool queued_ = false;
  bool done_ = false;
  std::exception_ptr error_;
};

// Runs the batch now if its program is ready and nothing waits before it; otherwise a thread of the
// device runs it in order, while the caller goes on. Waits when very much is queued already.
// Batches are submitted in the order of their data: nobody sees a batch's outputs before that.
void submit(const std::shared_ptr<Batch>& batch);
// Nothing is queued: what is run now comes after everything submitted.
bool queue_is_empty(int device);
// Waits until everything submitted has run.
void drain_queue(int device);

}  // namespace torch_tpu::runtime
