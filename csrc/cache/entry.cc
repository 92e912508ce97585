#include "cache/entry.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "cache/digest.h"

namespace torch_tpu::cache {

namespace {

constexpr std::array<char, 8> kMagic = {'\x89', 'T', 'P', 'U', 'E', 'N', 'T', '\n'};
// Of the layout below; also part of every name, so that versions sharing a folder do not keep
// replacing each other's entries.
constexpr uint32_t kFormatVersion = 1;
constexpr size_t kAlignment = 64;

// Little-endian, as every machine this runs on: another byte order reads another version.
struct Header {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t kind;
  uint64_t scope_size, material_size, payload_size;
  uint64_t payload_offset;
  uint64_t is_signed;
  // From here on, not covered by the checksum.
  std::array<uint8_t, 32> checksum;
  std::array<uint8_t, 32> signature;
};
constexpr size_t kHeaderSize = sizeof(Header);
constexpr size_t kCheckedHeader = offsetof(Header, checksum);
static_assert(kHeaderSize == 120 && kCheckedHeader == 56);

Digest checksum_of(std::string_view bytes) {
  return Sha256()
      .update(bytes.substr(0, kCheckedHeader))
      .update(bytes.substr(kHeaderSize))
      .finish();
}

std::string_view view(const std::array<uint8_t, 32>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

DecodedEntry bad(EntryProblem problem) { return {problem, {}}; }

}  // namespace

const char* to_string(EntryKind kind) {
  switch (kind) {
    case EntryKind::kProgram:
      return "program";
    case EntryKind::kCall:
      return "call";
  }
  return "unknown";
}

const char* to_string(EntryProblem problem) {
  switch (problem) {
    case EntryProblem::kNone:
      return "none";
    case EntryProblem::kAbsent:
      return "absent";
    case EntryProblem::kTruncated:
      return "truncated";
    case EntryProblem::kForeign:
      return "not an entry";
    case EntryProblem::kOtherVersion:
      return "other format version";
    case EntryProblem::kChecksum:
      return "damaged";
    case EntryProblem::kKeyMismatch:
      return "stored for another key";
    case EntryProblem::kUnsigned:
      return "not signed";
    case EntryProblem::kWrongSignature:
      return "wrong signature";
    case EntryProblem::kUnreadable:
      return "unreadable";
    case EntryProblem::kUntrusted:
      return "untrusted";
    case EntryProblem::kSlow:
      return "not read in time";
    case EntryProblem::kCount:
      break;
  }
  return "unknown";
}

EntryKey::EntryKey(EntryKind kind, std::string scope, std::string material)
    : kind_(kind), scope_(std::move(scope)), material_(std::move(material)) {
  const uint32_t head[] = {kFormatVersion, static_cast<uint32_t>(kind)};
  name_ = sha256({std::string_view(reinterpret_cast<const char*>(head), sizeof head), scope_,
                  material_})
              .hex();
}

bool is_entry_name(std::string_view text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

std::string encode_entry(const EntryKey& key, std::string_view payload,
                         std::string_view signing_key) {
  Header header{};
  header.magic = kMagic;
  header.version = kFormatVersion;
  header.kind = static_cast<uint32_t>(key.kind());
  header.scope_size = key.scope().size();
  header.material_size = key.material().size();
  header.payload_size = payload.size();
  const size_t key_end = kHeaderSize + key.scope().size() + key.material().size();
  header.payload_offset = (key_end + kAlignment - 1) / kAlignment * kAlignment;
  header.is_signed = !signing_key.empty();

  std::string out;
  out.reserve(header.payload_offset + payload.size());
  out.append(reinterpret_cast<const char*>(&header), kHeaderSize);
  out.append(key.scope()).append(key.material());
  out.append(header.payload_offset - key_end, '\0');
  out.append(payload);

  const Digest checksum = checksum_of(out);
  std::memcpy(out.data() + offsetof(Header, checksum), checksum.bytes.data(), 32);
  if (!signing_key.empty()) {
    const Digest signature = hmac_sha256(signing_key, checksum.view());
    std::memcpy(out.data() + offsetof(Header, signature), signature.bytes.data(), 32);
  }
  return out;
}

DecodedEntry decode_entry(std::string_view bytes, const EntryKey* expected,
                          std::string_view signing_key) {
  // Nothing after the magic is believed before it has been compared with what is there.
  const size_t magic_given = std::min(bytes.size(), kMagic.size());
  if (bytes.substr(0, magic_given) != std::string_view(kMagic.data(), magic_given)) {
    return bad(EntryProblem::kForeign);
  }
  if (bytes.size() < kHeaderSize) return bad(EntryProblem::kTruncated);
  Header header;
  std::memcpy(&header, bytes.data(), kHeaderSize);
  if (header.version != kFormatVersion) return bad(EntryProblem::kOtherVersion);

  const size_t size = bytes.size();
  if (header.payload_offset > size || header.payload_size != size - header.payload_offset) {
    return bad(EntryProblem::kTruncated);
  }
  if (checksum_of(bytes).bytes != header.checksum) return bad(EntryProblem::kChecksum);

  // A writer's mistake, or an attacker's work, where the checksum holds.
  const size_t key_room =
      header.payload_offset - std::min<size_t>(header.payload_offset, kHeaderSize);
  if (header.payload_offset % kAlignment != 0 || header.scope_size > key_room ||
      header.material_size > key_room - header.scope_size ||
      key_room - header.scope_size - header.material_size >= kAlignment || header.is_signed > 1) {
    return bad(EntryProblem::kForeign);
  }
  if (!signing_key.empty()) {
    if (!header.is_signed) return bad(EntryProblem::kUnsigned);
    const Digest signature = hmac_sha256(signing_key, view(header.checksum));
    if (!equal_in_constant_time(signature.view(), view(header.signature))) {
      return bad(EntryProblem::kWrongSignature);
    }
  }
  EntryView entry;
  entry.kind = static_cast<EntryKind>(header.kind);
  entry.scope = bytes.substr(kHeaderSize, header.scope_size);
  entry.material = bytes.substr(kHeaderSize + header.scope_size, header.material_size);
  entry.payload = bytes.substr(header.payload_offset);
  entry.is_signed = header.is_signed != 0;
  if (entry.kind != EntryKind::kProgram && entry.kind != EntryKind::kCall) {
    return bad(EntryProblem::kForeign);
  }
  if (expected && (entry.kind != expected->kind() || entry.scope != expected->scope() ||
                   entry.material != expected->material())) {
    return bad(EntryProblem::kKeyMismatch);
  }
  return {EntryProblem::kNone, entry};
}

}  // namespace torch_tpu::cache
