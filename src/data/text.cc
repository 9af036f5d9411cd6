#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/file.h"
#include "data/sources.h"

namespace tutti {
namespace {

class Text final : public Dataset {
 public:
  Text(std::string bytes, int64_t context) : bytes_(std::move(bytes)), context_(context) {}
  int64_t size() const override { return (static_cast<int64_t>(bytes_.size()) - 1) / context_; }
  void read(int64_t record, std::span<const at::Tensor> tensors, int64_t row) const override {
    const auto* from = reinterpret_cast<const unsigned char*>(bytes_.data()) + record * context_;
    int64_t* tokens = tensors[0].mutable_data_ptr<int64_t>() + row * context_;
    int64_t* targets = tensors[1].mutable_data_ptr<int64_t>() + row * context_;
    std::copy_n(from, context_, tokens);
    std::copy_n(from + 1, context_, targets);
  }

 private:
  std::string bytes_;
  int64_t context_;
};

std::string read_unchanged(const std::string& path) {
  Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw_errno("open", path);
  struct stat before {};
  if (fstat(fd.get(), &before) != 0) throw_errno("read", path);
  if (!S_ISREG(before.st_mode)) {
    throw Error(fmt::format("{}: {}, not a file", path, S_ISDIR(before.st_mode) ? "a folder" : "a device"));
  }
  std::string bytes(static_cast<size_t>(before.st_size), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::read(fd.get(), bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_errno("read", path);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  struct stat after {};
  if (fstat(fd.get(), &after) != 0) throw_errno("read", path);
  if (done != bytes.size() || after.st_size != before.st_size || after.st_mtim.tv_sec != before.st_mtim.tv_sec ||
      after.st_mtim.tv_nsec != before.st_mtim.tv_nsec) {
    throw Error(fmt::format("{}: changed while it was read", path));
  }
  return bytes;
}

}  // namespace

std::string resolve_text_path(const std::string& path) {
  if (path != "kjv") return path;
  const char* folder = std::getenv("TUTTI_DATA");
  std::string file = std::string(folder != nullptr && *folder != '\0' ? folder : "data") + "/kjv.txt";
  if (access(file.c_str(), F_OK) != 0) {
    throw Error(fmt::format("{}: the King James text is missing; run ./tutti setup", file));
  }
  return file;
}

std::shared_ptr<const Dataset> open_text(const std::string& path, int64_t context, int64_t vocab) {
  std::string bytes = read_unchanged(path);
  if (bytes.empty()) throw Error(fmt::format("{}: the file is empty", path));
  if (static_cast<int64_t>(bytes.size()) < context + 1) {
    throw Error(fmt::format("{}: {} bytes are too short for one record of model.context + 1 = {} bytes", path,
                            bytes.size(), context + 1));
  }
  const auto outside = std::find_if(bytes.begin(), bytes.end(), [vocab](unsigned char byte) { return byte >= vocab; });
  if (outside != bytes.end()) {
    throw Error(fmt::format("{}: byte {} at offset {} is outside model.vocab = {}", path,
                            static_cast<unsigned char>(*outside), outside - bytes.begin(), vocab));
  }
  return std::make_shared<Text>(std::move(bytes), context);
}

}  // namespace tutti
