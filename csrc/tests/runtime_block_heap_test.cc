#include <gtest/gtest.h>

#include <cstring>
#include <new>
#include <random>
#include <thread>
#include <vector>

#include "runtime/block_heap.h"

namespace torch_tpu::runtime {
namespace {

constexpr size_t kMega = 1 << 20;

TEST(BlockHeap, FreedBlocksAreUsedAgain) {
  BlockHeap heap(16 * kMega);
  void* const first = heap.allocate(3 * kMega);
  ASSERT_NE(first, nullptr);
  EXPECT_TRUE(heap.contains(first));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 4096, 0U);
  EXPECT_EQ(heap.size_of(first), 3 * kMega);
  std::memset(first, 7, 3 * kMega);
  heap.free(first);
  void* const again = heap.allocate(3 * kMega - 5);
  EXPECT_EQ(again, first);
  EXPECT_EQ(*static_cast<char*>(again), 7);  // its pages are still there
  heap.free(again);
}

TEST(BlockHeap, TheSmallestThatIsLargeEnoughIsTaken) {
  BlockHeap heap(16 * kMega);
  void* const large = heap.allocate(4 * kMega);
  void* const wall = heap.allocate(kMega);
  void* const small = heap.allocate(2 * kMega);
  void* const end = heap.allocate(kMega);
  heap.free(large);
  heap.free(small);
  EXPECT_EQ(heap.allocate(2 * kMega), small);
  EXPECT_EQ(heap.allocate(3 * kMega), large);
  static_cast<void>(wall);
  static_cast<void>(end);
}

TEST(BlockHeap, NeighboursBecomeOne) {
  for (const auto& order : std::vector<std::vector<size_t>>{{0, 1, 2}, {2, 1, 0}, {0, 2, 1}}) {
    BlockHeap heap(6 * kMega);
    std::vector<void*> blocks;
    for (int i = 0; i < 3; ++i) blocks.push_back(heap.allocate(2 * kMega));
    EXPECT_EQ(heap.allocate(1), nullptr);  // full
    for (const size_t i : order) heap.free(blocks[i]);
    EXPECT_EQ(heap.allocate(6 * kMega), blocks[0]);
  }
}

TEST(BlockHeap, WhatHasNoRoomIsNull) {
  BlockHeap heap(2 * kMega);
  EXPECT_EQ(heap.allocate(3 * kMega), nullptr);
  EXPECT_EQ(heap.allocate(~size_t{0}), nullptr);
  void* const all = heap.allocate(2 * kMega);
  EXPECT_NE(all, nullptr);
  EXPECT_EQ(heap.allocate(kMega), nullptr);
  heap.free(all);
  int elsewhere = 0;
  EXPECT_FALSE(heap.contains(&elsewhere));
  EXPECT_FALSE(heap.contains(nullptr));
}

TEST(BlockHeap, AddressesThatTheSystemHasNot) {
  EXPECT_THROW(BlockHeap(size_t{1} << 60), std::bad_alloc);
}

TEST(BlockHeap, TrimGivesFreePagesBack) {
  BlockHeap heap(8 * kMega);
  auto* const kept = static_cast<char*>(heap.allocate(kMega));
  auto* const freed = static_cast<char*>(heap.allocate(kMega));
  std::memset(kept, 1, kMega);
  std::memset(freed, 2, kMega);
  heap.free(freed);
  heap.trim();
  EXPECT_EQ(kept[kMega - 1], 1);
  auto* const again = static_cast<char*>(heap.allocate(kMega));
  ASSERT_EQ(again, freed);
  EXPECT_EQ(again[0], 0);  // a new page
}

TEST(BlockHeap, NoMoreIsKeptThanWanted) {
  BlockHeap heap(64 * kMega, 5 * kMega);
  const auto filled = [&](size_t bytes) {
    auto* const block = static_cast<char*>(heap.allocate(bytes));
    std::memset(block, 3, bytes);
    return block;
  };
  for (int turn = 0; turn < 20; ++turn) {  // the same memory, counted once
    char* const block = filled(4 * kMega);
    heap.free(block);
    char* const again = static_cast<char*>(heap.allocate(4 * kMega));
    EXPECT_EQ(again[0], 3);
    heap.free(again);
  }
  char* const first = filled(4 * kMega);
  char* const second = filled(4 * kMega);
  heap.free(first);
  heap.free(second);  // eight are too many
  char* const again = static_cast<char*>(heap.allocate(8 * kMega));
  EXPECT_EQ(again[0], 0);
  EXPECT_EQ(again[8 * kMega - 1], 0);
  heap.free(again);
}

TEST(BlockHeap, ThreadsShareIt) {
  BlockHeap heap(256 * kMega);
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 4; ++seed) {
    threads.emplace_back([&heap, seed] {
      std::minstd_rand random(seed);
      std::vector<std::pair<char*, size_t>> mine;
      for (int turn = 0; turn < 2000; ++turn) {
        if (mine.size() < 8 && random() % 2 == 0) {
          const size_t bytes = 1 + random() % (3 * kMega);
          auto* const block = static_cast<char*>(heap.allocate(bytes));
          ASSERT_NE(block, nullptr);
          block[0] = block[bytes - 1] = static_cast<char>(seed);
          mine.emplace_back(block, bytes);
        } else if (!mine.empty()) {
          const auto [block, bytes] = mine.back();
          mine.pop_back();
          ASSERT_EQ(block[0], static_cast<char>(seed));
          ASSERT_EQ(block[bytes - 1], static_cast<char>(seed));
          heap.free(block);
        }
      }
      for (const auto& [block, bytes] : mine) heap.free(block);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_NE(heap.allocate(256 * kMega), nullptr);  // one free block again
}

}  // namespace
}  // namespace torch_tpu::runtime
