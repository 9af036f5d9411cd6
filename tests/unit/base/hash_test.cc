#include "base/hash.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace tutti {

TEST(Hash, Sha256GivesTheKnownAnswers) {
  EXPECT_EQ(hex(sha256({})), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  const std::string text = "abc";
  EXPECT_EQ(hex(sha256(std::as_bytes(std::span(text.data(), text.size())))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Hash, OfEachOfManyInputsIsThatOfItAlone) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::vector<std::byte>> inputs(random() % 5);
    std::vector<std::span<const std::byte>> spans;
    std::vector<Digest> expected;
    for (auto& input : inputs) {
      input.resize(random() % 200);  // all lengths of the last block, and of the padding
      for (std::byte& byte : input) byte = static_cast<std::byte>(random());
      spans.emplace_back(input);
      expected.push_back(sha256(input));
    }
    EXPECT_EQ(sha256_each(spans), expected);
  }
}

TEST(Hash, ACutStreamHashesLikeTheWholeText) {
  Sha256 whole, cut;
  whole.add("the layout is not part of the math");
  cut.add("the layout is ");
  cut.add("");
  cut.add("not part of the math");
  EXPECT_EQ(whole.finish(), cut.finish());
}

TEST(Hash, AnIntegerCountsAsEightLittleEndianBytes) {
  Sha256 number, bytes;
  number.add(uint64_t{0x0807060504030201});
  bytes.add("\x01\x02\x03\x04\x05\x06\x07\x08");
  EXPECT_EQ(number.finish(), bytes.finish());
}

TEST(Hash, Hash64IsPinned) {
  // Parameters are initialised by it: another value is another job.
  EXPECT_EQ(hash64(""), 0xefd01f60ba992926u);
  EXPECT_EQ(hash64("blocks.0.attention.qkv.weight"), 0xc9a8cd6211f0c0c8u);
}

TEST(Hash, Hash64TellsManyShortNamesApart) {
  std::set<uint64_t> seen;
  for (int i = 0; i < 10000; ++i) seen.insert(hash64("blocks." + std::to_string(i) + ".weight"));
  EXPECT_EQ(seen.size(), 10000u);
}

}  // namespace tutti
