#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "runtime/block_pool.h"

namespace torch_tpu::runtime {
namespace {

TEST(BlockPool, TheBlockGivenBackLastIsTakenFirst) {
  using Pool = BlockPool<104>;
  void* const first = Pool::take();
  void* const second = Pool::take();
  EXPECT_NE(first, second);
  Pool::give_back(second);
  Pool::give_back(first);
  EXPECT_EQ(Pool::take(), first);
  EXPECT_EQ(Pool::take(), second);
  Pool::give_back(first);
  Pool::give_back(second);
}

TEST(BlockPool, KeepsSoManyAndNoMore) {
  using Pool = BlockPool<56>;
  std::vector<void*> blocks;
  for (int i = 0; i < 3000; ++i) blocks.push_back(Pool::take());
  for (void* const block : blocks) Pool::give_back(block);
  void* const last_kept = Pool::take();
  EXPECT_EQ(last_kept, blocks[1023]);
  Pool::give_back(last_kept);
}

TEST(BlockPool, BlocksMayMoveBetweenThreadsAndOutliveThem) {
  using Pool = BlockPool<72>;
  std::vector<void*> blocks(200);
  std::thread([&] {
    for (void*& block : blocks) block = Pool::take();
    Pool::give_back(Pool::take());
  }).join();
  std::thread([&] {
    for (void* const block : blocks) Pool::give_back(block);
    EXPECT_EQ(Pool::take(), blocks.back());
    Pool::give_back(blocks.back());
  }).join();
}

TEST(BlockPool, MakesSharedObjects) {
  struct Counted {
    explicit Counted(int& n) : count(n) { ++count; }
    ~Counted() { --count; }
    int& count;
  };
  int count = 0;
  auto object = std::allocate_shared<const Counted>(PoolAllocator<Counted>(), count);
  EXPECT_EQ(count, 1);
  object.reset();
  EXPECT_EQ(count, 0);
}

struct Base {
  explicit Base(int n) : number(n) {}
  virtual ~Base() = default;
  int number;
};

TEST(BlockPool, DestroysPooledObjectsByTheirBase) {
  const std::unique_ptr<Base> object = std::make_unique<Pooled<Base>>(3);
  EXPECT_EQ(object->number, 3);
}

}  // namespace
}  // namespace torch_tpu::runtime
