// What is said of an exception that is not ours.
#include "base/text/message.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <new>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/bytes.h"
#include "base/error.h"

namespace tutti {
namespace {

using nlohmann::json;

std::string said(const std::function<void()>& act) {
  try {
    act();
  } catch (const std::exception& failure) {
    return message_of(failure);
  }
  return "nothing was thrown";
}

TEST(Message, OfMemoryThatRanOutSaysWhatIsLeftAndWhatTakesLess) {
  // Thrown by hand: a sanitizer ends a process that really asks for so much.
  for (const auto& act :
       {std::function<void()>([] { throw std::bad_alloc(); }),
        std::function<void()>([] { throw std::length_error("vector::_M_default_append"); })}) {
    const std::string text = said(act);
    EXPECT_TRUE(text.starts_with("memory ran out")) << text;
    EXPECT_NE(text.find("iB are available on this machine"), std::string::npos) << text;
    EXPECT_NE(text.find("a smaller train.micro_batch_size"), std::string::npos) << text;
  }
  const std::string known = memory_ran_out(0x1p42);
  EXPECT_TRUE(known.starts_with("memory ran out where 4 TiB were asked for: ")) << known;
}

TEST(Message, OfAPathNamesItAndTheReason) {
  EXPECT_EQ(said([] { std::filesystem::remove_all(std::string(300, 'x')); }),
            "cannot use " + std::string(300, 'x') + ": File name too long");
}

TEST(Message, OfOursIsItselfAndOfTorchWithoutItsStack) {
  EXPECT_EQ(said([] { throw Error("the file is empty\nor is it"); }),
            "the file is empty\nor is it");
  EXPECT_EQ(said([] {
              throw std::runtime_error("bad shape\nException raised from f at x.cpp:1\nframe #0");
            }),
            "bad shape");
}

TEST(Message, OfJsonHasNothingOfTheParsers) {
  const auto fault = [](const std::function<void()>& act) {
    try {
      act();
    } catch (const json::exception& failure) {
      return json_fault(failure);
    }
    return std::string("nothing was thrown");
  };
  EXPECT_EQ(fault([] { (void)json::parse("{\"a\": x}"); }), "not JSON from byte 7 on");
  EXPECT_EQ(fault([] { (void)json(7).at("a"); }),
            "a value is missing, or is not of the kind that belongs there");
}

TEST(Message, NamesThatAreNoUtf8BecomeUtf8) {
  EXPECT_EQ(as_utf8("caf\xc3\xa9 \"x\"\n"), "caf\xc3\xa9 \"x\"\n");
  EXPECT_EQ(as_utf8("caf\xe9"), "caf_");
  EXPECT_EQ(as_utf8("\xff\xfe.toml"), "__.toml");
}

TEST(Message, SizesHaveThreeDigitsOrMoreAndTheirUnit) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(999), "999 B");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(1010 << 20), "1010 MiB");
  EXPECT_EQ(bytes_text(1.234 * (1 << 30)), "1.23 GiB");
  EXPECT_EQ(bytes_text(140.62 * (1 << 30)), "140.6 GiB");
  EXPECT_EQ(bytes_text((1 << 20) - 1), "1 MiB");
  EXPECT_EQ(bytes_text(0x1p50), "1024 TiB");
}

TEST(Message, SaysRatesInThreeDigits) {
  EXPECT_EQ(rate_text(0, "B"), "0 B/s");
  EXPECT_EQ(rate_text(999.4, "B"), "999 B/s");
  EXPECT_EQ(rate_text(999.6, "B"), "1 kB/s");
  EXPECT_EQ(rate_text(104.2e9, "B"), "104 GB/s");
  EXPECT_EQ(rate_text(4.2512e12, "B"), "4.25 TB/s");
  EXPECT_EQ(rate_text(9.9e9, "bit"), "9.9 Gbit/s");
  EXPECT_EQ(rate_text(1.9785e15, "FLOP"), "1.98 PFLOP/s");
}

TEST(Message, SizesAreReadAsTheyArePrinted) {
  for (const double bytes : {1.0, 1536.0, 0x1p34, 1.25 * 0x1p40})
    EXPECT_EQ(static_cast<double>(parse_bytes(bytes_text(bytes))), bytes) << bytes_text(bytes);
  EXPECT_EQ(parse_bytes("1.5GB"), 1500000000);
  for (const char* text : {"", "GiB", "0", "-1 MiB", "3 gib", "1e30"})
    EXPECT_THROW(parse_bytes(text), ConfigError) << text;
}

}  // namespace
}  // namespace tutti
