// Failures abort: OpenSSL refuses nothing here that a user could cause.
#include "base/hash.h"

#include <openssl/evp.h>

#include "base/error.h"

namespace tutti {

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  TUTTI_CHECK(context_ != nullptr, "no memory for a hash");
  const int ok = EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(context_), EVP_sha256(), nullptr);
  TUTTI_CHECK(ok == 1, "SHA-256 is not available");
}

Sha256::~Sha256() { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context_)); }

void Sha256::add(std::span<const std::byte> bytes) {
  EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_), bytes.data(), bytes.size());
}

void Sha256::add(std::string_view text) { add(std::as_bytes(std::span(text.data(), text.size()))); }

void Sha256::add(uint64_t value) {
  std::array<std::byte, 8> bytes;
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>(value >> (8 * i));
  add(std::span<const std::byte>(bytes));
}

Digest Sha256::finish() {
  Digest digest;
  const int ok = EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(context_), digest.data(), nullptr);
  TUTTI_CHECK(ok == 1, "a hash was finished twice");
  return digest;
}

Digest sha256(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.add(bytes);
  return hash.finish();
}

std::string hex(const Digest& digest) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * digest.size());
  for (uint8_t byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::optional<Digest> from_hex(std::string_view text) {
  const auto digit = [](char c) {
    return '0' <= c && c <= '9' ? c - '0' : 'a' <= c && c <= 'f' ? c - 'a' + 10 : -1;
  };
  Digest digest;
  if (text.size() != 2 * digest.size()) return std::nullopt;
  for (size_t i = 0; i < digest.size(); ++i) {
    const int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    digest[i] = static_cast<uint8_t>(high << 4 | low);
  }
  return digest;
}

}  // namespace tutti
