// The GPU behind exec/device.h: memory, streams and events, captured steps, ATen's pool.
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tanh.h>
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "gpu/gpu.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;

/// Holds a stream until it is opened: a function of the host's that the stream runs in its order.
class Gate {
 public:
  Gate(Stream stream) {
    using Launch = int (*)(void* stream, void (*function)(void*), void* data);
    const auto launch = reinterpret_cast<Launch>(dlsym(RTLD_DEFAULT, "cudaLaunchHostFunc"));
    if (launch == nullptr) throw Error("the CUDA runtime has no cudaLaunchHostFunc");
    const int error = launch(
        stream.handle,
        [](void* data) {
          while (!static_cast<Gate*>(data)->open_) std::this_thread::sleep_for(1ms);
        },
        this);
    if (error != 0) throw Error(fmt::format("cudaLaunchHostFunc: error {}", error));
  }
  ~Gate() { open(); }
  void open() { open_ = true; }

 private:
  std::atomic<bool> open_ = false;
};

at::Tensor tensor_over(GpuArray<float>& array, int64_t rows, int64_t cols) {
  return at::from_blob(array.data(), {rows, cols},
                       at::TensorOptions().dtype(at::kFloat).device(at::kCUDA, 0));
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no exception";
}

TEST_F(GpuTest, SaysWhatItIs) {
  const DeviceInfo& info = device->info();
  EXPECT_EQ(info.ordinal, 0);
  EXPECT_FALSE(info.name.empty());
  EXPECT_EQ(info.uuid.size(), 40u) << info.uuid;
  EXPECT_GE(info.major, 8);
  EXPECT_GT(info.multiprocessors, 0);
  EXPECT_GT(info.total_bytes, int64_t{1} << 30);
  EXPECT_LE(device->free_bytes(), info.total_bytes);
  EXPECT_GE(info.driver, info.runtime / 1000 * 1000);
  EXPECT_FALSE(info.cudnn.empty());
  EXPECT_FALSE(info.cublas.empty());
  const std::vector<DeviceInfo> all = library.devices();
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(all[0].uuid, info.uuid);
  std::printf("%s %d.%d, %d multiprocessors, driver %d, runtime %d, cuDNN %s, cuBLAS %s, NCCL %s\n",
              info.name.c_str(), info.major, info.minor, info.multiprocessors, info.driver,
              info.runtime, info.cudnn.c_str(), info.cublas.c_str(), info.nccl.c_str());
}

TEST_F(GpuTest, OpensASecondHandleOfTheSameGpuAndRefusesAnother) {
  const std::unique_ptr<Device> second = library.open(0);
  EXPECT_EQ(second->pool().reserved, device->pool().reserved);
  EXPECT_NE(message_of([&] { library.open(1); }).find("this process has opened GPU 0"),
            std::string::npos);
}

TEST_F(GpuTest, TakesMemoryThatIsZero) {
  for (int round = 0; round < 3; ++round) {
    GpuArray<uint8_t> array(*device, stream, 1000003);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(array.data()) % 256, 0u);
    EXPECT_EQ(array.get(), std::vector<uint8_t>(1000003, 0));
    array.set(std::vector<uint8_t>(1000003, 0xab));
    device->zero(stream, array.data() + 5, 10);
    EXPECT_EQ(array.get()[4], 0xab);
    EXPECT_EQ(array.get()[14], 0);
    EXPECT_EQ(array.get()[15], 0xab);
  }
  const std::span<std::byte> pinned = device->take_pinned(4097);
  EXPECT_TRUE(
      std::all_of(pinned.begin(), pinned.end(), [](std::byte b) { return b == std::byte{0}; }));
  device->give_back_pinned(pinned);
}

TEST_F(GpuTest, NamesTheLargestHoldersWhenMemoryRunsOut) {
  const std::span<std::byte> gradient = device->take(BufferKind::kGradient, size_t{3} << 29);
  const std::span<std::byte> moment = device->take(BufferKind::kMoment, size_t{1} << 29);
  const size_t much = static_cast<size_t>(device->info().total_bytes) * 2;
  const std::string message = message_of([&] { device->take(BufferKind::kSaved, much); });
  EXPECT_EQ(message.find("out of GPU memory: "), 0u) << message;
  EXPECT_NE(message.find("wanted for saved; "), std::string::npos) << message;
  const size_t first = message.find("gradient 1.5 GiB"), second = message.find("moment 512 MiB");
  EXPECT_NE(first, std::string::npos) << message;
  EXPECT_NE(second, std::string::npos) << message;
  EXPECT_LT(first, second) << message;
  const std::string of_aten = message_of([&] {
    at::empty({static_cast<int64_t>(much)},
              at::TensorOptions().dtype(at::kByte).device(at::kCUDA, 0));
  });
  EXPECT_NE(of_aten.find("wanted for ATen's temporaries"), std::string::npos) << of_aten;
  EXPECT_NE(of_aten.find("gradient 1.5 GiB"), std::string::npos) << of_aten;
  device->give_back(gradient);
  device->give_back(moment);
  // The device is as good as before.
  GpuArray<float> array(*device, stream, std::vector<float>{1, 2, 3});
  EXPECT_EQ(array.get(), (std::vector<float>{1, 2, 3}));
}

TEST_F(GpuTest, AnEventIsDoneWhenAllBeforeItHasRun) {
  const StreamEvent event = device->make_event(false);
  EXPECT_TRUE(device->done(event)) << "never recorded";
  Gate gate(stream);
  device->record(event, stream);
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(device->done(event));
    std::this_thread::sleep_for(5ms);
  }
  gate.open();
  wait();
  EXPECT_TRUE(device->done(event));
}

TEST_F(GpuTest, TimesWhatRunsBetweenTwoEvents) {
  const StreamEvent from = device->make_event(true), to = device->make_event(true);
  {
    device->record(from, stream);
    Gate gate(stream);
    device->record(to, stream);
    std::this_thread::sleep_for(30ms);
    gate.open();
    wait();
  }
  EXPECT_GT(device->seconds(from, to), 0.02);
  EXPECT_LT(device->seconds(from, to), 5);
}

TEST_F(GpuTest, AStreamWaitsForAnotherOnesEvent) {
  const Stream other = device->make_stream();
  const StreamEvent there = device->make_event(false);
  GpuArray<int> x(*device, stream, std::vector<int>{1}), y(*device, stream, 1);
  const std::span<std::byte> seven = device->take_pinned(sizeof(int));
  *reinterpret_cast<int*>(seven.data()) = 7;
  {
    Gate gate(other);
    device->copy(other, x.data(), seven.data(), sizeof(int));
    device->record(there, other);
    device->wait(stream, there);
    device->copy(stream, y.data(), x.data(), sizeof(int));
    std::this_thread::sleep_for(20ms);
    gate.open();
    wait();
  }
  EXPECT_EQ(y.get()[0], 7);
  device->give_back_pinned(seven);
}

// ---- captured steps

TEST_F(GpuTest, ACapturedChainGivesTheBitsOfThePlainOne) {
  constexpr int64_t kRows = 192, kCols = 256;
  std::mt19937_64 random(5);
  GpuArray<float> x(*device, stream, random_floats(random, kRows * kCols));
  GpuArray<float> w(*device, stream, random_floats(random, kCols * kCols)),
      out(*device, stream, kRows * kCols);
  const at::Tensor tx = tensor_over(x, kRows, kCols), tw = tensor_over(w, kCols, kCols);
  at::Tensor tout = tensor_over(out, kRows, kCols);
  const auto chain = [&] {
    const at::Tensor h = at::tanh(at::mm(tx, tw));
    at::mm_out(tout, at::add(h, tx), tw);
  };
  chain();  // cuBLAS takes its workspace
  wait();
  device->begin_capture(stream);
  chain();
  const CapturedStep step = device->end_capture(stream);
  const PoolUse before = device->pool();
  for (int round = 0; round < 3; ++round) {
    x.set(random_floats(random, kRows * kCols));
    chain();
    const std::vector<float> want = out.get();
    device->zero(stream, out.data(), out.size() * sizeof(float));
    device->launch(step, stream);
    expect_same_bits(out.get(), want, fmt::format("launch {}", round));
  }
  EXPECT_EQ(device->pool().growths, before.growths);
  device->destroy(step);
}

TEST_F(GpuTest, ACapturedStepWaitsForAnEventThatIsRecordedOutsideOfIt) {
  const Stream other = device->make_stream();
  const StreamEvent there = device->make_event(false), end = device->make_event(false);
  GpuArray<int> x(*device, stream, 1), y(*device, stream, 1);
  const std::span<std::byte> pinned = device->take_pinned(sizeof(int));
  device->begin_capture(stream);
  device->wait(stream, there, true);
  device->copy(stream, y.data(), x.data(), sizeof(int));
  const CapturedStep step = device->end_capture(stream);
  for (const int value : {7, 8, 9}) {
    *reinterpret_cast<int*>(pinned.data()) = value;
    Gate gate(other);
    device->copy(other, x.data(), pinned.data(), sizeof(int));
    device->record(there, other);
    device->launch(step, stream);
    device->record(end, stream);
    std::this_thread::sleep_for(20ms);
    EXPECT_FALSE(device->done(end)) << "the step did not wait";
    gate.open();
    wait();
    EXPECT_EQ(y.get()[0], value);
  }
  device->destroy(step);
  device->give_back_pinned(pinned);
}

TEST_F(GpuTest, ACaptureThatFailsSaysSoAndLeavesTheStreamUsable) {
  device->begin_capture(stream);
  EXPECT_THROW(device->synchronise(stream), Error);
  const std::string message = message_of([&] { device->end_capture(stream); });
  EXPECT_NE(message.find("the step could not be captured"), std::string::npos) << message;
  GpuArray<int> x(*device, stream, std::vector<int>{3});
  EXPECT_EQ(x.get()[0], 3);
}

// ---- ATen's pool

TEST_F(GpuTest, RepeatedAtenWorkDoesNotGrowThePool) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(at::kCUDA, 0);
  const auto work = [&] {
    at::Tensor x = at::ones({700, 900}, options);
    for (int i = 0; i < 10; ++i) x = at::tanh(at::mm(x, at::ones({900, 900}, options)));
  };
  work();
  wait();
  const PoolUse first = device->pool();
  EXPECT_GT(first.reserved, 0);
  EXPECT_GT(first.peak, first.current);
  device->reset_pool_peak();
  EXPECT_EQ(device->pool().peak, first.current);
  for (int round = 0; round < 50; ++round) work();
  wait();
  const PoolUse last = device->pool();
  EXPECT_EQ(last.reserved, first.reserved);
  EXPECT_EQ(last.growths, first.growths);
  EXPECT_EQ(last.current, first.current);
  EXPECT_GT(last.peak, last.current);
}

TEST_F(GpuTest, WhatIsReservedIsUsedBeforeThePoolGrows) {
  const int64_t size = device->pool().reserved + (int64_t{256} << 20);
  device->reserve_pool(size);
  const PoolUse before = device->pool();
  EXPECT_EQ(before.growths, 0);
  EXPECT_GE(before.reserved, size);
  const auto options = at::TensorOptions().dtype(at::kByte).device(at::kCUDA, 0);
  {
    // more than any other region has
    const at::Tensor most = at::empty({size - (1 << 20)}, options);
    EXPECT_EQ(device->pool().growths, 0);
    EXPECT_EQ(device->pool().reserved, before.reserved);
    const at::Tensor more = at::empty({size}, options);
    EXPECT_EQ(device->pool().growths, 1);
  }
  device->reserve_pool(size);  // there already
  EXPECT_GE(device->pool().reserved, 2 * size);
  EXPECT_LT(device->pool().reserved, 3 * size);
  EXPECT_EQ(device->pool().growths, 0);
}

TEST_F(GpuTest, StreamsDoNotShareBlocks) {
  const auto options = at::TensorOptions().dtype(at::kByte).device(at::kCUDA, 0);
  const void* freed = at::empty({12345678}, options).data_ptr();
  const Stream other = device->make_stream();
  device->make_current(other);
  const at::Tensor there = at::empty({12345678}, options);
  EXPECT_NE(there.data_ptr(), freed);
  device->make_current(stream);
  EXPECT_EQ(at::empty({12345678}, options).data_ptr(), freed);
}

}  // namespace
}  // namespace tutti
