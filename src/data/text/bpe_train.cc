// Byte pair encoding over counted words.
//   1. The words of the text are taken once each, with a count; a word is a row of tokens in
//      one arena.
//   2. All pairs are counted, and for each the words that have it are listed.
//   3. The most frequent pair (among equals: the lower ids) becomes a token in those words, which
//      changes the pairs next to it.
// Counts in the heap may be out of date: an entry whose count is not the pair's any more goes back
// with the right one.
#include <algorithm>
#include <numeric>
#include <queue>
#include <unordered_map>

#include "base/error.h"
#include "base/hash.h"
#include "data/text/bpe.h"
#include "data/text/flat_map.h"
#include "data/text/pretokenize.h"

namespace tutti {
namespace {

struct Word {
  int64_t begin;  ///< place of its first token in the arena
  int64_t length;
  int64_t count;
};

class BpeTrainer {
 public:
  /// The vocabulary begins with the 256 bytes.
  explicit BpeTrainer(int64_t vocab) : vocab_(vocab) {
    for (const uint8_t byte : byte_order()) {
      ids_[byte] = static_cast<int32_t>(bpe_.tokens.size());
      add_token(std::string(1, static_cast<char>(byte)));
    }
  }

  Bpe train(std::string_view text) {
    count_words(text);
    count_pairs();
    while (static_cast<int64_t>(bpe_.tokens.size()) < vocab_ && !queue_.empty()) {
      Candidate top = queue_.top();
      queue_.pop();
      const int64_t count = *counts_.find(top.pair);

      // A pair that occurs nowhere ends the training: all others are as rare.
      if (top.count != count) {
        top.count = count;
        queue_.push(top);
      } else if (count < 1) {
        break;
      } else {
        learn(top);
      }
    }
    keep_last_of_equal_pairs();
    return std::move(bpe_);
  }

 private:
  /// A pair in the heap. The most frequent is on top, among equals the one with the lower ids.
  struct Candidate {
    int64_t count;
    uint64_t pair;
    int64_t places;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  static uint64_t pair_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  }

  /// The id of the token with these bytes, which may exist.
  int32_t add_token(const std::string& bytes) {
    auto [at, is_new] = by_bytes_.try_emplace(bytes, static_cast<int32_t>(bpe_.tokens.size()));
    if (is_new) bpe_.tokens.push_back(bytes);
    return at->second;
  }

  void count_words(std::string_view text) {
    // A hash table of places in `spellings`, with open addressing. The text stays where it is, and
    // words are views of it.
    std::vector<std::string_view> spellings;
    std::vector<uint32_t> table(1 << 14, 0);  // place in spellings + 1
    std::vector<uint64_t> hashes;
    while (!text.empty()) {
      const std::string_view spelling = first_word(text);
      text.remove_prefix(spelling.size());
      const uint64_t hash = hash64(spelling);
      size_t slot = hash & (table.size() - 1);
      while (table[slot] != 0 &&
             (hashes[table[slot] - 1] != hash || spellings[table[slot] - 1] != spelling)) {
        slot = (slot + 1) & (table.size() - 1);
      }

      if (table[slot] != 0) {
        ++words_[table[slot] - 1].count;
        continue;
      }
      words_.push_back({0, static_cast<int64_t>(spelling.size()), 1});
      spellings.push_back(spelling);
      hashes.push_back(hash);
      table[slot] = static_cast<uint32_t>(words_.size());

      // Half full at most; the hashes are kept, so growing reads no word again.
      if (words_.size() * 2 > table.size()) {
        table.assign(table.size() * 2, 0);
        for (size_t i = 0; i < hashes.size(); ++i) {
          size_t to = hashes[i] & (table.size() - 1);
          while (table[to] != 0) to = (to + 1) & (table.size() - 1);
          table[to] = static_cast<uint32_t>(i + 1);
        }
      }
    }

    // Every word starts as one token per byte, all in one arena. Merges only shorten it, in place.
    for (size_t i = 0; i < words_.size(); ++i) {
      words_[i].begin = static_cast<int64_t>(arena_.size());
      for (const char c : spellings[i]) arena_.push_back(ids_[static_cast<uint8_t>(c)]);
    }
  }

  /// Adds to a pair's count, and notes the word if the pair is new in it. A word is noted once,
  /// since its changes come one after the other.
  void change(uint64_t pair, int64_t by, int32_t word) {
    counts_[pair] += by;
    if (by < 0) return;
    std::vector<int32_t>& places = fresh_[pair];
    if (places.empty() || places.back() != word) places.push_back(word);
  }

  void count_pairs() {
    for (size_t i = 0; i < words_.size(); ++i) {
      const int32_t* tokens = arena_.data() + words_[i].begin;
      for (int64_t k = 0; k + 1 < words_[i].length; ++k) {
        change(pair_of(tokens[k], tokens[k + 1]), words_[i].count, static_cast<int32_t>(i));
      }
    }
    queue_fresh();
  }

  /// Puts pairs with new places into the heap. A pair may be there several times, each with words
  /// of its own.
  void queue_fresh() {
    for (auto& [pair, words] : fresh_) {
      const int64_t count = *counts_.find(pair);
      if (count < 1) continue;
      queue_.push({count, pair, static_cast<int64_t>(places_.size())});
      places_.push_back(std::move(words));
    }
    fresh_.clear();
  }

  void learn(const Candidate& top) {
    const auto left = static_cast<int32_t>(top.pair >> 32);
    const auto right = static_cast<int32_t>(top.pair & 0xffffffffu);
    // Two pairs can spell the same token. It then keeps its id, and the vocabulary does not grow.
    const int32_t result = add_token(bpe_.tokens[left] + bpe_.tokens[right]);
    bpe_.merges.push_back({left, right, result});
    const std::vector<int32_t> words = std::move(places_[top.places]);
    for (const int32_t word : words) merge_in(word, left, right, result);
    queue_fresh();
  }

  /// Replaces the pair in a word from left to right. The count of the pair itself is left as it is,
  /// since it never occurs again.
  void merge_in(int32_t word, int32_t left, int32_t right, int32_t result) {
    Word& row = words_[word];
    int32_t* tokens = arena_.data() + row.begin;
    int64_t to = 0;
    for (int64_t from = 0; from < row.length; ++from, ++to) {
      if (tokens[from] != left || from + 1 >= row.length || tokens[from + 1] != right) {
        tokens[to] = tokens[from];
        continue;
      }

      // The neighbours of the pair lose a pair with one of its tokens, and gain one with
      // the result.
      tokens[to] = result;
      if (to > 0) {
        change(pair_of(tokens[to - 1], left), -row.count, word);
        change(pair_of(tokens[to - 1], result), row.count, word);
      }
      ++from;
      if (from + 1 < row.length) {
        change(pair_of(right, tokens[from + 1]), -row.count, word);
        change(pair_of(result, tokens[from + 1]), row.count, word);
      }
    }
    row.length = to;
  }

  /// A pair whose token another pair had spelled before can be learned twice; it counts where it
  /// was learned last.
  void keep_last_of_equal_pairs() {
    FlatMap<char> seen;
    std::vector<Bpe::Merge> kept;
    for (auto merge = bpe_.merges.rbegin(); merge != bpe_.merges.rend(); ++merge) {
      char& known = seen[pair_of(merge->left, merge->right)];
      if (known == 0) kept.push_back(*merge);
      known = 1;
    }
    bpe_.merges.assign(kept.rbegin(), kept.rend());
  }

  int64_t vocab_;
  Bpe bpe_;
  std::array<int32_t, 256> ids_{};
  std::unordered_map<std::string, int32_t> by_bytes_;
  std::vector<Word> words_;
  std::vector<int32_t> arena_;
  FlatMap<int64_t> counts_;
  /// pairs with new places, and the words that these are in
  std::unordered_map<uint64_t, std::vector<int32_t>> fresh_;
  std::vector<std::vector<int32_t>> places_;
  std::priority_queue<Candidate> queue_;
};

}  // namespace

std::array<char32_t, 256> byte_characters() {
  std::array<char32_t, 256> characters{};
  char32_t next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    // Visible characters of Latin-1 without the soft hyphen, as in GPT-2's bytes_to_unicode.
    const bool visible =
        (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    characters[byte] = visible ? byte : next++;
  }
  return characters;
}

std::array<uint8_t, 256> byte_order() {
  const auto characters = byte_characters();
  std::array<uint8_t, 256> order{};
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](uint8_t a, uint8_t b) { return characters[a] < characters[b]; });
  return order;
}

Bpe train_bpe(std::string_view text, int64_t vocab) {
  if (vocab < 256)
    throw Error(fmt::format("a vocabulary of {} tokens has no room for the 256 bytes", vocab));
  return BpeTrainer(vocab).train(text);
}

}  // namespace tutti
