// The way to the GPU library on a host without a GPU: everything that is missing or wrong is named,
// with what mends it.
#include "device/library.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace tutti {
namespace {

std::string refusal(const std::string& path) {
  try {
    open_device_library(path);
  } catch (const Error& error) {
    return error.what();
  }
  return "opened";
}

TEST(DeviceLibrary, AFileThatIsNotThereIsRefused) {
  EXPECT_EQ(refusal("/nowhere/libtutti_cuda.so"),
            "Tutti's GPU library /nowhere/libtutti_cuda.so cannot be opened "
            "(/nowhere/libtutti_cuda.so: cannot open "
            "shared object file: No such file or directory); `./tutti build --cuda` builds it");
}

TEST(DeviceLibrary, AFileThatIsNoLibraryIsRefused) {
  const auto file =
      std::filesystem::temp_directory_path() / ("tutti_no_library_" + std::to_string(::getpid()));
  std::ofstream(file) << std::string(4096, 'x');
  const std::string path = file.string();
  EXPECT_EQ(refusal(path), "Tutti's GPU library " + path + " cannot be opened (" + path +
                               ": invalid ELF header); `./tutti build --cuda` builds it");
  std::filesystem::remove(file);
}

TEST(DeviceLibrary, AnotherVersionIsRefusedAndBothAreNamed) {
  EXPECT_EQ(refusal(OLD_LIBRARY), std::string(OLD_LIBRARY) +
                                      " has version -7 but this command needs version " +
                                      std::to_string(DeviceLibrary::kVersion) +
                                      "; `./tutti build --cuda` builds both alike");
}

TEST(DeviceLibrary, ALibraryOfAnotherKindIsRefused) {
  EXPECT_EQ(refusal(FOREIGN_LIBRARY),
            std::string(FOREIGN_LIBRARY) +
                " is not Tutti's GPU library: it has no tutti_device_library; "
                "`./tutti build --cuda` builds it");
}

TEST(DeviceLibrary, LibTorchsFolderIsTheOneInUse) {
  EXPECT_TRUE(std::filesystem::exists(torch_folder() + "/libtorch_cpu.so")) << torch_folder();
}

TEST(DeviceProbe, AHostWithoutADriverSaysSo) {
  if (has_gpu_driver()) GTEST_SKIP() << "this host has one: tests/gpu";
  const DeviceProbe probe = probe_devices();
  EXPECT_TRUE(probe.devices.empty());
  EXPECT_TRUE(probe.reason.ends_with("(no /dev/nvidiactl); run on a GPU host") ||
              probe.reason.ends_with("(no /dev/nvidiactl); start it with --gpus all"))
      << probe.reason;
  Machine machine;
  add_gpus(machine, DeviceKind::kAuto);
  EXPECT_TRUE(machine.gpus.empty());
  EXPECT_EQ(machine.no_gpu, probe.reason);
}

TEST(DeviceProbe, AJobForTheCpuLooksForNothing) {
  Machine machine;
  add_gpus(machine, DeviceKind::kCpu);
  EXPECT_EQ(machine.no_gpu, "");
}

TEST(DeviceInfo, ADeviceThatTheKernelsAreNotBuiltForIsNamed) {
  const auto device = [](int major, int minor) {
    DeviceInfo info;
    info.ordinal = 1;
    info.name = "Tesla T4";
    info.major = major;
    info.minor = minor;
    return info;
  };
  for (const auto& [major, minor] : {std::pair{8, 0}, {8, 9}, {9, 0}, {10, 0}, {10, 3}})
    EXPECT_EQ(why_unsuited(device(major, minor)), "");
  for (const auto& [major, minor] : {std::pair{7, 5}, {9, 1}, {11, 0}, {12, 0}})
    EXPECT_NE(why_unsuited(device(major, minor)), "");
  EXPECT_EQ(why_unsuited(device(7, 5)),
            "GPU 1 (Tesla T4) has compute capability 7.5 and the kernels are built for 8.x, 9.0 "
            "and 10.x; leave it out "
            "of CUDA_VISIBLE_DEVICES");
}

}  // namespace
}  // namespace tutti
