// Encodes words by applying, again and again, the merge with the lowest rank to its leftmost pair.
// Nearly all words of a text are short and have been met before, so a word is first looked up.
#include "data/text/bpe_encode.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>

#include "base/error.h"
#include "data/text/pretokenize.h"

namespace tutti {
namespace {

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

BpeEncoder::BpeEncoder(const Bpe& bpe) {
  bytes_.fill(-1);
  for (size_t id = 0; id < bpe.tokens.size(); ++id) {
    const std::string& token = bpe.tokens[id];
    if (token.size() == 1) bytes_[static_cast<uint8_t>(token[0])] = static_cast<int32_t>(id);
  }
  TUTTI_CHECK(std::find(bytes_.begin(), bytes_.end(), -1) == bytes_.end(),
              "a vocabulary without all bytes");

  // A merge's rank is its place in the list: lower ranks were learned earlier and are
  // applied first.
  for (size_t rank = 0; rank < bpe.merges.size(); ++rank) {
    const Bpe::Merge& merge = bpe.merges[rank];
    merges_[pair_of(merge.left, merge.right)] = {static_cast<uint32_t>(rank), merge.result};
  }
}

inline BpeEncoder::Found BpeEncoder::find(int32_t left, int32_t right) const {
  const Found* found = merges_.find(pair_of(left, right));
  return found != nullptr ? *found : Found{};
}

/// Merges short words. It keeps the tokens, and the merge of each with its right neighbour, in
/// arrays that close up; for few tokens nothing is faster.
int BpeEncoder::merge_short(std::string_view word, int32_t* tokens) const {
  std::array<Found, kShort> merge;
  int count = 0;
  for (const char c : word) tokens[count++] = bytes_[static_cast<uint8_t>(c)];
  for (int i = 0; i + 1 < count; ++i) merge[i] = find(tokens[i], tokens[i + 1]);
  while (count > 1) {
    int best = 0;
    for (int i = 1; i + 1 < count; ++i) {
      if (merge[i].rank < merge[best].rank) best = i;
    }
    if (merge[best].rank == kNever) break;

    // The pair becomes one token, and what is on its right moves up. Only the pairs with the new
    // token have other merges than before.
    tokens[best] = merge[best].result;
    std::copy(tokens + best + 2, tokens + count, tokens + best + 1);
    std::copy(merge.begin() + best + 2, merge.begin() + count, merge.begin() + best + 1);
    --count;
    if (best > 0) merge[best - 1] = find(tokens[best - 1], tokens[best]);
    if (best + 1 < count) merge[best] = find(tokens[best], tokens[best + 1]);
  }
  return count;
}

/// Merges long words. It keeps a heap of (rank, place) over a linked list of tokens. An entry is
/// out of date if the pair at its place has another rank.
void BpeEncoder::merge_long(std::string_view word, std::vector<int32_t>& tokens) const {
  if (word.size() > std::numeric_limits<int32_t>::max()) {
    throw Error(
        fmt::format("a word of {} bytes without a space is too long to be encoded", word.size()));
  }

  // A list of neighbours, in which a merge is a removal: places stay what they are, so entries can
  // name them.
  struct Link {
    int32_t token, previous, next;
  };
  const auto size = static_cast<int32_t>(word.size());
  std::vector<Link> links(word.size());
  for (int32_t i = 0; i < size; ++i)
    links[i] = {bytes_[static_cast<uint8_t>(word[i])], i - 1, i + 1};

  // The heap begins with every pair that is a merge; one that is none can only become one by
  // another merge, which then adds it.
  using Entry = uint64_t;  // rank, then place: the lowest rank first, then the leftmost
  std::vector<Entry> entries;
  const auto entry_at = [&](int32_t at) {
    const int32_t next = links[at].next;
    const uint32_t rank = next < size ? find(links[at].token, links[next].token).rank : kNever;
    return static_cast<Entry>(rank) << 32 | static_cast<uint32_t>(at);
  };
  const auto is_merge = [](Entry entry) { return entry >> 32 != kNever; };
  for (int32_t i = 0; i < size; ++i) {
    if (const Entry entry = entry_at(i); is_merge(entry)) entries.push_back(entry);
  }
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue(std::greater<>(),
                                                                       std::move(entries));
  while (!queue.empty()) {
    // Entries are not removed when their pair changes, so each is compared with the list first. The
    // right token leaves the list and is marked by -1.
    const Entry top = queue.top();
    queue.pop();
    const auto at = static_cast<int32_t>(top & 0xffffffffu);
    Link& link = links[at];
    if (link.token < 0 || entry_at(at) != top) continue;
    Link& right = links[link.next];
    link.token = find(link.token, right.token).result;
    link.next = right.next;
    right.token = -1;

    // Two new pairs have come about: the merged token with its right neighbour, and with its left
    // one.
    if (link.next < size) links[link.next].previous = at;
    if (const Entry entry = entry_at(at); is_merge(entry)) queue.push(entry);
    if (link.previous >= 0) {
      if (const Entry entry = entry_at(link.previous); is_merge(entry)) queue.push(entry);
    }
  }
  for (int32_t i = 0; i < size; i = links[i].next) tokens.push_back(links[i].token);
}

// Appends a word's tokens from the cache, or merges them and remembers the result.
template <typename Table>
inline void BpeEncoder::append(std::string_view word, size_t readable, Table& table,
                               std::vector<int32_t>& tokens) const {
  const typename Table::Key key(word, readable);
  const uint64_t hash = key.hash(word.size());
  if (const auto* slot = table.find(key, word.size(), hash)) {
    tokens.insert(tokens.end(), slot->tokens.begin(), slot->tokens.begin() + slot->count);
    return;
  }
  std::array<int32_t, kShort> merged;
  const int count = merge_short(word, merged.data());
  if (count <= Table::kMostTokens) table.insert(key, word.size(), hash, merged.data(), count);
  tokens.insert(tokens.end(), merged.begin(), merged.begin() + count);
}

void BpeEncoder::encode(std::string_view text, WordCache& cache,
                        std::vector<int32_t>& tokens) const {
  // The cache holds words of two sizes; longer ones are rare, and merged every time.
  static_assert(WordCache::Middle::kLongest <= kShort);
  while (!text.empty()) {
    const std::string_view word = first_word(text);
    if (word.size() <= WordCache::Short::kLongest) {
      append(word, text.size(), cache.short_words, tokens);
    } else if (word.size() <= WordCache::Middle::kLongest) {
      append(word, text.size(), cache.middle_words, tokens);
    } else {
      merge_long(word, tokens);
    }
    text.remove_prefix(word.size());
  }
}

}  // namespace tutti
