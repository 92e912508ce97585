// The kind of compiler that programs are written for. Every program is right on all of them; a rule
// may ask where one way of writing it is much faster than another.
#pragma once

namespace torch_tpu::lowering {

enum class Platform { kTpu, kCpu };

// For the time of a scope on this thread; kTpu outside of any.
class CompilingFor {
 public:
  explicit CompilingFor(Platform platform);
  ~CompilingFor();
  CompilingFor(const CompilingFor&) = delete;
  CompilingFor& operator=(const CompilingFor&) = delete;

  static Platform platform();

 private:
  const Platform previous_;
};

}  // namespace torch_tpu::lowering
