// SHA-256 and HMAC-SHA-256.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

namespace torch_tpu::cache {

struct Digest {
  std::array<uint8_t, 32> bytes{};

  std::string hex() const;
  std::string_view view() const {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  friend bool operator==(const Digest&, const Digest&) = default;
};

// Of bytes that come in pieces; where the pieces begin and end does not count.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256& update(std::string_view bytes);
  Digest finish();  // once

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Of a sequence of texts: the length of each is hashed too, so {"ab", "c"} differs from
// {"a", "bc"}.
Digest sha256(std::initializer_list<std::string_view> parts);

// RFC 2104, over the plain bytes of the message.
Digest hmac_sha256(std::string_view key, std::string_view message);

// Equality that takes the same time wherever the difference is: for signatures.
bool equal_in_constant_time(std::string_view a, std::string_view b);

}  // namespace torch_tpu::cache
