#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "pjrt/error.h"
#include "pjrt/executable.h"
#include "pjrt/process_end.h"
#include "tests/pjrt_test_support.h"

namespace torch_tpu::pjrt {
namespace {

using ProcessEndTest = PluginTest;

std::string negation(int size) {
  const std::string type = "tensor<" + std::to_string(size) + "xf32>";
  return "module { func.func @main(%a: " + type + ") -> " + type +
         " { %b = stablehlo.negate %a : " + type + " return %b : " + type + " } }";
}

// Registered before the plugin's own objects, so it runs after they have been destroyed.
void give_the_others_time() { std::this_thread::sleep_for(std::chrono::milliseconds(200)); }

// Ends the process while other threads compile programs and drop them.
[[noreturn]] void exit_while_compiling() {
  std::atexit(give_the_others_time);
  const std::shared_ptr<Client> client = Client::create(Plugin::load(test_plugin_path()), {});
  std::atomic<int> compiled{0};
  for (int thread = 0; thread < 2; ++thread) {
    std::thread([&compiled, client, thread] {
      try {
        for (int n = 1;; ++n) {
          client->compile(negation(2 * n + thread), {});
          compiled.fetch_add(1);
        }
      } catch (const Error& error) {
        // The end.
        if (!says(error.what(), {"[compile]", "this one is ending"})) std::abort();
      }
    }).detach();
  }
  while (compiled.load() < 4) std::this_thread::yield();
  leave_compilers_at_exit();
  std::exit(3);
}

// Ends the process while another thread, which ends later, still has a program.
[[noreturn]] void exit_with_a_program() {
  std::atexit(give_the_others_time);
  const std::shared_ptr<Client> client = Client::create(Plugin::load(test_plugin_path()), {});
  std::thread([program = client->compile(negation(2), {})]() mutable {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    program.reset();
  }).detach();
  leave_compilers_at_exit();
  std::exit(3);
}

TEST_F(ProcessEndTest, ThreadsThatCompileDoNotAbortTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_while_compiling(), ::testing::ExitedWithCode(3), "");
}

TEST_F(ProcessEndTest, ThreadsThatDropProgramsDoNotAbortTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_with_a_program(), ::testing::ExitedWithCode(3), "");
}

}  // namespace
}  // namespace torch_tpu::pjrt
