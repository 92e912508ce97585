// The low-level functions of libcrypto's SHA-256: linked statically they bring 30 KB, the EVP
// interface several megabytes.
#define OPENSSL_SUPPRESS_DEPRECATED
#include "cache/digest.h"

#include <openssl/sha.h>

#include <cstring>

namespace torch_tpu::cache {

struct Sha256::State {
  SHA256_CTX context;
};

Sha256::Sha256() : state_(std::make_unique<State>()) { SHA256_Init(&state_->context); }

Sha256::~Sha256() = default;

Sha256& Sha256::update(std::string_view bytes) {
  SHA256_Update(&state_->context, bytes.data(), bytes.size());
  return *this;
}

Digest Sha256::finish() {
  Digest digest;
  SHA256_Final(digest.bytes.data(), &state_->context);
  return digest;
}

std::string Digest::hex() const {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(2 * bytes.size());
  for (const uint8_t byte : bytes) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

Digest sha256(std::initializer_list<std::string_view> parts) {
  Sha256 hash;
  for (const std::string_view part : parts) {
    const uint64_t size = part.size();
    hash.update({reinterpret_cast<const char*>(&size), sizeof size}).update(part);
  }
  return hash.finish();
}

Digest hmac_sha256(std::string_view key, std::string_view message) {
  constexpr size_t kBlock = 64;
  std::string inner(kBlock, '\0');
  if (key.size() <= kBlock) {
    std::memcpy(inner.data(), key.data(), key.size());
  } else {
    const Digest short_key = Sha256().update(key).finish();
    std::memcpy(inner.data(), short_key.bytes.data(), short_key.bytes.size());
  }
  std::string outer = inner;
  for (char& c : inner) c ^= 0x36;
  for (char& c : outer) c ^= 0x5c;
  const Digest digest = Sha256().update(inner).update(message).finish();
  return Sha256().update(outer).update(digest.view()).finish();
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

}  // namespace torch_tpu::cache
