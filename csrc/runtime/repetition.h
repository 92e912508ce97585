// Finds where a stream of operations repeats itself, so that it can be cut into equal pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace torch_tpu::runtime {

// Fed with what identifies each operation. Once a piece has come twice in a row, a cut is due after
// it, and after each further repetition: equal pieces then are equal programs. The smallest period
// that shows wins: the blocks of a model, not its training steps. Work per operation is constant.
class RepetitionDetector {
 public:
  // Pieces are at least so many operations long (several periods where one is shorter).
  static constexpr size_t kMinPiece = 16;
  // Longer periods are not found.
  static constexpr size_t kMaxPeriod = size_t{1} << 13;

  // Whether a cut is due after this operation.
  bool add(uint64_t operation);
  // Forgets everything: what follows is compared with nothing before.
  void reset();

 private:
  // A period shows when as many operations are as they were one period before.
  static constexpr size_t kWindow = 6;

  uint64_t at(size_t position) const { return history_[position % history_.size()]; }
  bool window_equal(size_t a, size_t b) const;  // the windows that end there
  void look_for_period();

  std::vector<uint64_t> history_ = std::vector<uint64_t>(2 * kMaxPeriod);
  size_t count_ = 0;
  // Of each window by its hash: where it ended last.
  std::unordered_map<uint64_t, size_t> last_;
  size_t period_ = 0;   // 0: none
  size_t matched_ = 0;  // operations in a row that were as one period before
};

}  // namespace torch_tpu::runtime
