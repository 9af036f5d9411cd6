// The number of ranks follows the cores that the process may use: in a real control group, under an
// affinity mask, and by a quota of cgroup v2. The groups and mounts are the tests' own and go with
// them; making them needs root.
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <memory>

#include "base/error.h"
#include "support/command.h"

namespace tutti::testing_support {
namespace {

constexpr const char* kOneCore = "100000 100000";

/// In the child, between fork and exec: ends it with the reason where something does not work.
void demand(bool worked, const std::string& what) {
  if (worked) return;
  std::fprintf(stderr, "cannot %s: %s\n", what.c_str(), std::strerror(errno));
  ::_exit(126);
}

bool write_text(const std::string& path, const std::string& text) {
  const Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  return fd && ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

/// layout.ranks as `tutti explain mlp-points` resolves it: one per core, at most the four lanes. -1
/// when it fails.
int ranks(const std::function<void()>& before_exec) {
  Command command({"explain", "mlp-points"}, before_exec);
  const int code = command.wait();
  EXPECT_EQ(code, 0) << command.err();
  for (const std::string& line : lines_of(command.out()))
    if (line.starts_with("ranks ")) return std::stoi(line.substr(line.find('=') + 1));
  return -1;
}

/// Where the first mount is that has `type` and, among its options, `option`; empty: nowhere.
std::string mount_point(const std::string& type, const std::string& option) {
  for (const std::string& line : lines_of(read_file("/proc/self/mountinfo"))) {
    std::istringstream in(line.substr(line.find(" - ") + 3));
    std::string kind, source, options;
    in >> kind >> source >> options;
    if (kind != type || ("," + options + ",").find("," + option + ",") == std::string::npos)
      continue;
    std::istringstream words(line);
    std::string point;
    for (int i = 0; i < 5; ++i) words >> point;
    return point;
  }
  return "";
}

bool has_word(const std::string& text, const std::string& word) {
  std::istringstream in(text);
  return std::find(std::istream_iterator<std::string>(in), {}, word) !=
         std::istream_iterator<std::string>();
}

/// A folder of the control groups' file system, removed once the processes in it have ended.
class Group {
 public:
  explicit Group(std::string path) : path_(std::move(path)) {
    if (::mkdir(path_.c_str(), 0755) != 0) throw_errno("make the control group", path_);
  }
  ~Group() {
    EXPECT_TRUE(eventually([&] { return ::rmdir(path_.c_str()) == 0; }))
        << path_ << ": " << std::strerror(errno);
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  void set(const std::string& file, const std::string& text) const {
    if (!write_text(path_ + "/" + file, text)) throw_errno("write", path_ + "/" + file);
  }
  void enter() const { demand(write_text(path_ + "/cgroup.procs", "0"), "enter " + path_); }

 private:
  std::string path_;
};

/// A group of one core below the root of the hierarchy that has the cpu controller.
std::unique_ptr<Group> one_core_group() {
  const std::string name = "/tutti-cores-test-" + std::to_string(::getpid());
  if (const std::string v1 = mount_point("cgroup", "cpu"); !v1.empty()) {
    auto group = std::make_unique<Group>(v1 + name);
    group->set("cpu.cfs_period_us", "100000");
    group->set("cpu.cfs_quota_us", "100000");
    return group;
  }
  const std::string v2 = mount_point("cgroup2", "rw");
  if (v2.empty() || !has_word(read_file(v2 + "/cgroup.controllers"), "cpu"))
    throw Error("no hierarchy of control groups with the cpu controller is mounted");
  if (!write_text(v2 + "/cgroup.subtree_control", "+cpu"))
    throw_errno("hand the cpu controller on in", v2);
  auto group = std::make_unique<Group>(v2 + name);
  group->set("cpu.max", kOneCore);
  return group;
}

int cores_of_affinity() {
  cpu_set_t mask;
  if (::sched_getaffinity(0, sizeof mask, &mask) != 0) throw_errno("read", "the affinity");
  return CPU_COUNT(&mask);
}

TEST(Cores, OfTheAffinityMaskGetARankEach) {
  const int all = cores_of_affinity();
  const int one = ranks([] {
    cpu_set_t mask;
    demand(::sched_getaffinity(0, sizeof mask, &mask) == 0, "read the affinity");
    int first = 0;
    while (!CPU_ISSET(first, &mask)) ++first;
    CPU_ZERO(&mask);
    CPU_SET(first, &mask);
    demand(::sched_setaffinity(0, sizeof mask, &mask) == 0, "set the affinity");
  });
  EXPECT_EQ(one, 1);
  EXPECT_LE(ranks({}), std::min(all, 4));
}

TEST(Cores, OfARealControlGroupGetARankEach) {
  ASSERT_EQ(::geteuid(), 0u) << "making a control group needs root; run this test as root";
  const int outside = ranks({});
  const auto group = one_core_group();
  EXPECT_EQ(ranks([&] { group->enter(); }), 1) << "and " << outside << " outside of the group";
}

TEST(Cores, OfAQuotaOfCgroupV2GetARankEach) {
  ASSERT_EQ(::geteuid(), 0u) << "a mount namespace needs root; run this test as root";
  const TempFolder folder;
  const std::string mounted = mount_point("cgroup2", "rw");
  const std::string point = mounted.empty() ? folder.path() : mounted;
  const auto with_quota = [&](const char* quota) {
    return ranks([&, quota] {
      demand(::unshare(CLONE_NEWNS) == 0, "leave the mount namespace");
      demand(::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0,
             "keep mounts to this namespace");
      if (mounted.empty())
        demand(::mount("none", point.c_str(), "cgroup2", 0, nullptr) == 0, "mount cgroup2");
      // The root group has no cpu.max: this is what a container sees as its root.
      demand(::mount("none", point.c_str(), "tmpfs", 0, nullptr) == 0,
             "mount a folder over " + point);
      demand(write_text(point + "/cpu.max", quota), "write cpu.max");
    });
  };
  EXPECT_EQ(with_quota(kOneCore), 1);
  EXPECT_EQ(with_quota("max 100000"), ranks({}));
}

}  // namespace
}  // namespace tutti::testing_support
