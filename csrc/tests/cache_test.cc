// The directory of compiled programs: what a reader may find in it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <thread>

#include "cache/program_directory.h"

namespace torch_tpu::cache {
namespace {

namespace fs = std::filesystem;

class ProgramDirectoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "torch_tpu_cache_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override {
    fs::permissions(root_, fs::perms::owner_all);
    fs::remove_all(root_);
  }

  std::vector<fs::path> files() const {
    std::vector<fs::path> out;
    for (const auto& entry : fs::recursive_directory_iterator(root_)) {
      if (entry.is_regular_file()) out.push_back(entry.path());
    }
    return out;
  }

  static std::string read(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  static void write(const fs::path& path, const std::string& content) {
    std::ofstream(path, std::ios::binary) << content;
  }

  fs::path root_;
};

const std::string kBinary("exec\0utable\n\xff", 13);

TEST_F(ProgramDirectoryTest, GivesBackWhatWasStored) {
  const ProgramDirectory directory(root_, "plugin 1");
  EXPECT_FALSE(directory.load("source"));
  directory.store("source", kBinary);
  EXPECT_EQ(directory.load("source"), kBinary);
  EXPECT_EQ(ProgramDirectory(root_, "plugin 1").load("source"), kBinary);
  EXPECT_FALSE(directory.load("source "));
  EXPECT_FALSE(directory.load(""));
  directory.store("", "");
  EXPECT_EQ(directory.load(""), "");
  EXPECT_EQ(files().size(), 2u) << "nothing but programs stays behind";
}

TEST_F(ProgramDirectoryTest, TheLastWriterWins) {
  const ProgramDirectory directory(root_, "s");
  directory.store("source", "old");
  directory.store("source", "new");
  EXPECT_EQ(directory.load("source"), "new");
  EXPECT_EQ(files().size(), 1u);
}

TEST_F(ProgramDirectoryTest, OtherScopesSeeNothing) {
  const ProgramDirectory one(root_, "plugin 1"), two(root_, "plugin 2");
  one.store("source", "1");
  EXPECT_FALSE(two.load("source"));
  two.store("source", "2");
  EXPECT_EQ(one.load("source"), "1");
  EXPECT_EQ(two.load("source"), "2");
}

TEST_F(ProgramDirectoryTest, AFileOfAnotherProgramIsNotUsed) {
  // As if the hashes of both were the same.
  const ProgramDirectory one(root_, "plugin 1"), two(root_, "plugin 2");
  one.store("source", "1");
  const fs::path first = files().at(0);
  two.store("source", "2");
  for (const fs::path& path : files()) {
    if (path != first) fs::copy_file(path, first, fs::copy_options::overwrite_existing);
  }
  EXPECT_FALSE(one.load("source"));
  one.store("other source", "3");
  for (const fs::path& path : files()) {
    if (read(path).find("other source") != std::string::npos) {
      fs::copy_file(path, first, fs::copy_options::overwrite_existing);
    }
  }
  EXPECT_FALSE(one.load("source"));
}

TEST_F(ProgramDirectoryTest, EveryTruncationIsNoticed) {
  const ProgramDirectory directory(root_, "scope");
  directory.store("source", kBinary);
  const fs::path path = files().at(0);
  const std::string whole = read(path);
  for (size_t size = 0; size < whole.size(); ++size) {
    write(path, whole.substr(0, size));
    EXPECT_FALSE(directory.load("source")) << size << " of " << whole.size() << " bytes";
  }
  write(path, whole + "x");
  EXPECT_FALSE(directory.load("source"));
  write(path, whole);
  EXPECT_TRUE(directory.load("source"));
}

TEST_F(ProgramDirectoryTest, EveryChangedByteIsNoticed) {
  const ProgramDirectory directory(root_, "scope");
  directory.store("source", kBinary);
  const fs::path path = files().at(0);
  const std::string whole = read(path);
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x41);
    write(path, damaged);
    EXPECT_FALSE(directory.load("source")) << "byte " << i;
  }
  directory.store("source", kBinary);
  EXPECT_TRUE(directory.load("source")) << "a damaged file is replaced";
}

TEST_F(ProgramDirectoryTest, AFileThatIsNoneIsNotUsed) {
  const ProgramDirectory directory(root_, "scope");
  directory.store("source", "x");
  const fs::path path = files().at(0);
  fs::remove(path);
  fs::create_directory(path);
  EXPECT_FALSE(directory.load("source"));
  directory.store("source", "x");  // cannot succeed, and does not say so
  EXPECT_FALSE(directory.load("source"));
  for (const fs::path& left : files()) ADD_FAILURE() << left << " stays behind";
}

TEST_F(ProgramDirectoryTest, AnUnwritableRootIsSilent) {
  const fs::path file = root_ / "file";
  write(file, "not a directory");
  const ProgramDirectory below_a_file(file, "scope");
  below_a_file.store("source", "x");
  EXPECT_FALSE(below_a_file.load("source"));
  const ProgramDirectory nowhere("/proc/torch_tpu_no_such_directory", "scope");
  nowhere.store("source", "x");
  EXPECT_FALSE(nowhere.load("source"));
}

TEST_F(ProgramDirectoryTest, ReadersNeverSeeHalfOfAFile) {
  const ProgramDirectory directory(root_, "scope");
  const auto content = [](int i) { return std::string(20000, static_cast<char>('a' + i)); };
  directory.store("source", content(0));
  std::vector<std::thread> writers;
  for (int i = 0; i < 4; ++i) {
    writers.emplace_back([&, i] {
      for (int k = 0; k < 50; ++k) directory.store("source", content(i));
    });
  }
  for (int k = 0; k < 200; ++k) {
    const std::optional<std::string> loaded = directory.load("source");
    ASSERT_TRUE(loaded);
    EXPECT_EQ(*loaded, content(loaded->front() - 'a'));
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(files().size(), 1u);
}

TEST(Hash128, DiffersWithEveryBitAndLength) {
  std::set<std::string> seen;
  std::string text(40, 'x');
  seen.insert(hash128(text));
  for (size_t i = 0; i < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = text;
      changed[i] = static_cast<char>(changed[i] ^ (1 << bit));
      EXPECT_TRUE(seen.insert(hash128(changed)).second);
    }
    EXPECT_TRUE(seen.insert(hash128(text.substr(0, i))).second);
  }
  // Trailing zeros are part of the text.
  EXPECT_NE(hash128(std::string(3, '\0')), hash128(std::string(4, '\0')));
  EXPECT_EQ(hash128(text).size(), 32u);
}

class DefaultRoot : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : kNames) {
      const char* value = std::getenv(name);
      before_.emplace_back(name, value ? std::optional<std::string>(value) : std::nullopt);
      unsetenv(name);
    }
  }
  void TearDown() override {
    for (const auto& [name, value] : before_) {
      if (value) {
        setenv(name, value->c_str(), 1);
      } else {
        unsetenv(name);
      }
    }
  }

  static constexpr const char* kNames[] = {"TORCH_TPU_CACHE", "TORCH_TPU_CACHE_DIR",
                                           "XDG_CACHE_HOME", "HOME"};
  std::vector<std::pair<const char*, std::optional<std::string>>> before_;
};

TEST_F(DefaultRoot, FollowsTheEnvironment) {
  EXPECT_FALSE(default_root());
  setenv("HOME", "/home/someone", 1);
  EXPECT_EQ(default_root(), "/home/someone/.cache/torch_tpu");
  setenv("XDG_CACHE_HOME", "/cache", 1);
  EXPECT_EQ(default_root(), "/cache/torch_tpu");
  setenv("TORCH_TPU_CACHE_DIR", "/programs", 1);
  EXPECT_EQ(default_root(), "/programs");
  setenv("TORCH_TPU_CACHE", "0", 1);
  EXPECT_FALSE(default_root());
}

}  // namespace
}  // namespace torch_tpu::cache
