#include "data/text/tokenizer.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "data/text/pretokenize.h"
#include "data/text/tokens.h"

namespace tutti {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

class TokenizerTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "tutti-tokenizer-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }
  /// A tokenizer.json of a few merges, to be changed by a test.
  json file() const {
    Tokenizer::train("the then there the the then", 262).save(path("made.json"));
    return json::parse(read_file(path("made.json")));
  }
  std::string folder_;
};

template <typename Function>
std::string fault(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "no fault";
}

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> all;
  while (!text.empty()) {
    const std::string_view word = first_word(text);
    all.emplace_back(word);
    text.remove_prefix(word.size());
  }
  return all;
}

/// The lowest rank first, of equal ones the leftmost, by looking at every pair again and again.
Ids naive_encode(const json& model, const std::string& text) {
  std::map<std::pair<std::string, std::string>, size_t> ranks;
  for (const json& merge : model["merges"]) {
    ranks[{merge[0].get<std::string>(), merge[1].get<std::string>()}] = ranks.size();
  }
  Ids ids;
  for (const std::string& word : words(text)) {
    std::vector<std::string> parts;
    for (const char c : word) parts.emplace_back(1, c);
    while (true) {
      size_t best = ranks.size(), at = 0;
      for (size_t i = 0; i + 1 < parts.size(); ++i) {
        const auto found = ranks.find({parts[i], parts[i + 1]});
        if (found != ranks.end() && found->second < best) best = found->second, at = i;
      }
      if (best == ranks.size()) break;
      parts[at] += parts[at + 1];
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
    for (const std::string& part : parts) ids.push_back(model["vocab"][part].get<int32_t>());
  }
  return ids;
}

TEST(Words, AreCutAsByTheGpt2Pattern) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(words("It's we'll they've I'd"),
            (Words{"It", "'s", " we", "'ll", " they", "'ve", " I", "'d"}));
  EXPECT_EQ(words("DON'T 'S o'clock's 'r"),
            (Words{"DON", "'", "T", " '", "S", " o", "'", "clock", "'s", " '", "r"}));
  EXPECT_EQ(words("a  b\n\n c \t"), (Words{"a", " ", " b", "\n\n", " c", " \t"}));
  EXPECT_EQ(words("x\n\ny\tz "), (Words{"x", "\n", "\n", "y", "\t", "z", " "}));
  EXPECT_EQ(words("abc123!? 45 -- (x)"), (Words{"abc", "123", "!?", " 45", " --", " (", "x", ")"}));
  EXPECT_EQ(words("größe 天地１２ ½"), (Words{"größe", " 天地", "１２", " ½"}));
  EXPECT_EQ(words("a\u00a0b\u3000\u3000c"), (Words{"a", "\u00a0", "b", "\u3000", "\u3000", "c"}));
  EXPECT_EQ(words("\U0001F600\u2014! \u1c89"), (Words{"\U0001F600\u2014!", " \u1c89"}));
}

TEST(Words, TakeBytesThatAreNotUtf8AsCharactersThatAreNoLetters) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(words("a\xff\xfe"), (Words{"a", "\xff\xfe"}));
  // a character that ends early
  EXPECT_EQ(words("a \xe5\xa4"), (Words{"a", " \xe5\xa4"}));
  // overlong; a surrogate
  EXPECT_EQ(words("\xc0\x80z\xed\xa0\x80"), (Words{"\xc0\x80", "z", "\xed\xa0\x80"}));
}

TEST(TokenizerTrain, LearnsTheMostFrequentPairsAndBreaksTiesByTheLowestIds) {
  // "ab" 3 times, "bc" and "cd" 2 times each (b before c), then what is left.
  const Tokenizer tokenizer = Tokenizer::train("ab ab ab bc bc cd cd", 263);
  const auto of = [&](const std::string& text) { return tokenizer.encode(text); };
  EXPECT_EQ(of("!"), Ids{0});
  EXPECT_EQ(of("a"), Ids{'a' - '!'});
  EXPECT_EQ(of("\xff"), Ids{187});  // the byte of the last visible character
  EXPECT_EQ(of(" "), Ids{220});     // the bytes that have none follow: 0 to 32 are 188 to 220
  EXPECT_EQ(of("ab"), Ids{256});
  EXPECT_EQ(tokenizer.decode({256}), "ab");
  EXPECT_EQ(tokenizer.decode({257}), "bc");
  EXPECT_EQ(tokenizer.decode({258}), "cd");
  EXPECT_EQ(tokenizer.decode({259}), " ab");
  EXPECT_EQ(tokenizer.decode({260}), " bc");
  EXPECT_EQ(tokenizer.decode({261}), " cd");
  EXPECT_EQ(tokenizer.vocab(), 262);  // there are no more pairs
}

TEST(TokenizerTrain, RefusesAVocabularyWithoutRoomForTheBytes) {
  EXPECT_EQ(fault([] { Tokenizer::train("text", 255); }),
            "a vocabulary of 255 tokens has no room for the 256 bytes");
}

TEST_F(TokenizerTest, EncodesAsTheNaiveRuleDoes) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937_64 draw(seed);
  // Letters and digits only: their characters in the file are themselves. Words of every length, by
  // both ways of merging.
  std::string text;
  for (int word = 0; word < 400; ++word) {
    const auto length = word % 8 == 7 ? draw() % 300 + 1 : draw() % 20 + 1;
    for (uint64_t i = 0; i < length; ++i) text += static_cast<char>('a' + draw() % 3);
    text += static_cast<char>('0' + draw() % 10);
  }
  const Tokenizer tokenizer = Tokenizer::train(text, 500);
  tokenizer.save(path("random.json"));
  const json model = json::parse(read_file(path("random.json")))["model"];
  EXPECT_EQ(tokenizer.encode(text), naive_encode(model, text));
  EXPECT_EQ(tokenizer.encode(text), naive_encode(model, text)) << "words that were met before";
}

TEST_F(TokenizerTest, DecodingGivesAnyBytesBack) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937_64 draw(seed);
  const std::vector<std::string> pieces = {"the",        " ",    "\n",   "'s", "é", "天",
                                           "\U0001F600", "\xff", "\xe5", "12", "!", "\0x"};
  std::string sample;
  for (int i = 0; i < 5000; ++i) sample += pieces[draw() % pieces.size()];
  const Tokenizer tokenizer = Tokenizer::train(sample, 600);
  for (int round = 0; round < 300; ++round) {
    std::string text;
    const size_t length = draw() % 400;
    while (text.size() < length) {
      if (draw() % 2 == 0) {
        text += pieces[draw() % pieces.size()];
      } else {
        text += static_cast<char>(draw());
      }
    }
    ASSERT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
  EXPECT_EQ(tokenizer.encode(""), Ids{});
}

TEST_F(TokenizerTest, EncodesAWordOfAMegabyte) {
  const Tokenizer tokenizer =
      Tokenizer::train("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa abcabcabcabcabcabc", 270);
  std::string text(1 << 20, 'a');
  EXPECT_LT(tokenizer.encode(text).size(), text.size() / 2);
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>('a' + i % 3);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
}

TEST_F(TokenizerTest, EncodesTheSameOnManyThreadsAtOnce) {
  std::string text;
  for (int i = 0; i < 20000; ++i) text += fmt::format("word{} of{} ", i * 7919 % 10007, i % 11);
  const Tokenizer tokenizer = Tokenizer::train(text, 700);
  const Ids expected = tokenizer.encode(text);
  std::vector<Ids> found(4);
  {
    std::vector<std::jthread> threads;
    for (Ids& ids : found) threads.emplace_back([&] { ids = tokenizer.encode(text); });
  }
  for (const Ids& ids : found) EXPECT_EQ(ids, expected);
}

TEST_F(TokenizerTest, ReadsWhatItSaved) {
  const Tokenizer tokenizer =
      Tokenizer::train("in the beginning \xff\n was the word, the wörd", 300);
  tokenizer.save(path("a.json"));
  const Tokenizer again = Tokenizer::load(path("a.json"));
  again.save(path("b.json"));
  EXPECT_EQ(read_file(path("a.json")), read_file(path("b.json")));
  EXPECT_EQ(again.encode("the beginning wörd"), tokenizer.encode("the beginning wörd"));
}

TEST_F(TokenizerTest, ReadsMergesAsStringsAndGpt2sTwoFiles) {
  json made = file();
  const Ids expected = Tokenizer::load(path("made.json")).encode("the then there");
  json strings = json::array();
  std::string lines = "#version: 0.2\n";
  for (const json& merge : made["model"]["merges"]) {
    strings.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
    lines += strings.back().get<std::string>() + "\n";
  }
  const std::string vocab = made["model"]["vocab"].dump();
  made["model"]["merges"] = strings;
  EXPECT_EQ(Tokenizer::load(write("strings.json", made.dump())).encode("the then there"), expected);
  write("new/vocab.json", vocab);
  write("new/merges.txt", lines);
  EXPECT_EQ(Tokenizer::load(path("new")).encode("the then there"), expected);
  write("old/encoder.json", vocab);
  write("old/vocab.bpe", lines);
  EXPECT_EQ(Tokenizer::load(path("old")).encode("the then there"), expected);
}

TEST_F(TokenizerTest, FindsAddedTokensBeforeItCutsWords) {
  json made = file();
  made["added_tokens"] = {{{"id", 262}, {"content", "<|end|>"}, {"special", true}},
                          {{"id", 263}, {"content", "<|"}}};
  const Tokenizer tokenizer = Tokenizer::load(write("added.json", made.dump()));
  EXPECT_EQ(tokenizer.vocab(), 264);
  EXPECT_EQ(tokenizer.encode("<|end|><|en"), (Ids{262, 263, 'e' - '!', 'n' - '!'}));
  EXPECT_EQ(tokenizer.decode({262, 263}), "<|end|><|");
  tokenizer.save(path("again.json"));
  EXPECT_EQ(Tokenizer::load(path("again.json")).encode("a<|end|>"), tokenizer.encode("a<|end|>"));
}

TEST_F(TokenizerTest, NamesTheFaultOfAFile) {
  const auto of = [&](const json& changed) {
    const std::string message = fault([&] { Tokenizer::load(write("bad.json", changed.dump())); });
    return message.starts_with(path("bad.json") + ": ") ? message.substr(path("bad.json: ").size())
                                                        : message;
  };
  const json good = file();
  EXPECT_EQ(of(good), "no fault");
  EXPECT_EQ(fault([&] { Tokenizer::load(path("none.json")); }),
            fmt::format("cannot open {}: No such file or directory", path("none.json")));
  EXPECT_EQ(fault([&] { Tokenizer::load(write("text.json", "{\"model\": ")); }),
            path("text.json") + ": not JSON (at byte 11)");
  EXPECT_EQ(fault([&] { Tokenizer::load(folder_); }),
            folder_ +
                ": a folder without tokenizer.json, vocab.json and merges.txt, or encoder.json and "
                "vocab.bpe");
  EXPECT_EQ(of(json::array()), "it has no model");
  json bad = good;
  bad["model"]["type"] = "WordPiece";
  EXPECT_EQ(of(bad), "the model is WordPiece, not BPE");
  bad = good;
  bad["model"]["merges"].push_back({"x", "yz"});
  EXPECT_EQ(of(bad), "merge 6 (\"x\" and \"yz\"): the vocabulary has no token \"yz\"");
  bad = good;
  bad["model"]["merges"].push_back({"x", "y"});
  EXPECT_EQ(of(bad), "merge 6 (\"x\" and \"y\"): the vocabulary has no token \"xy\"");
  bad = good;
  bad["model"]["merges"].push_back("xy");
  EXPECT_EQ(of(bad), "merge 6: \"xy\" is not a pair of tokens");
  bad = good;
  bad["model"]["vocab"]["th"] = 1000;
  EXPECT_NE(of(bad).find("has no token 2"), std::string::npos) << of(bad);
  bad = good;
  bad["model"]["vocab"]["th"] = 0;
  EXPECT_NE(of(bad).find("two tokens have the id 0"), std::string::npos) << of(bad);
  bad = good;
  bad["model"]["vocab"].erase("!");
  bad["model"]["vocab"]["!!"] = 0;
  EXPECT_EQ(of(bad), "the vocabulary has no token for byte 33");
  bad = good;
  bad["model"]["vocab"]["\u2581the"] = 262;
  EXPECT_EQ(of(bad), "token \"\u2581the\" has a character that stands for no byte: not byte-level");
  bad = good;
  bad["pre_tokenizer"]["add_prefix_space"] = true;
  EXPECT_EQ(of(bad), "pre_tokenizer.add_prefix_space is on, which is not supported");
  bad = good;
  bad["pre_tokenizer"] = {{"type", "Whitespace"}};
  EXPECT_EQ(of(bad), "pre_tokenizer is Whitespace, not ByteLevel");
  bad = good;
  bad["normalizer"] = {{"type", "NFC"}};
  EXPECT_EQ(of(bad), "it has a normalizer, which is not supported");
  bad = good;
  bad["model"]["vocab"]["th"] = "2";
  EXPECT_EQ(of(bad), "the id of token \"th\" is not a whole number");
}

TEST_F(TokenizerTest, DecodingRefusesAnIdThatIsNone) {
  const Tokenizer tokenizer = Tokenizer::train("a", 256);
  EXPECT_EQ(fault([&] {
              tokenizer.decode({1, 256});
            }),
            "token 256 is outside of the vocabulary of 256 tokens");
  EXPECT_EQ(fault([&] { tokenizer.decode({-1}); }),
            "token -1 is outside of the vocabulary of 256 tokens");
}

TEST_F(TokenizerTest, TokenFilesKeepSmallAndLargeVocabularies) {
  for (const int64_t vocab : {int64_t{300}, int64_t{65536}, int64_t{65537}}) {
    const Ids tokens = {0, 1, 299, static_cast<int32_t>(vocab - 1)};
    write_tokens(path("t.bin"), tokens, vocab);
    EXPECT_EQ(read_tokens(path("t.bin")), tokens);
    EXPECT_EQ(std::filesystem::file_size(path("t.bin")),
              20 + tokens.size() * (vocab > 65536 ? 4 : 2));
  }
}

TEST_F(TokenizerTest, NamesTheFaultOfATokenFile) {
  write_tokens(path("good.bin"), {1, 2, 300}, 301);
  const std::string good = read_file(path("good.bin"));
  const auto of = [&](const std::string& bytes) {
    const std::string message = fault([&] { read_tokens(write("bad.bin", bytes)); });
    return message.starts_with(path("bad.bin") + ": ") ? message.substr(path("bad.bin: ").size())
                                                       : message;
  };
  EXPECT_EQ(of(good), "no fault");
  EXPECT_EQ(of("some text"), "not a file of tokens (tutti tokenize makes one)");
  EXPECT_EQ(of(good.substr(0, 15)), "truncated in its header");
  EXPECT_EQ(of(good.substr(0, good.size() - 1)), "truncated inside of token 2");
  std::string bad = good;
  bad[8] = 9;
  EXPECT_EQ(of(bad), "version 9, not 1");
  bad = good;
  bad[12] = 3;
  EXPECT_EQ(of(bad), "3 bytes per token and a vocabulary of 301");
  bad = good;
  bad[bad.size() - 1] = 2;
  EXPECT_EQ(of(bad), "token 556 at place 2 is outside of its vocabulary of 301");
}

TEST_F(TokenizerTest, RecordsOfTokensOverlapByTheLastTarget) {
  const auto data = open_tokens({1, 2, 3, 4, 5, 6, 7, 8}, 3, 10, "t.bin");
  ASSERT_EQ(data->size(), 2);
  const std::vector<at::Tensor> tensors = {at::empty({2, 3}, at::kLong),
                                           at::empty({2, 3}, at::kLong)};
  data->read(1, tensors, 0);
  data->read(0, tensors, 1);
  const auto values = [](const at::Tensor& tensor) {
    return std::vector<int64_t>(tensor.const_data_ptr<int64_t>(),
                                tensor.const_data_ptr<int64_t>() + tensor.numel());
  };
  EXPECT_EQ(values(tensors[0]), (std::vector<int64_t>{4, 5, 6, 1, 2, 3}));
  EXPECT_EQ(values(tensors[1]), (std::vector<int64_t>{5, 6, 7, 2, 3, 4}));
  EXPECT_EQ(fault([] {
              open_tokens({1, 2, 3}, 3, 10, "t.bin");
            }),
            "t.bin: 3 tokens are too few for one record of model.context + 1 = 4 tokens");
  EXPECT_EQ(fault([] {
              open_tokens({1, 2, 10, 4}, 3, 10, "t.bin");
            }),
            "t.bin: token 10 at place 2 is outside model.vocab = 10");
}

TEST_F(TokenizerTest, ATextIsEncodedByALearnedOrALoadedTokenizer) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "in the beginning was the word. ";
  Job job;
  job.model.context = 4;
  job.model.vocab = 272;
  job.data.tokenizer = "bpe";
  const TokenSource learned = open_text_tokens(text, job, "t.txt");
  EXPECT_EQ(learned.tokenizer->vocab(), 272);
  EXPECT_EQ(learned.data->size(),
            (static_cast<int64_t>(learned.tokenizer->encode(text).size()) - 1) / 4);
  learned.tokenizer->save(path("t.json"));
  job.data.tokenizer = path("t.json");
  EXPECT_EQ(open_text_tokens(text, job, "t.txt").data->size(), learned.data->size());
  job.model.vocab = 270;
  EXPECT_EQ(fault([&] { open_text_tokens(text, job, "t.txt"); }),
            path("t.json") + ": its vocabulary of 272 tokens is larger than model.vocab = 270");
  job.data.tokenizer = "bpe";
  job.model.vocab = 255;
  EXPECT_EQ(fault([&] { open_text_tokens(text, job, "t.txt"); }),
            "data.tokenizer = \"bpe\" needs model.vocab of at least 256, not 255");
  job.model.vocab = 300;
  EXPECT_EQ(fault([&] { open_text_tokens("the", job, "t.txt"); }),
            "t.txt: 1 tokens are too few for one record of model.context + 1 = 5 tokens");
  EXPECT_EQ(fault([&] { open_text_tokens("", job, "t.txt"); }), "t.txt: the file is empty");
}

}  // namespace
}  // namespace tutti
