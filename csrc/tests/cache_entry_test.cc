// Entries: what is written is read back, anything else is told apart.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "cache/digest.h"
#include "cache/entry.h"

namespace torch_tpu::cache {
namespace {

const std::string kPayload("exec\0utable\n\xff", 13);
const std::string kKey = "a signing key of the fleet";
constexpr size_t kHeader = 120;

EntryKey some_key() { return EntryKey(EntryKind::kProgram, "plugin 1\ncpu", "module {}"); }

TEST(CacheDigest, AgreesWithPublishedValues) {
  EXPECT_EQ(Sha256().finish().hex(),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256().update("a").update("bc").finish().hex(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  // RFC 4231, cases 2 and 6 (a key longer than a block).
  EXPECT_EQ(hmac_sha256("Jefe", "what do ya want for nothing?").hex(),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hmac_sha256(std::string(131, '\xaa'),
                        "Test Using Larger Than Block-Size Key - Hash Key First")
                .hex(),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(CacheDigest, BoundariesOfPartsCount) {
  EXPECT_NE(sha256({"ab", "c"}), sha256({"a", "bc"}));
  EXPECT_NE(sha256({"", "a"}), sha256({"a", ""}));
  EXPECT_NE(sha256({""}), sha256({}));
  EXPECT_EQ(sha256({"ab", "c"}), sha256({"ab", "c"}));
}

TEST(CacheDigest, ComparesInFull) {
  EXPECT_TRUE(equal_in_constant_time("abc", "abc"));
  EXPECT_FALSE(equal_in_constant_time("abc", "abd"));
  EXPECT_FALSE(equal_in_constant_time("abc", "ab"));
}

TEST(CacheEntry, NamesDifferInEveryPart) {
  std::set<std::string> names;
  for (const EntryKind kind : {EntryKind::kProgram, EntryKind::kCall}) {
    for (const char* scope : {"", "a", "ab"}) {
      for (const char* material : {"", "b", "ab"}) {
        names.insert(EntryKey(kind, scope, material).name());
      }
    }
  }
  EXPECT_EQ(names.size(), 18u);
  for (const std::string& name : names) EXPECT_TRUE(is_entry_name(name)) << name;
  EXPECT_FALSE(is_entry_name(""));
  EXPECT_FALSE(is_entry_name("../" + std::string(61, 'a')));
  EXPECT_FALSE(is_entry_name(std::string(64, 'A')));
}

TEST(CacheEntry, GivesBackWhatWasStored) {
  for (const std::string& signing_key : {std::string(), kKey}) {
    for (const size_t material_size : {0, 1, 7, 8, 63, 64, 65, 5000}) {
      for (const size_t payload_size : {0, 1, 64, 70'000}) {
        const EntryKey key(EntryKind::kCall, "scope", std::string(material_size, 'm'));
        const std::string payload(payload_size, 'p');
        const std::string bytes = encode_entry(key, payload, signing_key);
        const DecodedEntry decoded = decode_entry(bytes, &key, signing_key);
        ASSERT_TRUE(decoded) << to_string(decoded.problem);
        EXPECT_EQ(decoded.entry.payload, payload);
        EXPECT_EQ(decoded.entry.material, key.material());
        EXPECT_EQ(decoded.entry.scope, key.scope());
        EXPECT_EQ(decoded.entry.kind, key.kind());
        EXPECT_EQ((decoded.entry.payload.data() - bytes.data()) % 64, 0);
        EXPECT_EQ(decoded.entry.is_signed, !signing_key.empty());
      }
    }
  }
}

TEST(CacheEntry, AnotherKeyIsAMismatch) {
  const EntryKey key = some_key();
  const std::string bytes = encode_entry(key, kPayload, "");
  EXPECT_TRUE(decode_entry(bytes, nullptr, ""));
  const EntryKey others[] = {EntryKey(EntryKind::kCall, key.scope(), key.material()),
                             EntryKey(key.kind(), "plugin 2\ncpu", key.material()),
                             EntryKey(key.kind(), key.scope(), "module {} "),
                             EntryKey(key.kind(), key.scope() + "m", "odule {}")};
  for (const EntryKey& other : others) {
    EXPECT_EQ(decode_entry(bytes, &other, "").problem, EntryProblem::kKeyMismatch);
  }
}

TEST(CacheEntry, SignaturesAreAskedForWithAKey) {
  const EntryKey key = some_key();
  const std::string plain = encode_entry(key, kPayload, "");
  const std::string with_key = encode_entry(key, kPayload, kKey);
  EXPECT_TRUE(decode_entry(with_key, &key, kKey));
  EXPECT_TRUE(decode_entry(with_key, &key, "")) << "without a key, signatures are not looked at";
  EXPECT_EQ(decode_entry(plain, &key, kKey).problem, EntryProblem::kUnsigned);
  EXPECT_EQ(decode_entry(with_key, &key, "another key").problem, EntryProblem::kWrongSignature);

  // An attacker without the key: another payload with a right checksum and the old signature.
  std::string forged = encode_entry(key, std::string(13, 'x'), "");
  forged[48] = 1;  // signed
  Sha256 checksum;
  checksum.update(std::string_view(forged).substr(0, 56));
  const Digest digest = checksum.update(std::string_view(forged).substr(kHeader)).finish();
  forged.replace(56, 32, digest.view());
  forged.replace(88, 32, with_key.substr(88, 32));
  EXPECT_TRUE(decode_entry(forged, &key, ""));
  EXPECT_EQ(decode_entry(forged, &key, kKey).problem, EntryProblem::kWrongSignature);
}

TEST(CacheEntry, EveryBitCounts) {
  const EntryKey key = some_key();
  const std::string good = encode_entry(key, kPayload, kKey);
  for (size_t i = 0; i < good.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ 1 << bit);
      EXPECT_FALSE(decode_entry(bad, &key, kKey)) << "byte " << i << ", bit " << bit;
      // Without a signing key only the signature is not looked at.
      const bool in_signature = i >= 88 && i < kHeader;
      EXPECT_EQ(static_cast<bool>(decode_entry(bad, &key, "")), in_signature) << "byte " << i;
    }
  }
  std::string older = good;
  older[8] = 0;
  EXPECT_EQ(decode_entry(older, &key, "").problem, EntryProblem::kOtherVersion);
}

TEST(CacheEntry, EveryTruncationShows) {
  const EntryKey key = some_key();
  const std::string good = encode_entry(key, std::string(300, 'p'), "");
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_EQ(decode_entry(std::string_view(good).substr(0, size), &key, "").problem,
              EntryProblem::kTruncated)
        << size;
  }
  EXPECT_EQ(decode_entry(good + "x", &key, "").problem, EntryProblem::kTruncated);
}

TEST(CacheEntry, RandomBytesAreNoEntry) {
  std::mt19937_64 random(7);
  const EntryKey key = some_key();
  const std::string good = encode_entry(key, kPayload, "");
  for (int i = 0; i < 2000; ++i) {
    std::string bytes(random() % 400, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    EXPECT_FALSE(decode_entry(bytes, nullptr, ""));
    // Behind a right magic and version, so that the sizes are looked at.
    const size_t kept = std::min<size_t>(bytes.size(), 16);
    bytes.replace(0, kept, good.substr(0, kept));
    EXPECT_FALSE(decode_entry(bytes, nullptr, ""));
  }
}

// Sizes that a right checksum vouches for.
TEST(CacheEntry, SizesThatDoNotFitAreRefused) {
  const EntryKey key = some_key();
  const std::string good = encode_entry(key, kPayload, "");
  for (const size_t field : {12, 16, 24, 32, 40, 48}) {
    for (const uint64_t value :
         {0ull, 1ull, 63ull, 64ull, 120ull, 121ull, 1ull << 31, ~0ull, ~0ull - 63, 1ull << 63}) {
      std::string bytes = good;
      const size_t size = field == 12 ? 4 : 8;
      const std::string before = bytes.substr(field, size);
      bytes.replace(field, size, reinterpret_cast<const char*>(&value), size);
      if (bytes.substr(field, size) == before) continue;
      Sha256 checksum;
      checksum.update(std::string_view(bytes).substr(0, 56));
      const Digest digest = checksum.update(std::string_view(bytes).substr(kHeader)).finish();
      bytes.replace(56, 32, digest.view());
      const DecodedEntry decoded = decode_entry(bytes, &key, "");
      // "Signed" alone changes nothing where signatures are not looked at.
      EXPECT_EQ(static_cast<bool>(decoded), field == 48 && value == 1) << field << " " << value;
    }
  }
}

}  // namespace
}  // namespace torch_tpu::cache
