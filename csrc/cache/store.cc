#include "cache/store.h"

#include <algorithm>
#include <tuple>

namespace torch_tpu::cache {

const char* to_string(StoreProblem problem) {
  switch (problem) {
    case StoreProblem::kReadOnly:
      return "read-only";
    case StoreProblem::kFull:
      return "full";
    case StoreProblem::kNoPermission:
      return "no permission";
    case StoreProblem::kUnreachable:
      return "unreachable";
    case StoreProblem::kUntrusted:
      return "untrusted";
    case StoreProblem::kBroken:
      return "broken";
    case StoreProblem::kCount:
      break;
  }
  return "unknown";
}

PruneResult Store::prune(uint64_t max_bytes) {
  std::vector<StoredEntry> entries = list();
  PruneResult result;
  for (const StoredEntry& entry : entries) result.bytes_kept += entry.size;
  result.entries_kept = entries.size();
  if (max_bytes == 0 || result.bytes_kept <= max_bytes) return result;
  // The name decides between equal times, so that processes pruning at once remove the same ones.
  std::sort(entries.begin(), entries.end(), [](const StoredEntry& a, const StoredEntry& b) {
    return std::tie(a.last_used, a.name) < std::tie(b.last_used, b.name);
  });
  const uint64_t wanted = max_bytes / 5 * 4;
  for (const StoredEntry& entry : entries) {
    if (result.bytes_kept <= wanted) break;
    remove(entry.name);
    ++result.entries_removed;
    --result.entries_kept;
    result.bytes_removed += entry.size;
    result.bytes_kept -= entry.size;
  }
  return result;
}

}  // namespace torch_tpu::cache
