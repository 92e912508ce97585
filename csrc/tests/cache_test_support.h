// What the tests of the compilation cache share.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "cache/host_hooks.h"
#include "cache/program_cache.h"

namespace torch_tpu::cache::testing {

namespace fs = std::filesystem;

constexpr uid_t kNobody = 65534;

inline std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void write_file(const fs::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

// A folder of its own for every test, and the log's lines.
class CacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "torch_tpu_cache_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    set_host_hooks({.log =
                        [this](const std::string& line) {
                          const std::lock_guard lock(mutex_);
                          lines_.push_back(line);
                        },
                    .blocking = {}});
  }
  void TearDown() override {
    set_host_hooks({});
    fs::remove_all(root_);
  }

  std::vector<std::string> log() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }
  size_t lines_with(const std::string& text) {
    size_t n = 0;
    for (const std::string& line : log()) n += line.find(text) != std::string::npos;
    return n;
  }

  Settings settings() const {
    Settings s;
    s.machine_folder = root_ / "machine";
    s.persistent_root = root_ / "persistent";
    return s;
  }

  // Files below a folder, the lock file left out.
  static std::vector<fs::path> files(const fs::path& folder) {
    std::vector<fs::path> out;
    if (!fs::exists(folder)) return out;
    for (const auto& item : fs::recursive_directory_iterator(folder)) {
      if (!item.is_directory() && item.path().filename() != KeyLocks::kFileName) {
        out.push_back(item.path());
      }
    }
    return out;
  }

  fs::path root_;

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

// Runs `body` in a forked child, and passes on whether all its expectations held.
inline void in_child(const std::function<void()>& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    body();
    std::fflush(nullptr);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}

// The same as a user whom permissions bind: root's child gives up its rights. `folder` becomes
// that user's.
inline void as_ordinary_user(const fs::path& folder, const std::function<void()>& body) {
  if (geteuid() == 0) {
    ASSERT_EQ(chown(folder.c_str(), kNobody, kNobody), 0);
  }
  in_child([&] {
    if (geteuid() == 0) {
      ASSERT_EQ(setgid(kNobody), 0);
      ASSERT_EQ(setuid(kNobody), 0);
    }
    body();
  });
}

inline EntryKey program_key(const std::string& material, const std::string& scope = "scope") {
  return EntryKey(EntryKind::kProgram, scope, material);
}

inline std::string bytes_of(const Lookup& lookup) {
  return lookup.hit ? std::string(lookup.hit->payload.bytes()) : "(a miss)";
}

}  // namespace torch_tpu::cache::testing
