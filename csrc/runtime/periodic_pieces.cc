#include "runtime/periodic_pieces.h"

#include <algorithm>

namespace torch_tpu::runtime {

namespace {

// Longer periods are not looked for.
constexpr size_t kMaxPeriod = 512;

struct Run {
  size_t begin = 0, length = 0;
};

// The longest run of elements that are as those one period before, with the ones it begins to
// repeat.
Run longest_run(std::span<const uint64_t> elements, size_t period) {
  Run best;
  size_t matched = 0;
  for (size_t i = period; i < elements.size(); ++i) {
    matched = elements[i] == elements[i - period] ? matched + 1 : 0;
    if (matched > 0 && matched + period > best.length) {
      best = {i + 1 - matched - period, matched + period};
    }
  }
  return best;
}

}  // namespace

std::vector<size_t> periodic_pieces(std::span<const uint64_t> elements) {
  const size_t n = elements.size();
  Run best;
  size_t best_piece = 0;
  size_t least = n / 2 + 1;  // elements in different pieces
  for (size_t period = 1; period <= std::min(n / 2, kMaxPeriod); ++period) {
    const Run run = longest_run(elements, period);
    const size_t piece = period * ((kMinElements + period - 1) / period);
    const size_t repeated = run.length / piece * piece;
    const size_t different = n - repeated + piece;
    if (repeated < 2 * piece || different >= least) continue;
    least = different;
    best = {run.begin, repeated};
    best_piece = piece;
  }
  std::vector<size_t> ends;
  if (best_piece != 0) {
    if (best.begin > 0) ends.push_back(best.begin);
    const size_t end = best.begin + best.length;
    for (size_t i = best.begin + best_piece; i <= end; i += best_piece) ends.push_back(i);
  }
  if (ends.empty() || ends.back() != n) ends.push_back(n);
  return ends;
}

}  // namespace torch_tpu::runtime
