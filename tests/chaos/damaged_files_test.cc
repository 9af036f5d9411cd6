// Every format that is read, damaged by seed: flipped bits, bytes cut out, put in or cut off, and
// plain noise. A reader takes such a file or throws an Error that names it, in words of ours; it
// never crashes, aborts or throws anything else. (CSV and JSON lines have the same in
// tests/unit/data.)
#include <ATen/ops/arange.h>
#include <png.h>
#include <stdio.h>
// after stdio.h, which it needs
#include <jpeglib.h>
#include <torch/csrc/jit/api/module.h>
#include <zlib.h>

#include <random>

#include "app/layouts/hosts_file.h"
#include "base/error.h"
#include "base/hash.h"
#include "data/images/arrays.h"
#include "data/images/image_file.h"
#include "data/text/tokenizer.h"
#include "exec/trace.h"
#include "model/adapt/script.h"
#include "observe/plot.h"
#include "plan/search/calibration.h"
#include "state/checkpoint.h"
#include "state/load_checkpoint.h"
#include "state/manifest.h"
#include "state/safetensors.h"
#include "support/command.h"
#include "support/damage.h"
#include "train/run_folder.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

void expect_our_words(const std::string& text, const std::string& file) {
  EXPECT_NE(text.find(file), std::string::npos) << text;
  for (const char* raw : {"[json.exception", "std::", "filesystem error", "terminate called",
                          "broken promise", "frame #"})
    EXPECT_EQ(text.find(raw), std::string::npos) << text;
}

class DamagedFiles : public testing::Test {
 protected:
  DamagedFiles() {
    // a crash would leave no other trace
    std::fprintf(stderr, "seed %llu\n", static_cast<unsigned long long>(seed_));
  }
  /// Reads so many damaged versions of what `path` holds. `named`: what the message names, where it
  /// is not the path.
  void each(const std::string& path, int rounds, const std::function<void()>& read,
            const std::string& named = "") {
    SCOPED_TRACE(fmt::format("{}, seed {}", path, seed_));
    const std::string whole = read_file(path);
    ASSERT_NO_THROW(read()) << "undamaged";
    int refused = 0;
    for (int round = 0; round < rounds && !HasFailure(); ++round) {
      std::ofstream(path, std::ios::binary) << mutated(whole, seed_, static_cast<uint64_t>(round));
      SCOPED_TRACE(round);
      try {
        read();
      } catch (const Error& error) {
        ++refused;
        expect_our_words(error.what(), named.empty() ? path : named);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "not an Error: " << error.what();
      }
    }
    EXPECT_GT(refused, rounds / 10) << "the reader takes anything";
    std::ofstream(path, std::ios::binary) << whole;
  }

  const uint64_t seed_ = std::random_device{}();
  TempFolder folder_;
};

/// Two parameters, one of them with a moment.
struct SmallState {
  SmallState() {
    state.entries = {{"embed.weight", "parameter", {10, 3}, values[0]},
                     {"embed.weight", "m", {10, 3}, values[1]},
                     {"head.bias", "parameter", {7}, values[2]}};
    state.counters = {3, 96, "best 0.5"};
  }
  std::vector<float> values[3] = {std::vector<float>(30, 1), std::vector<float>(30, 2),
                                  std::vector<float>(7, 3)};
  State state;
};

TEST_F(DamagedFiles, OfCheckpointsAreRefused) {
  SmallState saved, loaded;
  const std::string checkpoint = save_checkpoint(folder_.path(), saved.state, "name = \"x\"\n");
  const std::string manifest = checkpoint + "/manifest.json",
                    file = checkpoint + "/parameters.safetensors";
  each(manifest, 1000, [&] { read_manifest(checkpoint); });
  each(
      manifest, 300, [&] { load_checkpoint(checkpoint, loaded.state); }, checkpoint);
  each(file, 300, [&] { load_checkpoint(checkpoint, loaded.state); });
  // With a manifest that agrees in size and header the tensors of the header are looked at, too.
  const Manifest whole = read_manifest(checkpoint);
  const auto load_agreeing = [&] {
    const std::string bytes = read_file(file);
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), std::min<size_t>(sizeof length, bytes.size()));
    Manifest agreeing = whole;
    agreeing.files[0].bytes = static_cast<int64_t>(bytes.size());
    if (length < bytes.size())
      agreeing.files[0].header =
          sha256(std::as_bytes(std::span(bytes).first(std::min(8 + length, bytes.size()))));
    write_manifest(checkpoint, agreeing);
    load_checkpoint(checkpoint, loaded.state);
  };
  each(file, 1000, load_agreeing, checkpoint);
  write_manifest(checkpoint, whole);
  each(file, 1000, [&] { read_tensors(file, [](const std::string&) { return true; }); });
}

TEST_F(DamagedFiles, OfARunAreRefusedOrCut) {
  const RunFolder run = create_run(folder_ / "run", parse_job("", "x.toml", {})).folder;
  std::string lines;
  for (int step = 1; step < 6; ++step)
    lines += fmt::format(
        "{{\"event\":\"step\",\"step\":{},\"loss\":{}.5,\"lr\":1e-3}}\n"
        "{{\"event\":\"eval\",\"step\":{},\"held_out_loss\":1.5,\"metrics\":{{\"accuracy\":0.5}}}}"
        "\n",
        step, step, step);
  folder_.write("run/metrics.jsonl", lines);
  each(
      run.metrics(), 1000, [&] { read_curve(run.path, "loss"); }, run.path);
  const std::string whole = read_file(run.metrics());
  for (uint64_t round = 0; round < 1000; ++round) {
    std::ofstream(run.metrics(), std::ios::binary) << mutated(whole, seed_, round);
    ASSERT_NO_THROW(cut_metrics(run, 3)) << "seed " << seed_ << " round " << round;
  }
  each(run.job(), 500, [&] { job_of_run(run); });
}

TEST_F(DamagedFiles, OfJobsAreRefused) {
  const std::string path =
      folder_.write("job.toml",
                    "base = \"gpt-kjv\"\nname = \"mine\"\n[model]\nlayers = 2\nwidth = 64\n"
                    "[data]\nkind = \"csv\"\ncolumns = [\"a: number\", \"b: target 0|1\"]\n"
                    "[train]\nlr = 1e-3\nsteps = 20\n[layout]\noverlap = false\n");
  each(path, 2000, [&] { load_job(path, {}); });
}

TEST_F(DamagedFiles, OfArraysAreRefused) {
  write_npy(folder_ / "a.npy", {20, 3}, std::vector<float>(60, 0.5F));
  each(folder_ / "a.npy", 2000, [&] { read_npy(folder_ / "a.npy"); });
  std::string idx("\0\0\x08\x03\0\0\0\x04\0\0\0\x05\0\0\0\x06", 16);
  idx += std::string(120, '\7');
  folder_.write("a.idx", idx);
  each(folder_ / "a.idx", 1000, [&] { read_idx(folder_ / "a.idx"); });
  const std::string packed = folder_ / "a.idx.gz";
  gzFile file = gzopen(packed.c_str(), "wb");
  gzwrite(file, idx.data(), static_cast<unsigned>(idx.size()));
  gzclose(file);
  each(packed, 1000, [&] { read_idx(packed); });
}

std::string png_of(uint32_t side, const std::vector<uint8_t>& grey) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.width = png.height = side;
  png.format = PNG_FORMAT_GRAY;
  png_alloc_size_t size = 0;
  EXPECT_NE(png_image_write_to_memory(&png, nullptr, &size, 0, grey.data(), 0, nullptr), 0);
  std::string file(size, '\0');
  EXPECT_NE(png_image_write_to_memory(&png, file.data(), &size, 0, grey.data(), 0, nullptr), 0);
  return file.substr(0, size);
}

std::string jpeg_of(uint32_t side, std::vector<uint8_t> grey) {
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* memory = nullptr;
  unsigned long size = 0;  // NOLINT(google-runtime-int): the library's type
  jpeg_mem_dest(&jpeg, &memory, &size);
  jpeg.image_width = jpeg.image_height = side;
  jpeg.input_components = 1;
  jpeg.in_color_space = JCS_GRAYSCALE;
  jpeg_set_defaults(&jpeg);
  jpeg_start_compress(&jpeg, TRUE);
  while (jpeg.next_scanline < side) {
    JSAMPROW row = grey.data() + size_t{jpeg.next_scanline} * side;
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  std::string file(reinterpret_cast<char*>(memory), size);
  jpeg_destroy_compress(&jpeg);
  std::free(memory);
  return file;
}

TEST_F(DamagedFiles, OfImagesAreRefused) {
  std::vector<uint8_t> grey(16 * 16);
  for (size_t i = 0; i < grey.size(); ++i) grey[i] = static_cast<uint8_t>(37 * i);
  for (const auto& [name, bytes] :
       {std::pair{"a.png", png_of(16, grey)}, std::pair{"a.jpg", jpeg_of(16, grey)}}) {
    const std::string path = folder_.write(name, bytes);
    each(path, 1000, [&] { decode_image(read_file(path), path, 3); });
  }
}

TEST_F(DamagedFiles, OfTokensAndTokenizersAreRefused) {
  const std::string tokens = folder_ / "a.tokens", tokenizer = folder_ / "tokenizer.json";
  write_tokens(tokens, std::vector<int32_t>(100, 255), 256);
  each(tokens, 1000, [&] { read_tokens(tokens); });
  Tokenizer::train("the then there the the then", 262).save(tokenizer);
  const auto read = [&](const std::string& path) { Tokenizer::load(path).encode("the there"); };
  each(tokenizer, 400, [&] { read(tokenizer); });
  // GPT-2's own two files, from the same vocabulary.
  const auto model = nlohmann::json::parse(read_file(tokenizer)).at("model");
  std::filesystem::create_directory(folder_ / "gpt2");
  std::string merges = "#version: 0.2\n";
  for (const auto& merge : model.at("merges"))
    merges += merge.is_string()
                  ? merge.get<std::string>() + "\n"
                  : merge[0].get<std::string>() + " " + merge[1].get<std::string>() + "\n";
  folder_.write("gpt2/vocab.json", model.at("vocab").dump());
  folder_.write("gpt2/merges.txt", merges);
  each(
      folder_ / "gpt2/vocab.json", 400, [&] { read(folder_ / "gpt2"); }, folder_ / "gpt2");
  each(
      folder_ / "gpt2/merges.txt", 400, [&] { read(folder_ / "gpt2"); }, folder_ / "gpt2");
}

TEST_F(DamagedFiles, OfCalibrationsAndHostsAreRefused) {
  const std::string rates =
      folder_.write("rates.json", to_json(default_calibration(DeviceKind::kCpu, 4)));
  each(rates, 1000, [&] { load_calibration(rates, 4); });
  const std::string hosts = folder_.write("hosts", "# ours\nnode1 slots=2\nnode2 slots=4\n");
  each(hosts, 1000, [&] {
    host_slots(read_file(hosts), hosts);
    parse_hosts(read_file(hosts), hosts, 6);
  });
}

TEST_F(DamagedFiles, OfTracesAreRefusedOrDrawn) {
  std::string line = trace_line({1, "compute", "Forward", "block 3.1", 7, 10.5, 20.25});
  for (uint64_t round = 0; round < 2000; ++round) {
    SCOPED_TRACE(fmt::format("seed {}, round {}", seed_, round));
    try {
      const std::vector<TraceEvent> events = {parse_trace_line(line),
                                              parse_trace_line(mutated(line, seed_, round))};
      chrome_trace(events);
      svg_trace(events, 7);
    } catch (const Error& error) {
      expect_our_words(error.what(), "not a line of a trace");
    } catch (const std::exception& error) {
      FAIL() << "not an Error: " << error.what();
    }
  }
}

TEST_F(DamagedFiles, OfTorchScriptAreRefused) {
  const std::string path = folder_ / "net.pt";
  torch::jit::Module module("net");
  module.register_attribute("training", c10::BoolType::get(), true);
  module.register_parameter("weight", at::arange(12, at::kFloat).reshape({4, 3}).requires_grad_(),
                            false);
  module.define("def forward(self, x):\n  return torch.linear(x, self.weight)\n");
  module.save(path);
  Job job = parse_job("", "x.toml",
                      {{"model.kind", "script"},
                       {"model.path", path},
                       {"model.inputs", "3"},
                       {"model.classes", "4"},
                       {"data.kind", "points"},
                       {"loss.kind", "cross-entropy"}});
  each(path, 300, [&] { make_script(job); });
}

TEST_F(DamagedFiles, EndTheCommandWithAMessageAndACode) {
  const std::string run = folder_ / "run";
  Command first({"train", "mlp-points", "--ranks", "1", "--steps", "3", "--out", run});
  ASSERT_EQ(first.wait(), 0) << first.err();
  const std::string checkpoint = run + "/checkpoints/step-00000003";
  const std::vector<std::pair<std::string, testing_support::Arguments>> cases = {
      {run + "/job.toml", {"train", "--resume", run}},
      {checkpoint + "/manifest.json", {"train", "--resume", run}},
      {checkpoint + "/parameters.safetensors", {"train", "--resume", run}},
      {run + "/metrics.jsonl", {"plot", run, "-o", folder_ / "plot.svg"}},
      {run + "/trace/rank-0.jsonl", {"trace", run}},
  };
  for (const auto& [path, arguments] : cases) {
    const std::string whole = read_file(path);
    for (const std::string& bytes :
         {whole.substr(0, whole.size() / 2) + "\n{\xff" + whole, std::string("\0\1{[", 4)}) {
      std::ofstream(path, std::ios::binary) << bytes << "\n";
      Command command(arguments);
      const int code = command.wait();
      EXPECT_TRUE(code == 1 || code == 2) << path << ": " << code;
      expect_our_words(command.err(), path);
      EXPECT_EQ(read_file(path), bytes + "\n");
    }
    std::ofstream(path, std::ios::binary) << whole;
  }
}

}  // namespace
}  // namespace tutti
