// The commands besides train, on tiny jobs and runs.
#include <algorithm>
#include <set>

#include "support/command.h"
#include "support/tiny_gpt.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

const std::string kGpt =
    tiny_gpt("lanes = 3\nsteps = 6\neval_batches = 1\n", "layers = 1\n", "text");

/// What is wrong with the XML text; empty when it is well-formed: tags nest, attributes are quoted,
/// & and < are escaped.
std::string xml_fault(const std::string& text) {
  std::vector<std::string> open;
  size_t roots = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    const std::string near = text.substr(at, 40);
    if (text[at] == '&') {
      const size_t end = text.find(';', at);
      if (end == std::string::npos || end - at > 6) return "a bare & at: " + near;
    }
    if (text[at] != '<') continue;
    if (near.starts_with("<?") || near.starts_with("<!--")) {
      at = text.find(near[1] == '?' ? "?>" : "-->", at);
      if (at == std::string::npos) return "never closed: " + near;
      continue;
    }
    char quote = 0;
    size_t end = at + 1;
    for (; end < text.size() && (quote != 0 || text[end] != '>'); ++end) {
      if (text[end] == '<') return "a bare < in a tag: " + near;
      if (quote == 0 && (text[end] == '"' || text[end] == '\'')) {
        if (text[end - 1] != '=') return "a quote without an attribute: " + near;
        quote = text[end];
      } else if (text[end] == quote) {
        quote = 0;
      }
    }
    if (end == text.size()) return "never closed: " + near;
    const bool closing = text[at + 1] == '/', single = text[end - 1] == '/';
    const size_t name = at + (closing ? 2 : 1);
    const std::string tag = text.substr(name, text.find_first_of(" \n\t/>", name) - name);
    if (closing) {
      if (open.empty() || open.back() != tag) return "closes what is not open: " + near;
      open.pop_back();
    } else if (!single) {
      if (open.empty() && ++roots > 1) return "a second root: " + near;
      open.push_back(tag);
    }
    at = end;
  }
  if (!open.empty()) return "never closed: " + open.back();
  return roots == 1 ? "" : "no root";
}

class Commands : public testing::Test {
 protected:
  void SetUp() override {
    std::string text;
    for (int i = 0; i < 400; ++i)
      text += fmt::format("verse {} of the <test> & its \"text\"\n", i * i);
    job_ = folder_.write("tiny.toml", kGpt);
    data_ = set({"data.path=" + folder_.write("text.txt", text)});
  }
  /// stdout of a command that must succeed.
  static std::string output(const Arguments& arguments) {
    Command command(arguments);
    EXPECT_EQ(command.wait(), 0) << command.err();
    return command.out();
  }
  std::string train(const Arguments& arguments) {
    output(Arguments{"train", job_, "--out", run_} + data_ + arguments);
    return run_;
  }

  TempFolder folder_;
  std::string job_, run_ = folder_ / "run";
  Arguments data_;
};

/// What the rows of a verify that must succeed say in a column, and that their hashes are one.
std::vector<std::set<std::string>> columns_of(const Arguments& arguments) {
  Command verify(Arguments{"verify"} + arguments);
  EXPECT_EQ(verify.wait(Seconds(150)), 0) << verify.out();
  EXPECT_TRUE(verify.says("layouts, one state")) << verify.out();
  std::vector<std::set<std::string>> columns(9);
  for (const std::string& line : lines_of(verify.out())) {
    std::istringstream fields(line);
    std::vector<std::string> words;
    for (std::string word; fields >> word;) words.push_back(word);
    if (words.size() != 9 || words[8].size() != 64) continue;
    for (size_t i = 0; i < words.size(); ++i) columns[i].insert(words[i]);
  }
  EXPECT_EQ(columns[8].size(), 1u) << verify.out();
  EXPECT_TRUE(verify.says("left out")) << verify.out();
  return columns;
}

TEST_F(Commands, VerifyFindsOneStateOverItsLayouts) {
  const auto columns = columns_of(Arguments{job_, "--steps", "2"} + data_);
  const auto expect = [&](size_t column, const std::set<std::string>& values) {
    EXPECT_TRUE(
        std::includes(columns[column].begin(), columns[column].end(), values.begin(), values.end()))
        << testing::PrintToString(columns[column]);
  };
  expect(0, {"1", "2", "3", "6"});
  expect(1, {"process", "thread"});
  expect(2, {"inproc", "shm", "tcp"});
  expect(3, {"off", "on"});
  expect(5, {"local", "owner", "root"});
  expect(6, {"even", "hash", "lanes", "round-robin"});
  std::set<std::string> parts;
  for (const std::string& mesh : columns[7]) {
    std::istringstream words(mesh);
    for (std::string part; std::getline(words, part, ',');) parts.insert(part);
  }
  for (const char* part :
       {"1x1x1", "2x1x1", "3x1x1", "1x1x2", "1x1x3", "2x1x2", "3x1x2", "2x1x3", "1f1b", "gpipe",
        "zero-bubble", "zero1", "zero2", "zero3", "depth2", "selective", "full"})
    EXPECT_TRUE(parts.contains(part)) << part;
}

TEST_F(Commands, VerifyGoesOverTheMeshesOfASlicedJobAndSaysWhatDoesNotSuitIt) {
  const auto columns =
      columns_of(Arguments{job_, "--steps", "1"} + data_ +
                 set({"train.tensor_slices=2", "train.lanes=2", "train.optimizer=lamb"}));
  std::set<std::string> meshes;
  for (const std::string& mesh : columns[7]) meshes.insert(mesh.substr(0, mesh.find(',')));
  EXPECT_EQ(meshes, (std::set<std::string>{"1x1x1", "1x1x2", "1x1x3", "1x2x1", "1x2x2", "1x2x3",
                                           "2x1x1", "2x1x2", "2x1x3", "2x2x1", "2x2x2"}));
  for (const std::string& mesh : columns[7])
    EXPECT_EQ(mesh.find("zero1"), std::string::npos) << mesh;
  EXPECT_TRUE(columns[5].contains("root")) << "data parallelism goes with slices of a model";
}

TEST_F(Commands, VerifyFailsWhereTheBitsDependOnTheLayout) {
  Command verify(Arguments{"verify", job_, "--steps", "3", "--set", "numerics.reduce=ring"} +
                 data_);
  EXPECT_EQ(verify.wait(), 1) << verify.out();
  EXPECT_TRUE(verify.says("DIFFERS")) << verify.out();
  EXPECT_TRUE(verify.says("layouts differ")) << verify.out();
}

TEST_F(Commands, TraceHasTheInstructionsOfEveryRank) {
  output({"trace", train({"--ranks", "3"})});
  const auto trace = nlohmann::json::parse(read_file(run_ + "/trace.json"));
  const auto& events = trace.is_array() ? trace : trace.at("traceEvents");
  std::map<int, std::set<std::string>> names;  // by rank
  for (const auto& event : events) {
    if (event.at("ph") != "X") continue;
    names[event.at("pid").get<int>()].insert(event.at("name").get<std::string>());
    EXPECT_GE(event.at("dur").get<double>(), 0);
  }
  ASSERT_EQ(names.size(), 3u);
  for (const auto& [rank, executed] : names) {
    SCOPED_TRACE(rank);
    for (const char* instruction : {"Forward", "Backward", "Reduce", "Vote", "Update"})
      EXPECT_TRUE(
          std::any_of(executed.begin(), executed.end(),
                      [&](const std::string& name) { return name.starts_with(instruction); }))
          << instruction << " is not in " << testing::PrintToString(executed);
  }
  const std::string svg = read_file(run_ + "/trace.svg");
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_TRUE(svg.find("<svg") != std::string::npos);
}

TEST_F(Commands, TraceOfARunThatHasNoneIsRefused) {
  std::filesystem::remove_all(train({"--steps", "1"}) + "/trace");
  Command trace({"trace", run_});
  EXPECT_EQ(trace.wait(), 1);
  EXPECT_TRUE(trace.says("it has no trace")) << trace.err();
  EXPECT_FALSE(std::filesystem::exists(run_ + "/trace.json"));
}

TEST_F(Commands, SampleGoesOnFromThePromptTheSameEveryTime) {
  train({"--ranks", "2"});
  const Arguments sample = {"sample", run_, "--prompt", "verse", "--bytes", "20"};
  const std::string text = output(sample);
  EXPECT_TRUE(text.starts_with("verse")) << text;
  EXPECT_GE(text.size(), 5u + 20u);
  EXPECT_EQ(output(sample), text);
  EXPECT_NE(output(sample + Arguments{"--seed", "2"}), text);
}

TEST_F(Commands, SampleOfAModelWithoutTextIsRefused) {
  output(Arguments{"train"} + kEndlessMlp + Arguments{"--steps", "1", "--out", run_});
  Command sample({"sample", run_});
  EXPECT_EQ(sample.wait(), 1);
  EXPECT_TRUE(sample.says("a model of kind mlp writes no text")) << sample.err();
}

TEST_F(Commands, TrainPrintsASampleTheBigramLossAndTheFinalHash) {
  Command command(Arguments{"train", job_, "--ranks", "2", "--out", run_} + data_ +
                  set({"train.prompt=verse", "train.sample_bytes=8"}));
  EXPECT_EQ(command.wait(), 0) << command.err();
  EXPECT_TRUE(command.says("byte bigram")) << command.out();
  EXPECT_TRUE(command.says("\nverse")) << command.out();
  EXPECT_EQ(lines_of(command.out()).back(), "state sha256 " + command.hash());
  const auto end = nlohmann::json::parse(lines_in(run_ + "/events.jsonl").back());
  EXPECT_EQ(end.at("event"), "end");
  EXPECT_EQ(end.at("state_sha256"), command.hash());
  EXPECT_GT(end.at("peak_bytes").at("total").get<int64_t>(), 0);
}

TEST_F(Commands, ExplainNamesEveryValueAndWhereItCameFrom) {
  const std::string text = output({"explain", job_, "--set", "train.seed=7", "--ranks", "2"});
  auto line = [&](const std::string& start) {
    for (const std::string& l : lines_of(text))
      if (l.starts_with(start + " ") || l.starts_with(start + "=")) return l;
    return std::string();
  };
  EXPECT_NE(line("layers").find("tiny.toml:"), std::string::npos) << line("layers");
  EXPECT_NE(line("seed").find("7"), std::string::npos) << line("seed");
  EXPECT_NE(line("seed").find("--set"), std::string::npos) << line("seed");
  EXPECT_NE(line("beta1").find("default"), std::string::npos) << line("beta1");
  EXPECT_NE(line("transport").find("resolved"), std::string::npos) << line("transport");
  const std::string explained = folder_.write("explained.toml", text);
  const std::string said =
      output(Arguments{"train", explained, "--steps", "1", "--out", run_} + data_);
  EXPECT_NE(said.find("seed 7"), std::string::npos) << said;
  EXPECT_NE(said.find("2 process ranks"), std::string::npos) << said;
}

TEST_F(Commands, JobsListsTheBuiltInOnesAndEachCanBeExplained) {
  std::set<std::string> names;
  for (const std::string& line : lines_of(output({"jobs"})))
    names.insert(line.substr(0, line.find(' ')));
  EXPECT_EQ(names, (std::set<std::string>{"fashion-cnn", "fashion-mlp", "gpt-bench", "gpt-kjv",
                                          "gpt-kjv-bpe", "gpt2-124m", "llama-kjv", "mlp-points",
                                          "wide-deep"}));
  for (const std::string& name : names)
    EXPECT_NE(output({"explain", name}).find("[model]"), std::string::npos) << name;
}

TEST_F(Commands, ThatDoNotExistAreRefused) {
  Command command({"trian"});
  EXPECT_EQ(command.wait(), 2);
}

}  // namespace
}  // namespace tutti
