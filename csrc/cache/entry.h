// What the tiers keep: one compiled program with everything it was compiled from.
//
// The bytes of an entry: a fixed header (magic, format version, kind, sizes, checksum, signature),
// then scope, material, padding, payload. The payload begins at a multiple of 64 bytes. The
// checksum covers all but itself and the signature; the signature covers the checksum.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace torch_tpu::cache {

enum class EntryKind : uint32_t {
  kProgram = 1,  // a serialized executable
  kCall = 2,     // what an eager call lowers to, beside its program
};
const char* to_string(EntryKind);

// Names an entry. The full text of the key is kept in the entry and compared on every read.
class EntryKey {
 public:
  // `scope` is what everything compiled by this process depends on (library, plugin, processor);
  // `material` is what this entry was made from.
  EntryKey(EntryKind kind, std::string scope, std::string material);

  EntryKind kind() const noexcept { return kind_; }
  const std::string& scope() const noexcept { return scope_; }
  const std::string& material() const noexcept { return material_; }
  // 64 hexadecimal digits.
  const std::string& name() const noexcept { return name_; }

 private:
  EntryKind kind_;
  std::string scope_, material_, name_;
};

// True for what EntryKey::name() can be.
bool is_entry_name(std::string_view text);

// Why a key has no usable entry.
enum class EntryProblem : uint8_t {
  kNone,            // it has one
  kAbsent,          // nothing is stored under the name
  kTruncated,       // shorter or longer than its header says
  kForeign,         // no entry of this library at all
  kOtherVersion,    // of another format version
  kChecksum,        // damaged
  kKeyMismatch,     // stored for another key
  kUnsigned,        // a signing key is configured and the entry carries no signature
  kWrongSignature,  // signed with another key
  kUnreadable,      // the operating system gave an error
  kUntrusted,       // the file or its folder belongs to another user or is writable by others
  kSlow,            // the tier has not answered in time
  kCount,
};
const char* to_string(EntryProblem);

// `signing_key` empty: not signed.
std::string encode_entry(const EntryKey& key, std::string_view payload,
                         std::string_view signing_key);

// Views into the bytes given to decode_entry.
struct EntryView {
  EntryKind kind = EntryKind::kProgram;
  std::string_view scope, material, payload;
  bool is_signed = false;
};

struct DecodedEntry {
  EntryProblem problem = EntryProblem::kNone;
  EntryView entry;  // when problem is kNone

  explicit operator bool() const noexcept { return problem == EntryProblem::kNone; }
};

// Accepts any bytes. `expected` null: an entry of any key (tools that list and verify).
// `signing_key` empty: signatures are not looked at.
DecodedEntry decode_entry(std::string_view bytes, const EntryKey* expected,
                          std::string_view signing_key);

}  // namespace torch_tpu::cache
