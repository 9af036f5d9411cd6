// A folder of PNG and JPEG images with a folder for each class. Opening decodes every image once,
// each rank a share of them, so that a damaged image is known before the first step. What was
// decoded is kept while there is room.
#include <algorithm>
#include <atomic>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "config/job_parts.h"
#include "data/core/sources.h"
#include "data/images/image_file.h"
#include "data/images/scaling.h"
#include "grid/grid.h"

namespace tutti {
namespace {

constexpr int64_t kMostKept = int64_t{1} << 30;  // bytes of decoded images
constexpr size_t kFaultsTold = 10;

struct ImageFile {
  std::string path;
  int64_t label = 0;
};

struct Folder {
  std::vector<std::string> classes;
  std::vector<ImageFile> files;
};

bool is_image(const std::filesystem::path& path) {
  std::string ending = path.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return ending == ".png" || ending == ".jpg" || ending == ".jpeg";
}

/// Classes and files in the order of their names. If `known` is not empty, no other classes
/// may occur, and they keep their numbers.
Folder list_folder(const std::string& path, int64_t classes,
                   const std::vector<std::string>& known) {
  if (!is_folder(path)) throw Error(fmt::format("{}: no such folder", path));
  Folder folder;
  for (std::string& name : names_in(path))
    if (!name.starts_with(".") && is_folder(path + "/" + name))
      folder.classes.push_back(std::move(name));

  // Test images may lack classes, but must not have others: their numbers are those of training.
  if (!known.empty()) {
    for (const std::string& name : folder.classes)
      if (std::find(known.begin(), known.end(), name) == known.end())
        throw Error(fmt::format(
            "{}/{}: an unknown class; the training images have none of that name", path, name));
    folder.classes = known;
  }
  if (classes > 0 && static_cast<int64_t>(folder.classes.size()) != classes)
    throw Error(fmt::format("{}: {} folders of classes, but model.classes = {}", path,
                            folder.classes.size(), classes));

  // Names are sorted, so records have the same numbers on every host.
  for (size_t c = 0; c < folder.classes.size(); ++c) {
    const std::string inside = path + "/" + folder.classes[c];
    if (!is_folder(inside)) continue;
    for (const std::string& name : names_in(inside))
      if (is_image(name) && is_file(inside + "/" + name))
        folder.files.push_back({inside + "/" + name, static_cast<int64_t>(c)});
  }
  if (folder.files.empty())
    throw Error(fmt::format("{}: no PNG or JPEG images in its folders", path));
  return folder;
}

/// Decoded images by file, kept up to kMostKept bytes in all. Thread-safe.
class Decoded {
 public:
  Decoded(std::vector<ImageFile> files, std::vector<int64_t> dims)
      : files_(std::move(files)), dims_(std::move(dims)), kept_(files_.size()) {}
  ~Decoded() {
    for (auto& kept : kept_) delete kept.load();
  }
  const std::vector<ImageFile>& files() const { return files_; }
  int64_t size() const { return dims_[0] * dims_[1] * dims_[2]; }

  /// Calls use(pixels). Throws Error for a file that is damaged.
  template <typename Use>
  void with(int64_t file, Use use) const {
    auto& kept = kept_[static_cast<size_t>(file)];
    if (const auto* pixels = kept.load()) return use(pixels->data());
    const std::string& path = files_[static_cast<size_t>(file)].path;
    Image image = resized(decode_image(read_unchanged(path), path, dims_[0]), dims_[1], dims_[2]);
    use(image.planes.data());

    // Two threads may decode the same image at once. The first one's is kept, and kept for good, so
    // no lock is needed to read it.
    if (bytes_.fetch_add(size()) + size() > kMostKept) return;
    const auto* mine = new const std::vector<uint8_t>(std::move(image.planes));
    const std::vector<uint8_t>* none = nullptr;
    if (!kept.compare_exchange_strong(none, mine)) delete mine;
  }

 private:
  std::vector<ImageFile> files_;
  std::vector<int64_t> dims_;
  mutable std::vector<std::atomic<const std::vector<uint8_t>*>> kept_;
  mutable std::atomic<int64_t> bytes_{0};
};

// Some of the files as records, scaled as they are read.
class Images final : public Dataset {
 public:
  Images(std::shared_ptr<const Decoded> decoded, std::vector<int64_t> files,
         std::vector<Scaling> scaling)
      : decoded_(std::move(decoded)), files_(std::move(files)), scaling_(std::move(scaling)) {}
  int64_t size() const override { return static_cast<int64_t>(files_.size()); }
  void read(int64_t record, std::span<const at::Tensor> tensors, int64_t row) const override {
    const int64_t values = decoded_->size();
    float* to = tensors[0].mutable_data_ptr<float>() + row * values;
    decoded_->with(files_[static_cast<size_t>(record)],
                   [&](const uint8_t* pixels) { scale_row(pixels, to, values, scaling_); });
    if (tensors.size() > 1) tensors[1].mutable_data_ptr<int64_t>()[row] = label(record);
  }
  int64_t label(int64_t record) const override {
    return decoded_->files()[static_cast<size_t>(files_[static_cast<size_t>(record)])].label;
  }

 private:
  std::shared_ptr<const Decoded> decoded_;
  std::vector<int64_t> files_;
  std::vector<Scaling> scaling_;
};

/// The files that can be decoded, in order. Each rank looks at its share, and all hear of all
/// faults. If none may be skipped, every rank throws Error for the first one.
std::vector<int64_t> usable_files(const Decoded& decoded, const std::string& path, bool skip,
                                  const DataGroup& group, DataReport& report) {
  const auto files = static_cast<int64_t>(decoded.files().size());
  std::string first;
  const Range share = lanes_of(group.rank, group.size, files);
  std::string mine;  // a line per fault: the file's number, then what is wrong
  for (int64_t file = share.begin; file < share.end; ++file) {
    try {
      decoded.with(file, [](const uint8_t*) {});
    } catch (const Error& error) {
      std::string fault = error.what();
      std::replace(fault.begin(), fault.end(), '\n', ' ');  // a path may contain one
      mine += fmt::format("{} {}\n", file, fault);
    }
  }

  // All ranks read all faults in rank order, which is the order of the files.
  const std::vector<std::string> all =
      group.size > 1 ? group.gather(mine) : std::vector<std::string>{mine};
  std::vector<bool> bad(static_cast<size_t>(files));
  for (const std::string& part : all) {
    for (size_t at = 0; at < part.size();) {
      const size_t end = part.find('\n', at), space = part.find(' ', at);
      std::string fault = part.substr(space + 1, end - space - 1);
      if (!skip) throw Error(fault);
      if (first.empty()) first = fault;
      bad[std::stoul(part.substr(at, space - at))] = true;
      ++report.skipped;
      if (report.faults.size() < kFaultsTold) report.faults.push_back(std::move(fault));
      at = end + 1;
    }
  }

  // What is left keeps its order, so that record numbers mean the same on every rank.
  std::vector<int64_t> good;
  for (int64_t file = 0; file < files; ++file)
    if (!bad[static_cast<size_t>(file)]) good.push_back(file);
  if (good.empty()) {
    throw Error(fmt::format("{}: no image can be used; the first fault: {}", path, first));
  }
  return good;
}

}  // namespace

Split open_images(const Job& job, const DataGroup& group) {
  const std::string path = resolve_path(job.data.path);
  const bool classes = !model_part(job).reconstructs;
  Split split;

  // An autoencoder has no classes to count, but folders are read all the same.
  Folder folder = list_folder(path, classes ? job.model.classes : 0, {});
  split.report.classes = folder.classes;
  const auto decoded = std::make_shared<const Decoded>(std::move(folder.files), job.model.image);
  const bool skip = job.data.bad == BadRecord::kSkip;
  const std::vector<int64_t> good = usable_files(*decoded, path, skip, group, split.report);

  // The split numbers the usable files; a record's file follows from it.
  Parts parts = split_records(job, static_cast<int64_t>(good.size()), path);
  const auto files_of = [&](const std::vector<int64_t>& records) {
    std::vector<int64_t> files;
    for (int64_t record : records) files.push_back(good[static_cast<size_t>(record)]);
    return files;
  };
  const std::vector<int64_t> train = files_of(parts.train);

  // Statistics of the training records: each rank adds up the files that it has decoded itself.
  const Range share =
      lanes_of(group.rank, group.size, static_cast<int64_t>(decoded->files().size()));
  ByteCounts counts(job.model.image[0]);
  const int64_t plane = job.model.image[1] * job.model.image[2];
  for (int64_t file : train) {
    if (needs_moments(job.data.scale) && share.contains(file))
      decoded->with(file, [&](const uint8_t* pixels) { counts.add(pixels, plane); });
  }
  const auto scaling =
      scaling_from(job.data.scale, counts.moments(), group, split.report.statistics);
  split.train = std::make_shared<Images>(decoded, train, scaling);
  split.held_out = std::make_shared<Images>(decoded, files_of(parts.held_out), scaling);

  // Test images are scaled by the training records' statistics, and checked like these.
  if (!job.data.test.empty()) {
    Folder test = list_folder(job.data.test, 0, split.report.classes);
    const auto tested = std::make_shared<const Decoded>(std::move(test.files), job.model.image);
    split.test = std::make_shared<Images>(
        tested, usable_files(*tested, job.data.test, skip, group, split.report), scaling);
  }
  return split;
}

}  // namespace tutti
