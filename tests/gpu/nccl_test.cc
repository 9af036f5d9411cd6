// Ranks that share one GPU through NCCL: their sums have the bits of the tree, at once and as a
// captured step; a rank that is killed or never comes is an error within its deadline.
//
// Every rank is a process of its own that runs this very test again: one that has opened CUDA
// cannot be forked.
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "device/library.h"
#include "support/device_parcel.h"

namespace tutti {
namespace {

using namespace testing_support;
using namespace std::chrono_literals;

constexpr const char* kRank = "TUTTI_GPU_TEST_RANK";
constexpr const char* kFolder = "TUTTI_GPU_TEST_FOLDER";

/// One rank of a test: its device, and how it gets to its group.
struct GpuRank {
  GpuRank(int rank, int size, std::filesystem::path folder)
      : rank(rank),
        size(size),
        folder(std::move(folder)),
        library(device_library()),
        device(library.open(0)) {
    stream = device->make_stream();
  }

  /// Rank 0's id reaches the others as a file that appears whole.
  std::string shared_id() {
    const std::filesystem::path path = folder / "id", half = folder / "id.half";
    if (rank == 0) {
      std::ofstream(half, std::ios::binary) << library.group_id(true);
      std::filesystem::rename(half, path);
    }
    const Deadline deadline = clock.after(60s);
    while (!std::filesystem::exists(path)) {
      if (clock.now() >= deadline.at) throw Error("rank 0 never wrote the group's id");
      clock.sleep(10ms, nullptr);
    }
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::unique_ptr<DeviceGroup> join(Duration limit = 90s) {
    const GroupOptions options{
        .rank = rank, .size = size, .id = shared_id(), .shares = true, .host = 0};
    return library.join(*device, options, clock, clock.after(limit), nullptr);
  }

  /// Whether the event was reached within the limit.
  bool reached(StreamEvent event, Duration limit) {
    const Deadline deadline = clock.after(limit);
    while (!device->done(event)) {
      if (clock.now() >= deadline.at) return false;
      clock.sleep(1ms, nullptr);
    }
    return true;
  }
  double seconds_since(Time begin) const {
    return std::chrono::duration<double>(clock.now() - begin).count();
  }

  int rank, size;
  std::filesystem::path folder;
  SystemClock clock;
  const DeviceLibrary& library;
  std::unique_ptr<Device> device;
  Stream stream;
};

pid_t spawn_rank(int rank, const std::filesystem::path& folder) {
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  const std::string filter =
      fmt::format("--gtest_filter={}.{}", test.test_suite_name(), test.name());
  std::vector<std::string> variables{fmt::format("{}={}", kRank, rank),
                                     fmt::format("{}={}", kFolder, folder.string())};
  for (char** v = environ; *v != nullptr; ++v) variables.emplace_back(*v);
  std::vector<char*> environment;
  for (std::string& v : variables) environment.push_back(v.data());
  environment.push_back(nullptr);
  const std::string name = "gpu_test";
  char* const arguments[] = {const_cast<char*>(name.c_str()), const_cast<char*>(filter.c_str()),
                             nullptr};
  pid_t pid = -1;
  const int error =
      ::posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, arguments, environment.data());
  if (error != 0) throw Error(fmt::format("posix_spawn: {}", std::strerror(error)));
  return pid;
}

/// The wait statuses of the `started` first of `size` ranks; empty in a rank itself, which runs the
/// body.
std::vector<int> on_gpu_ranks(int size, const std::function<void(GpuRank&)>& body,
                              int started = -1) {
  if (const char* rank = std::getenv(kRank)) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    GpuRank me(std::atoi(rank), size, std::getenv(kFolder));
    body(me);
    return {};
  }
  std::string folder = (std::filesystem::temp_directory_path() / "tutti-nccl-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) throw Error("mkdtemp failed");
  std::vector<pid_t> pids;
  for (int r = 0; r < (started < 0 ? size : started); ++r) pids.push_back(spawn_rank(r, folder));
  std::vector<int> statuses(pids.size(), -1);
  const auto end = std::chrono::steady_clock::now() + 150s;
  for (size_t r = 0; r < pids.size(); ++r) {
    bool late = false;
    while (::waitpid(pids[r], &statuses[r], WNOHANG) == 0) {
      if (!late && std::chrono::steady_clock::now() >= end) {
        late = true;
        ADD_FAILURE() << "rank " << r << " did not end";
        ::kill(pids[r], SIGKILL);
      }
      std::this_thread::sleep_for(5ms);
    }
  }
  std::filesystem::remove_all(folder);
  return statuses;
}

void expect_all_well(const std::vector<int>& statuses) {
  for (size_t r = 0; r < statuses.size(); ++r) EXPECT_EQ(statuses[r], 0) << "rank " << r;
}

SumCase gpu_case(int ranks, int lanes, bool root = false, bool ordered = true) {
  SumCase c = plain_case(ranks, lanes, {50'003, 70},
                         static_cast<uint64_t>(1000 * ranks + lanes));  // equal in all processes
  c.units[0].further = {{{700, 40'001}, false}};
  for (auto& unit : c.units)
    if (root) unit.slices = root_slices(unit.size, ranks);
  c.ordered = ordered;
  return c;
}

void reduce_all_layouts(GpuRank& me) {
  auto group = me.join();
  for (int lanes : {me.size, me.size + 1, 7}) {
    for (bool root : {false, true}) {
      const SumCase c = gpu_case(me.size, lanes, root);
      DeviceParcel parcel(c, *me.device, group.get(), me.library.state);
      for (uint64_t step = 0; step < 2; ++step) {
        parcel.fill(me.stream, step);
        parcel.sum(me.stream);
        EXPECT_EQ(parcel.wrong_slices(me.stream, step).bits, 0)
            << "own slice: " << c.text() << " rank " << me.rank << " step " << step;
        parcel.gather(me.stream);
        EXPECT_EQ(parcel.wrong(me.stream, step).bits, 0)
            << c.text() << " rank " << me.rank << " step " << step;
      }
    }
    const SumCase ring = gpu_case(me.size, lanes, false, false);
    DeviceParcel parcel(ring, *me.device, group.get(), me.library.state);
    parcel.fill(me.stream, 0);
    parcel.sum(me.stream);
    EXPECT_EQ(parcel.wrong(me.stream, 0).far, 0) << ring.text() << " rank " << me.rank;
  }
  EXPECT_EQ(group->fault(), "");
}

TEST(Nccl, SumsOfTwoRanksHaveTheBitsOfTheTree) {
  expect_all_well(on_gpu_ranks(2, reduce_all_layouts));
}
TEST(Nccl, SumsOfFourRanksHaveTheBitsOfTheTree) {
  expect_all_well(on_gpu_ranks(4, reduce_all_layouts));
}

TEST(Nccl, ACapturedSumHasTheBitsOfTheTree) {
  expect_all_well(on_gpu_ranks(2, [](GpuRank& me) {
    auto group = me.join();
    const SumCase c = gpu_case(2, 3);
    DeviceParcel parcel(c, *me.device, group.get(), me.library.state);
    const auto step = [&] {
      parcel.sum(me.stream);
      parcel.gather(me.stream);
    };
    parcel.fill(me.stream, 0);
    step();
    me.device->synchronise(me.stream);
    me.device->begin_capture(me.stream);
    step();
    const CapturedStep captured = me.device->end_capture(me.stream);
    for (uint64_t s = 1; s < 4; ++s) {
      parcel.fill(me.stream, s);
      me.device->launch(captured, me.stream);
      EXPECT_EQ(parcel.wrong(me.stream, s).bits, 0) << "launch " << s << " rank " << me.rank;
    }
    me.device->destroy(captured);
    const Time begin = me.clock.now();
    group.reset();
    EXPECT_LT(me.seconds_since(begin), 9) << "the group's end waited for the captured step";
  }));
}

TEST(Nccl, SumsVotesExactlyWhereOneRankHasThem) {
  expect_all_well(on_gpu_ranks(4, [](GpuRank& me) {
    auto group = me.join();
    const auto value = [](size_t i) {
      return static_cast<double>(lane_value(9, 0, 0, static_cast<int64_t>(i))) / 3;
    };
    std::vector<double> votes(5000, 0);
    for (size_t i = me.rank; i < votes.size(); i += 4) votes[i] = value(i);
    const std::span<std::byte> memory =
        me.device->take(BufferKind::kWork, votes.size() * sizeof(double));
    auto* on_device = reinterpret_cast<double*>(memory.data());
    me.device->copy(me.stream, on_device, votes.data(), memory.size());
    group->sum(me.stream, on_device, static_cast<int64_t>(votes.size()));
    me.device->copy(me.stream, votes.data(), on_device, memory.size());
    me.device->synchronise(me.stream);
    int64_t wrong = 0;
    for (size_t i = 0; i < votes.size(); ++i) wrong += votes[i] != value(i) ? 1 : 0;
    EXPECT_EQ(wrong, 0);
    me.device->give_back(memory);
  }));
}

TEST(Nccl, AKilledRankIsNoticedAndTheOthersCanLeave) {
  const std::vector<int> statuses = on_gpu_ranks(3, [](GpuRank& me) {
    auto group = me.join();
    const SumCase c = gpu_case(3, 3);
    DeviceParcel parcel(c, *me.device, group.get(), me.library.state);
    parcel.fill(me.stream, 0);
    parcel.sum(me.stream);
    parcel.gather(me.stream);
    me.device->synchronise(me.stream);
    if (me.rank == 2) {
      me.clock.sleep(500ms, nullptr);  // the others have ended the exchange too
      ::raise(SIGKILL);
    }
    const StreamEvent event = me.device->make_event(false);
    std::string why;
    try {
      parcel.sum(me.stream);
    } catch (const CommError& e) {
      why = e.what();
    }
    me.device->record(event, me.stream);
    EXPECT_TRUE(!why.empty() || !me.reached(event, 2s)) << "reduced without rank 2";
    const Time begin = me.clock.now();
    while (why.empty() && me.seconds_since(begin) < 20) {
      why = group->fault();
      me.clock.sleep(1ms, nullptr);
    }
    std::printf("rank %d after %.2f s: %s\n", me.rank, me.seconds_since(begin),
                why.empty() ? "no fault" : why.c_str());
    const Time aborted = me.clock.now();
    group->abort();
    std::printf("rank %d: abort took %.2f s\n", me.rank, me.seconds_since(aborted));
    EXPECT_LT(me.seconds_since(aborted), 9) << "abort was given up on";
    EXPECT_TRUE(me.reached(event, 10s)) << "the stream did not get on after the abort";
    EXPECT_EQ(group->fault(), "aborted");
    EXPECT_THROW(parcel.sum(me.stream), CommError);
    group->abort();
  });
  if (statuses.empty()) return;  // a rank
  EXPECT_EQ(statuses[0], 0);
  EXPECT_EQ(statuses[1], 0);
  EXPECT_TRUE(WIFSIGNALED(statuses[2]) && WTERMSIG(statuses[2]) == SIGKILL) << statuses[2];
}

TEST(Nccl, ARankThatNeverComesIsACommErrorAtTheDeadline) {
  const auto body = [](GpuRank& me) {
    const Time begin = me.clock.now();
    try {
      me.join(4s);
      ADD_FAILURE() << "joined alone";
    } catch (const CommError& e) {
      EXPECT_EQ(e.failure().operation, "nccl init") << e.what();
      EXPECT_EQ(e.failure().rank, 0);
      EXPECT_EQ(e.failure().reason, "timed out");
      EXPECT_GE(e.failure().waited, 3s);
    }
    EXPECT_LT(me.seconds_since(begin), 13)
        << "the abort of a group that never came together was given up on";
  };
  expect_all_well(on_gpu_ranks(2, body, 1));
}

TEST(Nccl, AnIdOfAnotherKindIsRefused) {
  expect_all_well(on_gpu_ranks(1, [](GpuRank& me) {
    EXPECT_THROW(me.library.join(*me.device, {.rank = 0, .size = 1, .id = "no id"}, me.clock,
                                 me.clock.after(5s), nullptr),
                 Error);
  }));
}

}  // namespace
}  // namespace tutti
