// Bytes together with whatever keeps them alive: a mapped file or a string.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace torch_tpu::cache {

class Blob {
 public:
  Blob() = default;
  explicit Blob(std::string bytes) {
    auto owned = std::make_shared<const std::string>(std::move(bytes));
    bytes_ = *owned;
    owner_ = std::move(owned);
  }
  Blob(std::shared_ptr<const void> owner, std::string_view bytes)
      : owner_(std::move(owner)), bytes_(bytes) {}

  std::string_view bytes() const noexcept { return bytes_; }
  size_t size() const noexcept { return bytes_.size(); }
  // Another view of what this blob keeps alive.
  Blob part(std::string_view within) const { return Blob(owner_, within); }

 private:
  std::shared_ptr<const void> owner_;
  std::string_view bytes_;
};

}  // namespace torch_tpu::cache
