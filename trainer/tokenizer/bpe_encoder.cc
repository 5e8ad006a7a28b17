#include "trainer/tokenizer/bpe_encoder.h"

#include <fmt/core.h>

#include "trainer/tokenizer/byte_letters.h"
#include "trainer/tokenizer/unicode.h"

namespace sortie::trainer {

BpeEncoder::BpeEncoder(const hf::Model& model, bool byte_level)
    : byte_level_(byte_level),
      whole_words_(model.ignore_merges),
      fuse_unknown_(model.fuse_unknown),
      unknown_(model.unknown),
      byte_fallback_(model.byte_fallback),
      merges_(model.merges) {
  byte_ids_.fill(-1);
  fallback_ids_.fill(-1);
  for (std::size_t i = 0; i < model.tokens.size(); ++i) {
    const std::string& token = model.tokens[i];
    if (token.empty()) continue;
    const auto id = static_cast<std::int32_t>(i);
    if (!byte_level) {
      ids_.emplace(token, id);
      continue;
    }
    const auto bytes = hf::bytes_of_token(token);
    if (!bytes) continue;  // an added token, which no word equals
    if (bytes->size() == 1) byte_ids_[static_cast<unsigned char>(bytes->front())] = id;
    if (whole_words_) ids_.emplace(*bytes, id);
  }
  if (!byte_fallback_) return;
  for (std::size_t byte = 0; byte < 256; ++byte)
    if (const auto found = ids_.find(fmt::format("<0x{:02X}>", byte)); found != ids_.end())
      fallback_ids_[byte] = found->second;
}

std::int32_t BpeEncoder::id_of(std::string_view symbol) const {
  if (byte_level_) return byte_ids_[static_cast<unsigned char>(symbol.front())];
  const auto found = ids_.find(symbol);
  return found == ids_.end() ? -1 : found->second;
}

bool BpeEncoder::append_as_bytes(std::string_view symbol, std::vector<std::int32_t>& ids) const {
  for (const char byte : symbol)
    if (fallback_ids_[static_cast<unsigned char>(byte)] < 0) return false;
  for (const char byte : symbol) ids.push_back(fallback_ids_[static_cast<unsigned char>(byte)]);
  return true;
}

void BpeEncoder::symbols_of(std::string_view word, std::vector<std::int32_t>& ids) const {
  bool pending = false;  // an unknown symbol is not yet appended; later ones may be fused with it
  for (std::size_t at = 0; at < word.size();) {
    const std::string_view symbol = word.substr(at, byte_level_ ? 1 : char_bytes(word[at]));
    at += symbol.size();
    if (const std::int32_t id = id_of(symbol); id >= 0) {
      if (pending) ids.push_back(*unknown_);
      pending = false;
      ids.push_back(id);
    } else if (byte_fallback_ && append_as_bytes(symbol, ids)) {
      // As in the package, an earlier unknown symbol stays pending.
    } else if (unknown_) {
      if (pending && !fuse_unknown_) ids.push_back(*unknown_);
      pending = true;
    }
  }
  if (pending) ids.push_back(*unknown_);
}

void BpeEncoder::encode(std::string_view word, std::size_t readable, Scratch& scratch,
                        std::vector<std::int32_t>& ids) const {
  const bool cached = word.size() <= WordCache::kMaxWord;
  if (cached) {
    if (const auto known = scratch.cache.find(word, readable); !known.empty()) {
      ids.insert(ids.end(), known.begin(), known.end());
      return;
    }
  }
  std::vector<std::int32_t>& own = scratch.merge.ids;
  own.clear();
  const auto whole = whole_words_ ? ids_.find(word) : ids_.end();
  if (whole != ids_.end()) {
    own.push_back(whole->second);
  } else {
    symbols_of(word, own);
    merges_.apply(scratch.merge);
  }
  ids.insert(ids.end(), own.begin(), own.end());
  if (cached && !own.empty()) scratch.cache.insert(word, own);
}

}  // namespace sortie::trainer
