#include "trainer/tokenizer/hf_decoder.h"

#include <optional>

#include "trainer/tokenizer/byte_letters.h"
#include "trainer/tokenizer/unicode.h"

namespace sortie::trainer::hf {
namespace {

using Texts = std::vector<std::string>;

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at)) {
    text.replace(at, from.size(), to);
    at += to.size();
  }
}

std::string joined(const Texts& texts, std::string_view between) {
  std::string all;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (i > 0) all += between;
    all += texts[i];
  }
  return all;
}

/// Returns the byte of a token such as "<0x1F>".
std::optional<char> byte_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return std::nullopt;
    value = value * 16 + digit;
  }
  return static_cast<char>(value);
}

void apply(const ByteLevelDecoder&, Texts& texts) {
  std::string bytes;
  for (const std::string& text : texts) bytes += bytes_of_token(text).value_or(text);
  std::string repaired;
  texts = {std::string(repair_utf8(bytes, repaired))};
}

void apply(const ByteFallbackDecoder&, Texts& texts) {
  Texts out;
  std::string bytes;
  const auto flush = [&] {
    if (valid_utf8_prefix(bytes) == bytes.size()) {
      if (!bytes.empty()) out.push_back(bytes);
    } else {
      for (std::size_t i = 0; i < bytes.size(); ++i) out.emplace_back(kReplacementChar);
    }
    bytes.clear();
  };
  for (std::string& text : texts) {
    if (const auto byte = byte_token(text)) {
      bytes += *byte;
    } else {
      flush();
      out.push_back(std::move(text));
    }
  }
  flush();
  texts = std::move(out);
}

void apply(const FuseDecoder&, Texts& texts) {
  texts = {joined(texts, "")};
}

void apply(const StripDecoder& strip, Texts& texts) {
  for (std::string& text : texts) {
    std::string_view rest = text;
    for (std::size_t i = 0; i < strip.start && rest.starts_with(strip.text); ++i)
      rest.remove_prefix(strip.text.size());
    for (std::size_t i = 0; i < strip.stop && rest.ends_with(strip.text); ++i)
      rest.remove_suffix(strip.text.size());
    text = std::string(rest);
  }
}

void apply(const MetaspaceDecoder& metaspace, Texts& texts) {
  for (std::size_t i = 0; i < texts.size(); ++i)
    replace_all(texts[i], metaspace.replacement, i == 0 && metaspace.drop_first ? "" : " ");
}

void apply(const Replace& replace, Texts& texts) {
  for (std::string& text : texts) replace_all(text, replace.from, replace.to);
}

}  // namespace

TokenDecoder::TokenDecoder(const Spec& spec)
    : tokens_(spec.model.tokens),
      special_(spec.model.tokens.size()),
      decoders_(spec.decoders),
      bytes_only_(decoders_.size() == 1 && std::holds_alternative<ByteLevelDecoder>(decoders_[0])) {
  for (const AddedToken& token : spec.added_tokens)
    special_[static_cast<std::size_t>(token.id)] = token.special;
  if (!bytes_only_) return;
  for (std::string& token : tokens_)
    if (auto bytes = bytes_of_token(token)) token = std::move(*bytes);
}

std::string TokenDecoder::decode_bytes(std::span<const std::int32_t> ids) const {
  std::string bytes;
  for (const std::int32_t id : ids) {
    if (!is_known(id))
      bytes += kReplacementChar;
    else if (!special_[static_cast<std::size_t>(id)])
      bytes += tokens_[static_cast<std::size_t>(id)];
  }
  std::string repaired;
  return std::string(repair_utf8(bytes, repaired));
}

std::string TokenDecoder::decode(std::span<const std::int32_t> ids) const {
  if (bytes_only_) return decode_bytes(ids);
  Texts texts;
  for (const std::int32_t id : ids) {
    if (!is_known(id))
      texts.emplace_back(kReplacementChar);
    else if (!special_[static_cast<std::size_t>(id)])
      texts.push_back(tokens_[static_cast<std::size_t>(id)]);
  }
  if (decoders_.empty()) return joined(texts, " ");
  for (const Decoder& decoder : decoders_)
    std::visit([&](const auto& one) { apply(one, texts); }, decoder);
  return joined(texts, "");
}

}  // namespace sortie::trainer::hf
