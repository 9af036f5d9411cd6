// Text as bytes: a record is a stretch of the file, and its targets are the same stretch one byte
// further on.
#include <algorithm>

#include "base/error.h"
#include "data/core/sources.h"

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

}  // namespace

std::shared_ptr<const Dataset> open_text(std::string bytes, const std::string& path,
                                         int64_t context, int64_t vocab) {
  if (static_cast<int64_t>(bytes.size()) < context + 1) {
    throw Error(
        fmt::format("{}: {} bytes are too short for one record of model.context + 1 = {} bytes",
                    path, bytes.size(), context + 1));
  }

  // A byte that the model has no embedding for is found here, not in the middle of a run.
  const auto outside = std::find_if(bytes.begin(), bytes.end(),
                                    [vocab](unsigned char byte) { return byte >= vocab; });
  if (outside != bytes.end()) {
    throw Error(fmt::format("{}: byte {} at offset {} is outside model.vocab = {}", path,
                            static_cast<unsigned char>(*outside), outside - bytes.begin(), vocab));
  }
  return std::make_shared<Text>(std::move(bytes), context);
}

}  // namespace tutti
