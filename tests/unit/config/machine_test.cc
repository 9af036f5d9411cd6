// The quotas of control groups, v1 and v2, read from trees like those that the kernel shows. A real
// group is the matter of tests/integration/cores_test.cc.
#include "config/machine.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace tutti {
namespace {

constexpr const char* kUnified =
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr const char* kCpu =
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n";
constexpr const char* kOthers =
    "23 28 0:21 / /sys rw,nosuid,nodev shared:7 - sysfs sysfs rw\n"
    "35 31 0:32 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset\n"
    "nonsense\n";

class Cgroup : public ::testing::Test {
 protected:
  Cgroup()
      : root_(std::filesystem::temp_directory_path() /
              ("tutti_cgroup_" + std::to_string(getpid()))) {}
  ~Cgroup() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    const auto file = root_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void limit(const std::string& group, const std::string& text) {
    write("sys/fs/cgroup/" + group + "/cpu.max", text);
  }
  void quota(const std::string& group, int64_t quota, int64_t period) {
    write("sys/fs/cgroup/cpu,cpuacct/" + group + "/cpu.cfs_quota_us", std::to_string(quota) + "\n");
    write("sys/fs/cgroup/cpu,cpuacct/" + group + "/cpu.cfs_period_us",
          std::to_string(period) + "\n");
  }
  int cores(const std::string& mounts, const std::string& groups) const {
    return cores_by_cgroup(16, root_.string(), {mounts, groups});
  }

  std::filesystem::path root_;
};

TEST_F(Cgroup, WithoutAQuotaAllCoresCount) {
  EXPECT_EQ(cores("", ""), 16);
  EXPECT_EQ(cores(kUnified, "0::/slice/job\n"), 16);
  limit("slice/job", "max 100000\n");
  EXPECT_EQ(cores(kUnified, "0::/slice/job\n"), 16);
  quota("slice/job", -1, 100000);
  EXPECT_EQ(cores(kCpu, "4:cpu,cpuacct:/slice/job\n"), 16);
  limit("slice/job", "2400000 100000\n");
  EXPECT_EQ(cores(kUnified, "0::/slice/job\n"), 16);
}

TEST_F(Cgroup, TheSmallestV2QuotaOnTheWayToTheRootCounts) {
  limit("slice/job", "800000 100000\n");
  EXPECT_EQ(cores(std::string(kOthers) + kUnified, "1:cpu:/\n0::/slice/job\n"), 8);
  limit("slice", "350000 100000\n");
  EXPECT_EQ(cores(kUnified, "0::/slice/job\n"), 3);
  limit("", "50000 100000\n");
  EXPECT_EQ(cores(kUnified, "0::/slice/job\n"), 1);
  EXPECT_EQ(cores(kUnified, "0::/\n"), 1);
}

TEST_F(Cgroup, TheSmallestV1QuotaOnTheWayToTheRootCounts) {
  const std::string groups = "5:cpuset:/other\n4:cpu,cpuacct:/slice/job\n0::/elsewhere\n";
  quota("slice/job", 800000, 100000);
  EXPECT_EQ(cores(std::string(kOthers) + kCpu, groups), 8);
  quota("slice", 100000, 25000);
  EXPECT_EQ(cores(kCpu, groups), 4);
  quota("", 50000, 100000);
  EXPECT_EQ(cores(kCpu, groups), 1);
}

TEST_F(Cgroup, WithBothVersionsTheSmallerCounts) {
  const std::string unified =
      "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
  quota("job", 600000, 100000);
  limit("unified/job", "500000 100000\n");
  EXPECT_EQ(cores(kCpu + unified, "1:cpu,cpuacct:/job\n0::/job\n"), 5);
  quota("job", 300000, 100000);
  EXPECT_EQ(cores(kCpu + unified, "1:cpu,cpuacct:/job\n0::/job\n"), 3);
}

TEST_F(Cgroup, InAContainerTheMountsRootIsItsGroup) {
  const std::string mount =
      "32 31 0:29 /docker/ab /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n";
  quota("", 700000, 100000);
  EXPECT_EQ(cores(mount, "4:cpu,cpuacct:/docker/ab\n"), 7);
  quota("job", 200000, 100000);
  EXPECT_EQ(cores(mount, "4:cpu,cpuacct:/docker/ab/job\n"), 2);
  // A group that is not below what is mounted: no more is seen than the mount's root.
  EXPECT_EQ(cores(mount, "4:cpu,cpuacct:/docker/cd/job\n"), 7);
  EXPECT_EQ(cores(mount, "4:cpu,cpuacct:/../../job\n"), 7);
}

TEST_F(Cgroup, TheSmallestLimitOfMemoryCountsInBothVersions) {
  const auto memory = [&](const std::string& mounts, const std::string& groups) {
    return memory_by_cgroup(int64_t{1} << 40, root_.string(), {mounts, groups});
  };
  EXPECT_EQ(memory(kUnified, "0::/slice/job\n"), int64_t{1} << 40);
  write("sys/fs/cgroup/slice/job/memory.max", "max\n");
  EXPECT_EQ(memory(kUnified, "0::/slice/job\n"), int64_t{1} << 40);
  write("sys/fs/cgroup/slice/memory.max", "1073741824\n");
  EXPECT_EQ(memory(kUnified, "0::/slice/job\n"), 1073741824);
  const std::string v1 =
      "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n";
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(memory(v1, "4:memory:/job\n"), int64_t{1} << 40);
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "536870912\n");
  EXPECT_EQ(memory(v1, "4:memory:/job\n"), 536870912);
  EXPECT_EQ(memory(kCpu, "4:cpu,cpuacct:/job\n"), int64_t{1} << 40);
}

TEST_F(Cgroup, WhatGroupsHaveLeftOfTheirTasksCountsInBothVersions) {
  const auto tasks = [&](const std::string& mounts, const std::string& groups) {
    return tasks_by_cgroup(root_.string(), {mounts, groups});
  };
  EXPECT_EQ(tasks(kUnified, "0::/slice/job\n"), INT64_MAX);
  write("sys/fs/cgroup/slice/job/pids.max", "max\n");
  write("sys/fs/cgroup/slice/job/pids.current", "7\n");
  EXPECT_EQ(tasks(kUnified, "0::/slice/job\n"), INT64_MAX);
  write("sys/fs/cgroup/slice/job/pids.max", "100\n");
  EXPECT_EQ(tasks(kUnified, "0::/slice/job\n"), 93);
  write("sys/fs/cgroup/slice/pids.max", "50\n");
  write("sys/fs/cgroup/slice/pids.current", "60\n");
  EXPECT_EQ(tasks(kUnified, "0::/slice/job\n"), 0);
  const std::string v1 = "36 31 0:33 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n";
  write("sys/fs/cgroup/pids/job/pids.max", "40\n");
  write("sys/fs/cgroup/pids/job/pids.current", "10\n");
  EXPECT_EQ(tasks(v1, "8:pids:/job\n"), 30);
}

TEST_F(Cgroup, AMountPointMayHaveBlanks) {
  write("odd place/cpu.max", "400000 100000\n");
  EXPECT_EQ(cores("30 23 0:26 / /odd\\040place rw - cgroup2 cgroup2 rw\n", "0::/\n"), 4);
}

}  // namespace
}  // namespace tutti
