// What the command says on a host without a GPU, or with one that cannot be used: jobs go to the
// CPU unless they ask for more, what cannot be had is refused with the way out, and `tutti doctor`
// names it.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "support/command.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

bool has_driver() {
  return std::filesystem::exists("/dev/nvidiactl") || std::filesystem::exists("/dev/dxg");
}

/// In the child, between fork and exec: ends it with the reason where something does not work.
void demand(bool worked, const char* what) {
  if (worked) return;
  std::fprintf(stderr, "cannot %s: %s\n", what, std::strerror(errno));
  ::_exit(126);
}

bool make_file(const std::string& path) {
  return Fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644)).get() >= 0;
}

/// The command sees a /dev with a driver's file in it and nothing behind it. Mounts are the child's
/// own; making them needs root.
std::function<void()> with_a_driver(const std::string& folder, const std::string& library) {
  return [=] {
    demand(::unshare(CLONE_NEWNS) == 0, "make a mount namespace");
    demand(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0,
           "make the mounts private");
    for (const std::string name : {"null", "zero", "urandom"}) {
      demand(make_file(folder + "/" + name), "make a file");
      demand(::mount(("/dev/" + name).c_str(), (folder + "/" + name).c_str(), nullptr, MS_BIND,
                     nullptr) == 0,
             "mount a device");
    }
    demand(make_file(folder + "/nvidiactl"), "make a file");
    demand(::mount(folder.c_str(), "/dev", nullptr, MS_BIND | MS_REC, nullptr) == 0, "mount /dev");
    ::setenv("TUTTI_CUDA_LIBRARY", library.c_str(), 1);
  };
}

/// Why the library cannot be opened here: LibTorch's CUDA libraries come first, and are not on
/// every host.
bool names_a_library_and_its_mend(const std::string& text, const std::string& library) {
  const auto has = [&](const std::string& part) { return text.find(part) != std::string::npos; };
  return (has("LibTorch's CUDA libraries cannot be opened (") &&
          has("`pip install torch==2.11.0` brings them")) ||
         (has("Tutti's GPU library " + library + " cannot be opened (") &&
          has("`./tutti build --cuda` builds it"));
}

class DeviceRefusal : public testing::Test {
 protected:
  void SetUp() override {
    if (has_driver()) GTEST_SKIP() << "this host has a GPU: tests/gpu";
  }
  TempFolder folder_;
  const std::string library_ = folder_ / "libtutti_cuda.so";
};

TEST_F(DeviceRefusal, AJobForAGpuIsRefusedWithTheReasonAndTheWayOut) {
  Command command(Arguments{"train", "mlp-points"} + set({"numerics.device=cuda"}));
  EXPECT_EQ(command.wait(), 2) << command.out();
  EXPECT_TRUE(command.err().starts_with("tutti: numerics.device = \"cuda\" but this "))
      << command.err();
  EXPECT_TRUE(command.says("(no /dev/nvidiactl); ")) << command.err();
  EXPECT_TRUE(command.err().ends_with(", or set numerics.device = \"cpu\"\n")) << command.err();
}

TEST_F(DeviceRefusal, SixteenBitsAreRefusedForWantOfAGpu) {
  Command command(Arguments{"train", "mlp-points"} + set({"numerics.precision=bfloat16"}));
  EXPECT_EQ(command.wait(), 2) << command.out();
  EXPECT_TRUE(command.says(
      "numerics.precision = \"bfloat16\" but numerics.device = \"cpu\", because this "))
      << command.err();
}

TEST_F(DeviceRefusal, AutoIsTheCpu) {
  Command command({"explain", "mlp-points"});
  EXPECT_EQ(command.wait(), 0) << command.err();
  EXPECT_TRUE(command.says("\ndevice       = \"cpu\"")) << command.out();
}

TEST_F(DeviceRefusal, AGpuWithoutItsLibrariesIsNoGpu) {
  const auto broken = with_a_driver(folder_.path(), library_);
  Command automatic({"explain", "mlp-points"}, broken);
  EXPECT_EQ(automatic.wait(), 0) << automatic.err();
  EXPECT_TRUE(automatic.says("\ndevice       = \"cpu\"")) << automatic.out();
  Command asked(Arguments{"train", "mlp-points", "--out", folder_.path() + "/run"} +
                    set({"numerics.device=cuda"}),
                broken);
  EXPECT_EQ(asked.wait(), 2) << asked.out();
  EXPECT_TRUE(asked.err().starts_with("tutti: numerics.device = \"cuda\" but ")) << asked.err();
  EXPECT_TRUE(names_a_library_and_its_mend(asked.err(), library_)) << asked.err();
}

TEST_F(DeviceRefusal, DoctorSaysThatThereIsNoGpuAndLacksNothing) {
  Command command({"doctor"});
  EXPECT_EQ(command.wait(), 0) << command.out() << command.err();
  EXPECT_TRUE(command.value("GPU        none: this ").find("(no /dev/nvidiactl)") !=
              std::string::npos)
      << command.out();
  EXPECT_NE(command.value("processor  "), "") << command.out();
  EXPECT_NE(command.value("LibTorch   2.11.0"), "") << command.out();
  EXPECT_TRUE(command.says("GFLOP/s per core")) << command.out();
  EXPECT_TRUE(command.out().ends_with("\nJobs train on the CPU here.\n")) << command.out();
}

TEST_F(DeviceRefusal, DoctorNamesWhatADriverLacksAndWhatMendsIt) {
  Command command({"doctor"}, with_a_driver(folder_.path(), library_));
  EXPECT_EQ(command.wait(), 0) << command.out() << command.err();
  EXPECT_TRUE(command.value("GPU        ").starts_with("none that can be used")) << command.out();
  EXPECT_NE(command.value("missing    "), "") << command.out();
  EXPECT_TRUE(names_a_library_and_its_mend(command.out(), library_)) << command.out();
}

TEST(Doctor, SaysTheSameAsJson) {
  Command command({"doctor", "--json"});
  EXPECT_EQ(command.wait(), 0) << command.out() << command.err();
  const auto said = nlohmann::json::parse(command.out());
  EXPECT_GE(said.at("host").at("cores").get<int>(), 1);
  EXPECT_GT(said.at("host").at("matmul_flops").get<double>(), 1e8);
  EXPECT_GT(said.at("host").at("copy_bytes_per_second").get<double>(), 1e8);
  EXPECT_EQ(said.at("trains"), true);
  EXPECT_NE(said.at("gpus").empty(), said.at("no_gpu").get<std::string>().empty());
}

TEST(Doctor, AFolderThatCannotBeWrittenIsMissing) {
  const TempFolder folder;
  const auto elsewhere = [&] {
    demand(::unshare(CLONE_NEWNS) == 0, "make a mount namespace");
    demand(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0,
           "make the mounts private");
    demand(::mount("none", folder.path().c_str(), "tmpfs", MS_RDONLY, nullptr) == 0,
           "mount a folder");
    demand(::chdir(folder.path().c_str()) == 0, "go there");
  };
  Command command({"doctor"}, elsewhere);
  EXPECT_EQ(command.wait(), 1) << command.out() << command.err();
  EXPECT_TRUE(command.says("missing    runs cannot be written to " + folder.path()))
      << command.out();
  EXPECT_TRUE(command.says("\nJobs cannot be trained here as it is.\n")) << command.out();
}

}  // namespace
}  // namespace tutti
