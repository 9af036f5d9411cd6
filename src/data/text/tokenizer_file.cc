// Reads and writes vocabulary files. A file may ask for things that this tokenizer does not do;
// these are refused one by one, since ignoring them would give other tokens than the package's.
#include "data/text/tokenizer_file.h"

#include <utf8proc.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "base/error.h"
#include "base/file.h"
#include "base/text/message.h"

namespace tutti {
namespace {

using nlohmann::json;

/// Reads one vocabulary. Every fault names the file. Calls come in the order read_added,
/// read_vocab, read_merges (or split_merge), take.
class Reader {
 public:
  explicit Reader(std::string path) : path_(std::move(path)) {
    const auto characters = byte_characters();
    for (int byte = 0; byte < 256; ++byte) bytes_[characters[byte]] = static_cast<char>(byte);
  }

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(fmt::format("{}: {}", path_, fmt::format(format, std::forward<Args>(args)...)));
  }

  json parse() const {
    try {
      return json::parse(read_file(path_));
    } catch (const json::parse_error& error) {
      fail("not JSON (at byte {})", error.byte);
    }
  }

  /// Tokens that are not made by merges: <|endoftext|> and the like.
  void read_added(const json& file) {
    const auto list = file.find("added_tokens");
    if (list == file.end() || list->is_null()) return;
    if (!list->is_array()) fail("added_tokens is not a list");
    for (const json& token : *list) {
      if (!token.is_object() || !token.contains("id") || !token["id"].is_number_integer() ||
          !token.contains("content") || !token["content"].is_string()) {
        fail("an added token without id or content");
      }
      const auto content = token["content"].get<std::string>();
      if (content.empty()) fail("an added token that is empty");
      for (const char* flag : {"lstrip", "rstrip", "single_word"}) {
        if (token.value(flag, false))
          fail("the added token \"{}\" has {}, which is not supported", content, flag);
      }
      added_[content] = token["id"].get<int64_t>();
      special_[content] = token.value("special", false);
    }
  }

  void read_vocab(const json& vocab) {
    if (!vocab.is_object() || vocab.empty())
      fail("the vocabulary is not an object of tokens and ids");

    // Tokens are collected by id first, because a file may list them in any order.
    std::unordered_map<int64_t, std::string> by_id;
    const auto add = [&](const std::string& text, int64_t id, const std::string& bytes) {
      if (auto [at, is_new] = by_id.try_emplace(id, bytes); !is_new) {
        fail("two tokens have the id {}; one is \"{}\"", id, text);
      }
    };
    for (const auto& [text, id] : vocab.items()) {
      if (!id.is_number_integer()) fail("the id of token \"{}\" is not a whole number", text);
      ids_[text] = static_cast<int32_t>(id.get<int64_t>());
      const auto added = added_.find(text);
      if (added != added_.end() && added->second != id.get<int64_t>()) {
        fail("the added token \"{}\" has two ids, {} and {}", text, added->second,
             id.get<int64_t>());
      }
      add(text, id.get<int64_t>(), added != added_.end() ? text : bytes_of(text));
    }

    // Added tokens may be in the vocabulary, or be listed only among the added ones.
    for (const auto& [text, id] : added_) {
      if (!ids_.contains(text)) add(text, id, text);
    }

    // Ids must be 0, 1, 2, ... without a gap: they are rows of an embedding.
    const auto size = static_cast<int64_t>(by_id.size());
    for (int64_t id = 0; id < size; ++id) {
      const auto token = by_id.find(id);
      if (token == by_id.end()) fail("the vocabulary of {} tokens has no token {}", size, id);
      bpe_.tokens.push_back(std::move(token->second));
    }
    for (const auto& [text, id] : added_)
      bpe_.added.push_back({static_cast<int32_t>(id), special_.at(text)});
    std::sort(bpe_.added.begin(), bpe_.added.end(), [](auto a, auto b) { return a.id < b.id; });
    check_bytes();
  }

  /// Adds a merge of two tokens of the vocabulary; `where` says which merge it is.
  void add_merge(const std::string& left, const std::string& right, const std::string& where) {
    const auto id = [&](const std::string& token) {
      const auto at = ids_.find(token);
      if (at == ids_.end()) {
        fail("{} (\"{}\" and \"{}\"): the vocabulary has no token \"{}\"", where, left, right,
             token);
      }
      return at->second;
    };
    bpe_.merges.push_back({id(left), id(right), id(left + right)});
  }

  void read_merges(const json& merges) {
    if (!merges.is_array()) fail("model.merges is not a list");
    for (size_t i = 0; i < merges.size(); ++i) {
      const json& merge = merges[i];
      const std::string where = fmt::format("merge {}", i);
      if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        add_merge(merge[0].get<std::string>(), merge[1].get<std::string>(), where);
      } else if (merge.is_string()) {
        split_merge(merge.get<std::string>(), where);
      } else {
        fail("{} is not a pair of tokens", where);
      }
    }
  }

  /// A merge as text: two tokens with a space between them.
  void split_merge(const std::string& text, const std::string& where) {
    const size_t space = text.find(' ');
    if (space == std::string::npos || space == 0 || space + 1 == text.size() ||
        text.find(' ', space + 1) != std::string::npos) {
      fail("{}: \"{}\" is not a pair of tokens", where, text);
    }
    add_merge(text.substr(0, space), text.substr(space + 1), where);
  }

  /// The finished vocabulary. A pair that is listed twice counts where it is listed last, as in
  /// the package.
  Bpe take() {
    std::unordered_map<uint64_t, size_t> last;
    const auto key = [](const Bpe::Merge& merge) {
      return static_cast<uint64_t>(merge.left) << 32 | static_cast<uint32_t>(merge.right);
    };
    for (size_t i = 0; i < bpe_.merges.size(); ++i) last[key(bpe_.merges[i])] = i;
    std::vector<Bpe::Merge> kept;
    for (size_t i = 0; i < bpe_.merges.size(); ++i) {
      if (last[key(bpe_.merges[i])] == i) kept.push_back(bpe_.merges[i]);
    }
    bpe_.merges = std::move(kept);
    return std::move(bpe_);
  }

 private:
  /// The bytes for which a token's characters stand.
  std::string bytes_of(const std::string& text) const {
    std::string bytes;
    const auto* at = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
    const auto* end = at + text.size();
    while (at < end) {
      utf8proc_int32_t character = -1;
      const auto length = utf8proc_iterate(at, end - at, &character);
      const auto byte = length > 0 ? bytes_.find(static_cast<char32_t>(character)) : bytes_.end();
      if (byte == bytes_.end())
        fail("token \"{}\" has a character that stands for no byte: not byte-level", text);
      bytes += byte->second;
      at += length;
    }
    if (bytes.empty()) fail("a token that is empty");
    return bytes;
  }

  /// Without a token for every byte some text could not be encoded.
  void check_bytes() const {
    std::array<bool, 256> has{};
    for (const std::string& token : bpe_.tokens) {
      if (token.size() == 1) has[static_cast<uint8_t>(token[0])] = true;
    }
    const auto missing = std::find(has.begin(), has.end(), false);
    if (missing != has.end())
      fail("the vocabulary has no token for byte {}", missing - has.begin());
  }

  std::string path_;
  std::unordered_map<char32_t, char> bytes_;
  std::unordered_map<std::string, int64_t> added_;
  std::unordered_map<std::string, bool> special_;
  std::unordered_map<std::string, int32_t> ids_;
  Bpe bpe_;
};

/// The type of a part of a tokenizer.json, or "none".
std::string type_of(const json& file, const char* part) {
  const auto at = file.find(part);
  if (at == file.end() || at->is_null()) return "none";
  return at->is_object() && at->contains("type") && (*at)["type"].is_string()
             ? (*at)["type"].get<std::string>()
             : "unknown";
}

/// Refuses every part around the model that would change how text is encoded.
void check_parts(const Reader& reader, const json& file) {
  for (const char* part : {"truncation", "padding", "normalizer"}) {
    if (file.contains(part) && !file[part].is_null())
      reader.fail("it has a {}, which is not supported", part);
  }
  for (const char* part : {"post_processor", "decoder"}) {
    const std::string type = type_of(file, part);
    if (type != "none" && type != "ByteLevel") reader.fail("{} is {}, not ByteLevel", part, type);
  }
  if (const std::string type = type_of(file, "pre_tokenizer"); type != "ByteLevel") {
    reader.fail("pre_tokenizer is {}, not ByteLevel", type);
  }
  const json& cut = file["pre_tokenizer"];
  if (cut.value("add_prefix_space", true))
    reader.fail("pre_tokenizer.add_prefix_space is on, which is not supported");
  if (!cut.value("use_regex", true))
    reader.fail("pre_tokenizer.use_regex is off, which is not supported");
}

/// Refuses options of the model that would change its merges.
void check_model(const Reader& reader, const json& model) {
  for (const char* option : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    if (model.contains(option) && !model[option].is_null() && model[option] != "") {
      reader.fail("model.{} is set, which is not supported", option);
    }
  }
  if (model.value("ignore_merges", false))
    reader.fail("model.ignore_merges is on, which is not supported");
  if (!model.contains("vocab") || !model.contains("merges"))
    reader.fail("model has no vocab or no merges");
}

Bpe read_json(const std::string& path) {
  Reader reader(path);
  const json file = reader.parse();
  if (!file.is_object() || !file.contains("model") || !file["model"].is_object())
    reader.fail("it has no model");
  const json& model = file["model"];
  // Old files do not name the type; a model with merges is a BPE.
  std::string type = type_of(file, "model");
  if (type == "unknown" && model.contains("merges")) type = "BPE";
  if (type != "BPE") reader.fail("the model is {}, not BPE", type);
  try {
    check_parts(reader, file);
    check_model(reader, model);
    reader.read_added(file);
    reader.read_vocab(model["vocab"]);
    reader.read_merges(model["merges"]);
  } catch (const json::exception& error) {
    reader.fail("{}", json_fault(error));
  }
  return reader.take();
}

/// GPT-2's two files: the vocabulary as JSON, the merges as lines of text.
Bpe read_pair(const std::string& vocab, const std::string& merges) {
  Reader reader(vocab);
  reader.read_vocab(reader.parse());
  const std::string text = read_file(merges);
  size_t line = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string merge = text.substr(begin, end - begin);
    begin = end + 1;
    ++line;
    if (!merge.empty() && merge.back() == '\r') merge.pop_back();
    if (merge.empty() || merge.starts_with("#version")) continue;
    reader.split_merge(merge, fmt::format("{}:{}", merges, line));
  }
  return reader.take();
}

/// A token as vocabulary files write it: a character per byte, in UTF-8.
std::string characters_of(const std::string& bytes) {
  static const auto kCharacters = byte_characters();
  std::string text;
  for (const char c : bytes) {
    std::array<utf8proc_uint8_t, 4> encoded{};
    const auto length = utf8proc_encode_char(
        static_cast<utf8proc_int32_t>(kCharacters[static_cast<uint8_t>(c)]), encoded.data());
    text.append(reinterpret_cast<const char*>(encoded.data()), static_cast<size_t>(length));
  }
  return text;
}

}  // namespace

Bpe read_tokenizer(const std::string& path) {
  if (!is_folder(path)) return read_json(path);
  const std::string folder = path + "/";
  if (path_exists(folder + "tokenizer.json")) return read_json(folder + "tokenizer.json");
  for (const auto& [vocab, merges] :
       {std::pair{"vocab.json", "merges.txt"}, std::pair{"encoder.json", "vocab.bpe"}}) {
    if (path_exists(folder + vocab)) return read_pair(folder + vocab, folder + merges);
  }
  throw Error(
      fmt::format("{}: a folder without tokenizer.json, vocab.json and merges.txt, or encoder.json "
                  "and vocab.bpe",
                  path));
}

std::string tokenizer_json(const Bpe& bpe) {
  // Added tokens are written as their text, all others as characters that stand for bytes. The file
  // is put together by hand, so that the vocabulary is in the order of its ids, one token per line.
  std::vector<std::string> texts;
  for (const std::string& token : bpe.tokens) texts.push_back(characters_of(token));
  for (const Bpe::Added& added : bpe.added) texts[added.id] = bpe.tokens[added.id];
  const auto quoted = [](const std::string& text) { return json(text).dump(); };
  std::string out =
      "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  "
      "\"added_tokens\": [";
  const char* comma = "";
  for (const Bpe::Added& added : bpe.added) {
    out += fmt::format(
        "{}\n    {{\"id\": {}, \"content\": {}, \"single_word\": false, \"lstrip\": false, "
        "\"rstrip\": false, "
        "\"normalized\": false, \"special\": {}}}",
        comma, added.id, quoted(texts[added.id]), added.special);
    comma = ",";
  }

  // What the package needs to do the same as this tokenizer: cut by GPT-2's pattern, no
  // other steps.
  out += R"(],
  "normalizer": null,
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, )"
         R"("trim_offsets": true, "use_regex": true},
  "post_processor": null,
  "decoder": {"type": "ByteLevel", "add_prefix_space": true, )"
         R"("trim_offsets": true, "use_regex": true},
  "model": {
    "type": "BPE",
    "dropout": null,
    "unk_token": null,
    "continuing_subword_prefix": null,
    "end_of_word_suffix": null,
    "fuse_unk": false,
    "byte_fallback": false,
    "ignore_merges": false,
    "vocab": {)";
  for (size_t id = 0; id < texts.size(); ++id) {
    out += fmt::format("{}\n      {}: {}", id == 0 ? "" : ",", quoted(texts[id]), id);
  }
  out += "\n    },\n    \"merges\": [";
  comma = "";
  for (const Bpe::Merge& merge : bpe.merges) {
    out += fmt::format("{}\n      [{}, {}]", comma, quoted(texts[merge.left]),
                       quoted(texts[merge.right]));
    comma = ",";
  }
  out += "\n    ]\n  }\n}\n";
  return out;
}

}  // namespace tutti
