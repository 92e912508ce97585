// What the environment says about the cache.
#include <sys/stat.h>

#include "cache/settings.h"
#include "tests/cache_test_support.h"

namespace torch_tpu::cache {
namespace {

namespace fs = std::filesystem;

class CacheSettings : public testing::CacheTest {
 protected:
  // Sets a variable for this test.
  void set(const std::string& name, const std::string& value) {
    const char* before = std::getenv(name.c_str());
    before_.push_back({name, before ? std::optional<std::string>(before) : std::nullopt});
    setenv(name.c_str(), value.c_str(), 1);
  }
  void SetUp() override {
    CacheTest::SetUp();
    for (const char* name :
         {"TIER2_COMPILATION_CACHE", "TIER3_COMPILATION_CACHE_ROOT", "TIER1_COMPILATION_CACHE_SIZE",
          "TIER2_COMPILATION_CACHE_SIZE", "TIER3_COMPILATION_CACHE_SIZE", "CACHE_HMAC_KEY_FILE"}) {
      set(std::string("TORCH_TPU_") + name, "");  // as if it were not set
    }
    set("HOME", "/home/me");
    set("XDG_CACHE_HOME", "");
  }
  void TearDown() override {
    for (auto item = before_.rbegin(); item != before_.rend(); ++item) {
      if (item->second) {
        setenv(item->first.c_str(), item->second->c_str(), 1);
      } else {
        unsetenv(item->first.c_str());
      }
    }
    CacheTest::TearDown();
  }
  // The message of the refusal, which has to begin with the variable.
  std::string refusal(const std::string& name, const std::string& value) {
    set(name, value);
    std::string message = "(accepted)";
    try {
      Settings::from_environment();
    } catch (const std::invalid_argument& error) {
      message = error.what();
      EXPECT_TRUE(message.starts_with(name + ":")) << message;
    }
    set(name, "");
    return message;
  }

  std::vector<std::pair<std::string, std::optional<std::string>>> before_;
};

TEST_F(CacheSettings, Defaults) {
  const Settings s = Settings::from_environment();
  EXPECT_EQ(s.persistent_root, "/home/me/.cache/torch_tpu");
  EXPECT_FALSE(s.persistent_is_remote());
  EXPECT_EQ(s.persistent_bytes, 10ull << 30);
  EXPECT_EQ(s.memory_bytes, 4ull << 30);
  EXPECT_EQ(s.signing_key, "");
  if (fs::exists("/dev/shm")) {
    EXPECT_EQ(s.machine_folder, "/dev/shm/torch_tpu-" + std::to_string(geteuid()) + "/default");
    EXPECT_LE(s.machine_bytes, 1ull << 30);
    EXPECT_GT(s.machine_bytes, 0u);
  } else {
    EXPECT_EQ(s.notes.size(), 1u);
  }
  set("XDG_CACHE_HOME", "/var/me");
  EXPECT_EQ(Settings::from_environment().persistent_root, "/var/me/torch_tpu");
  set("XDG_CACHE_HOME", "relative");
  EXPECT_EQ(Settings::from_environment().persistent_root, "/home/me/.cache/torch_tpu");
  set("HOME", "");
  EXPECT_EQ(Settings::from_environment().persistent_root, "");
  EXPECT_FALSE(Settings::from_environment().notes.empty());
}

TEST_F(CacheSettings, Places) {
  set("TORCH_TPU_TIER2_COMPILATION_CACHE", "run-1.a_B");
  set("TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT", "gs://bucket/programs");
  Settings s = Settings::from_environment();
  if (fs::exists("/dev/shm")) {
    EXPECT_EQ(s.machine_folder.filename(), "run-1.a_B");
  }
  EXPECT_EQ(s.persistent_root, "gs://bucket/programs");
  EXPECT_TRUE(s.persistent_is_remote());
  set("TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT", "~/programs/");
  EXPECT_EQ(Settings::from_environment().persistent_root, "/home/me/programs");
  set("TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT", "file:///data/programs");
  EXPECT_EQ(Settings::from_environment().persistent_root, "/data/programs");
  set("TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT", "programs/../here");
  EXPECT_EQ(Settings::from_environment().persistent_root, (fs::current_path() / "here").string());
  set("TORCH_TPU_TIER2_COMPILATION_CACHE", "disabled");
  set("TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT", "disabled");
  s = Settings::from_environment();
  EXPECT_TRUE(s.machine_folder.empty());
  EXPECT_EQ(s.persistent_root, "");
  EXPECT_TRUE(s.notes.empty());
  for (const char* bad : {"a/b", "..", ".", "a b", "\xc3\xa9"}) {
    EXPECT_NE(refusal("TORCH_TPU_TIER2_COMPILATION_CACHE", bad).find(bad), std::string::npos);
  }
}

TEST_F(CacheSettings, Sizes) {
  set("TORCH_TPU_TIER1_COMPILATION_CACHE_SIZE", "1M");
  set("TORCH_TPU_TIER2_COMPILATION_CACHE_SIZE", "2M");
  set("TORCH_TPU_TIER3_COMPILATION_CACHE_SIZE", "0");
  const Settings s = Settings::from_environment();
  EXPECT_EQ(s.memory_bytes, 1u << 20);
  EXPECT_EQ(s.machine_bytes, 2u << 20);
  EXPECT_EQ(s.persistent_bytes, 0u);
  refusal("TORCH_TPU_TIER2_COMPILATION_CACHE_SIZE", "much");
}

TEST_F(CacheSettings, SigningKey) {
  constexpr const char* kVariable = "TORCH_TPU_CACHE_HMAC_KEY_FILE";
  const std::string path = (root_ / "key").string();
  EXPECT_NE(refusal(kVariable, path).find("No such file"), std::string::npos);
  testing::write_file(path, "0123456789abcdef\n");
  ASSERT_EQ(chmod(path.c_str(), 0640), 0);
  set(kVariable, path);
  EXPECT_EQ(Settings::from_environment().signing_key, "0123456789abcdef");
  for (const mode_t mode : {0644, 0620, 0602}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    EXPECT_NE(refusal(kVariable, path).find("chmod 600"), std::string::npos);
  }
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  testing::write_file(path, "short");
  EXPECT_NE(refusal(kVariable, path).find("at least 16 bytes"), std::string::npos);
  EXPECT_NE(refusal(kVariable, root_.string()).find("is no file"), std::string::npos);
}

}  // namespace
}  // namespace torch_tpu::cache
