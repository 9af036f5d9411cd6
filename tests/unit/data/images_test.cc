// Folders of PNG and JPEG images, written here by the same libraries' encoders.
#include <ATen/ops/upsample_bilinear2d.h>
#include <png.h>
#include <stdio.h>
// after stdio.h, which it needs
#include <jpeglib.h>

#include <cmath>
#include <cstdlib>

#include "base/philox.h"
#include "data/images/image_file.h"
#include "unit/data/files_case.h"

namespace tutti {
namespace {

using namespace files_case;  // NOLINT(google-build-using-namespace)

/// `rows` are pixel after pixel: 1 (grey), 3 (colour) or 4 (colour and opacity) bytes each.
std::string png_of(const std::vector<uint8_t>& rows, uint32_t height, uint32_t width) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.width = width;
  png.height = height;
  const size_t bytes = rows.size() / (size_t{height} * width);
  png.format = bytes == 1 ? PNG_FORMAT_GRAY : bytes == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_RGBA;
  png_alloc_size_t size = 0;
  EXPECT_NE(png_image_write_to_memory(&png, nullptr, &size, 0, rows.data(), 0, nullptr), 0)
      << png.message;
  std::string file(size, '\0');
  EXPECT_NE(png_image_write_to_memory(&png, file.data(), &size, 0, rows.data(), 0, nullptr), 0)
      << png.message;
  file.resize(size);
  return file;
}

std::string jpeg_of(std::vector<uint8_t> rows, uint32_t height, uint32_t width) {
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* memory = nullptr;
  unsigned long size = 0;  // NOLINT(google-runtime-int): the library's type
  jpeg_mem_dest(&jpeg, &memory, &size);
  jpeg.image_width = width;
  jpeg.image_height = height;
  jpeg.input_components = static_cast<int>(rows.size() / (size_t{height} * width));
  jpeg.in_color_space = jpeg.input_components == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, 100, TRUE);
  jpeg_start_compress(&jpeg, TRUE);
  while (jpeg.next_scanline < height) {
    JSAMPROW row = rows.data() +
                   size_t{jpeg.next_scanline} * width * static_cast<size_t>(jpeg.input_components);
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  std::string file(reinterpret_cast<char*>(memory), size);
  jpeg_destroy_compress(&jpeg);
  std::free(memory);
  return file;
}

std::vector<uint8_t> noise(size_t count, uint64_t stream) {
  std::vector<uint8_t> bytes(count);
  for (size_t i = 0; i < count; ++i)
    bytes[i] = static_cast<uint8_t>(philox_below({3, Purpose::kTest, stream, 0}, i, 256));
  return bytes;
}

std::vector<uint8_t> solid(const std::vector<uint8_t>& pixel, size_t pixels) {
  std::vector<uint8_t> rows;
  for (size_t i = 0; i < pixels; ++i) rows.insert(rows.end(), pixel.begin(), pixel.end());
  return rows;
}

TEST(ImageFile, APngIsReadToTheLastBitAsPlanes) {
  const std::vector<uint8_t> rows = noise(5 * 7 * 3, 1);
  const Image image = decode_image(png_of(rows, 5, 7), "x.png", 3);
  EXPECT_EQ(image.height, 5);
  EXPECT_EQ(image.width, 7);
  ASSERT_EQ(image.planes.size(), rows.size());
  for (size_t i = 0; i < 35; ++i)
    for (size_t c = 0; c < 3; ++c)
      ASSERT_EQ(image.planes[c * 35 + i], rows[i * 3 + c]) << i << " " << c;
  const std::vector<uint8_t> grey = noise(35, 2);
  EXPECT_EQ(decode_image(png_of(grey, 5, 7), "x.png", 1).planes, grey);
}

TEST(ImageFile, GreyAndColourBecomeEachOther) {
  const std::vector<uint8_t> grey = noise(35, 2);
  const Image colour = decode_image(png_of(grey, 5, 7), "x.png", 3);
  for (size_t i = 0; i < colour.planes.size(); ++i) ASSERT_EQ(colour.planes[i], grey[i % 35]);
  for (const std::string& file :
       {png_of(solid({90, 90, 90}, 12), 3, 4), jpeg_of(solid({90, 90, 90}, 12), 3, 4)}) {
    const Image image = decode_image(file, "x", 1);
    ASSERT_EQ(image.planes.size(), 12u);
    // both convert through rounded tables
    for (uint8_t value : image.planes) EXPECT_NEAR(value, 90, 1);
  }
}

TEST(ImageFile, TransparencyIsLaidOnBlack) {
  std::vector<uint8_t> rows = solid({200, 100, 50, 255}, 1);
  for (uint8_t value : {200, 100, 50, 0}) rows.push_back(value);
  for (uint8_t value : {200, 100, 50, 128}) rows.push_back(value);
  const Image image = decode_image(png_of(rows, 1, 3), "x.png", 3);
  const auto at = [&](size_t channel, size_t pixel) {
    return int{image.planes[channel * 3 + pixel]};
  };
  EXPECT_EQ(at(0, 0), 200);
  EXPECT_EQ(at(2, 0), 50);
  for (size_t c = 0; c < 3; ++c) {
    EXPECT_EQ(at(c, 1), 0);
    EXPECT_GT(at(c, 2), 0);
    EXPECT_LT(at(c, 2), at(c, 0));
  }
}

TEST(ImageFile, AJpegIsReadToItsOwnPrecision) {
  const Image colour = decode_image(jpeg_of(solid({200, 100, 50}, 64), 8, 8), "x.jpg", 3);
  ASSERT_EQ(colour.planes.size(), 192u);
  for (size_t i = 0; i < 64; ++i) {
    EXPECT_NEAR(colour.planes[i], 200, 3);  // of a lossy format at its best quality
    EXPECT_NEAR(colour.planes[64 + i], 100, 3);
    EXPECT_NEAR(colour.planes[128 + i], 50, 3);
  }
  std::vector<uint8_t> ramp;
  for (int i = 0; i < 64; ++i) ramp.push_back(static_cast<uint8_t>(i * 4));
  const Image grey = decode_image(jpeg_of(ramp, 8, 8), "x.jpg", 1);
  ASSERT_EQ(grey.planes.size(), 64u);
  for (size_t i = 0; i < 64; ++i) EXPECT_NEAR(grey.planes[i], ramp[i], 3);
}

TEST(ImageFile, ResizingIsTorchsToARounding) {
  const Image image = decode_image(png_of(noise(9 * 6 * 3, 4), 9, 6), "x.png", 3);
  const at::Tensor from =
      at::from_blob(const_cast<uint8_t*>(image.planes.data()), {1, 3, 9, 6}, at::kByte)
          .to(at::kFloat);
  for (const auto& [height, width] :
       {std::pair<int64_t, int64_t>{28, 28}, {4, 3}, {9, 11}, {1, 1}, {17, 5}}) {
    const Image got = resized(image, height, width);
    const at::Tensor expected = at::upsample_bilinear2d(from, {height, width}, false).contiguous();
    ASSERT_EQ(got.planes.size(), static_cast<size_t>(3 * height * width));
    // torch interpolates in float32, this in double, then rounds
    for (size_t i = 0; i < got.planes.size(); ++i)
      ASSERT_NEAR(got.planes[i], expected.const_data_ptr<float>()[i], 0.501)
          << height << " x " << width << " " << i;
  }
  EXPECT_EQ(resized(image, 9, 6).planes, image.planes);
}

TEST(ImageFile, WhatIsDamagedIsNamed) {
  const std::string png = png_of(noise(20 * 20 * 3, 5), 20, 20),
                    jpeg = jpeg_of(noise(32 * 32 * 3, 6), 32, 32);
  const auto said = [](const std::string& bytes) {
    return fault([&] { decode_image(bytes, "some/x", 3); });
  };
  EXPECT_EQ(said("GIF89a"), "some/x: neither PNG nor JPEG");
  for (const double part : {0.02, 0.3, 0.7, 0.95}) {
    const auto cut = [part](const std::string& file) {
      return file.substr(0, 4 + static_cast<size_t>(part * static_cast<double>(file.size() - 4)));
    };
    EXPECT_TRUE(said(cut(png)).starts_with("some/x: damaged PNG: "))
        << part << " " << said(cut(png));
    EXPECT_TRUE(said(cut(jpeg)).starts_with("some/x: damaged JPEG: "))
        << part << " " << said(cut(jpeg));
  }
  std::string flipped = png;
  flipped[png.size() / 2] ^= 1;
  EXPECT_TRUE(said(flipped).starts_with("some/x: damaged PNG: ")) << said(flipped);
  EXPECT_EQ(said(png), "no fault");
  EXPECT_EQ(said(jpeg), "no fault");
}

TEST(ImageFile, AHeaderThatClaimsTooManyPixelsIsNotBelieved) {
  std::string jpeg = jpeg_of(noise(8 * 8 * 3, 6), 8, 8);
  const size_t frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  for (size_t i = 5; i < 9; ++i) jpeg[frame + i] = '\xf0';  // its height and width
  EXPECT_EQ(fault([&] { decode_image(jpeg, "x", 3); }),
            "x: damaged JPEG: 61680 x 61680 pixels are too many");
}

class Images : public FilesTest {
 protected:
  void SetUp() override {
    FilesTest::SetUp();
    for (int i = 0; i < 6; ++i) {
      const auto level = static_cast<uint8_t>(20 + 10 * i);
      write("train/cat/" + std::to_string(i) + ".png", png_of(solid({level}, 16), 4, 4));
      write("train/dog/" + std::to_string(i) + ".jpg",
            jpeg_of(solid({static_cast<uint8_t>(level + 100)}, 64), 8, 8));
    }
    write("train/cat/readme.txt", "no image");
    write("train/.hidden/x.png", "no class");
  }
  Job job() const {
    Job job = job_of(R"(
[model]
kind = "cnn"
image = [1, 4, 4]
classes = 2
[loss]
kind = "cross-entropy"
[data]
kind = "images"
held_out = 0
[train]
eval_batches = 0
)");
    job.data.path = folder_ + "/train";
    return job;
  }
};

TEST_F(Images, AreClassesByFolderAndFilesByName) {
  const Split split = open_data(job());
  EXPECT_EQ(split.report.classes, (std::vector<std::string>{"cat", "dog"}));
  ASSERT_EQ(split.train->size(), 12);
  const auto tensors = allocate({{"images", {1, 1, 4, 4}}, {"targets", {1}, at::kLong}});
  for (int64_t i = 0; i < 12; ++i) {
    split.train->read(i, tensors, 0);
    EXPECT_EQ(values<int64_t>(tensors[1]), std::vector<int64_t>{i / 6});
    EXPECT_EQ(split.train->label(i), i / 6);
    for (float value : values<float>(tensors[0]))
      EXPECT_NEAR(value, static_cast<float>(20 + 10 * (i % 6) + i / 6 * 100), 2);
  }
}

TEST_F(Images, OfTheTestFolderHaveTheTrainingClasses) {
  write("test/dog/a.png", png_of(solid({7}, 16), 4, 4));
  Job both = job();
  both.data.test = folder_ + "/test";
  const Split split = open_data(both);
  ASSERT_EQ(split.test->size(), 1);
  EXPECT_EQ(split.test->label(0), 1);  // as in training, though there is no folder of cats
  write("test/fox/a.png", png_of(solid({7}, 16), 4, 4));
  EXPECT_EQ(fault([&] { open_data(both); }),
            folder_ + "/test/fox: an unknown class; the training images have none of that name");
}

TEST_F(Images, WhereThereAreNoneOrOtherClassesAreRefused) {
  Job bad = job();
  bad.model.classes = 3;
  EXPECT_EQ(fault([&] { open_data(bad); }),
            bad.data.path + ": 2 folders of classes, but model.classes = 3");
  bad = job();
  bad.data.path = folder_ + "/nowhere";
  EXPECT_EQ(fault([&] { open_data(bad); }), bad.data.path + ": no such folder");
  for (const char* name : {"empty/cat", "empty/dog"})
    std::filesystem::create_directories(folder_ + "/" + name);
  bad.data.path = folder_ + "/empty";
  EXPECT_EQ(fault([&] { open_data(bad); }),
            bad.data.path + ": no PNG or JPEG images in its folders");
}

TEST_F(Images, ThatAreDamagedEndTheRunOrAreSkippedAndCounted) {
  const std::string png = png_of(noise(400, 1), 20, 20), jpeg = jpeg_of(noise(400, 2), 20, 20);
  const std::string first = write("train/cat/3.png", png.substr(0, png.size() / 2)),
                    second = write("train/dog/4.jpg", jpeg.substr(0, jpeg.size() / 2));
  Job damaged = job();
  for (int ranks : {1, 2, 3}) {
    over_group(ranks, [&](const DataGroup& group) {
      EXPECT_TRUE(fault([&] { open_data(damaged, group); }).starts_with(first + ": damaged PNG: "));
    });
  }
  damaged.data.bad = BadRecord::kSkip;
  for (int ranks : {1, 2, 3, 5}) {
    over_group(ranks, [&](const DataGroup& group) {
      const Split split = open_data(damaged, group);
      EXPECT_EQ(split.train->size(), 10);
      EXPECT_EQ(split.report.skipped, 2);
      ASSERT_EQ(split.report.faults.size(), 2u);
      EXPECT_TRUE(split.report.faults[0].starts_with(first)) << split.report.faults[0];
      EXPECT_TRUE(split.report.faults[1].starts_with(second)) << split.report.faults[1];
    });
  }
}

TEST_F(Images, AreScaledByAllRanksToTheSameBits) {
  Job scaled = job();
  scaled.data.scale = ValueScale::kStandardise;
  scaled.data.held_out = 0.3;
  const std::vector<float> expected = all_features(*open_data(scaled).train, 16);
  double sum = 0, squares = 0;
  for (float value : expected) sum += value, squares += double{value} * value;
  const auto n = static_cast<double>(expected.size());
  EXPECT_NEAR(sum / n, 0, 1e-6);  // float32 values of about 1
  EXPECT_NEAR(squares / n, 1, 1e-5);
  for (int ranks : {2, 3, 5, 13}) {  // 13: one has no file
    over_group(ranks, [&](const DataGroup& group) {
      EXPECT_EQ(all_features(*open_data(scaled, group).train, 16), expected);
    });
  }
}

}  // namespace
}  // namespace tutti
