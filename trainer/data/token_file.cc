#include "trainer/data/token_file.h"

#include <fmt/core.h>
#include <xxhash.h>

#include <algorithm>
#include <limits>

#include "common/base/atomic_file.h"
#include "common/base/check.h"
#include "trainer/data/scaling_index.h"

namespace sortie::trainer {

TokenFile::TokenFile(std::string prefix, MappedFile idx, MappedFile bin,
                     std::vector<std::byte> converted, TokenIndex index)
    : prefix_(std::move(prefix)),
      idx_(std::move(idx)),
      bin_(std::move(bin)),
      converted_(std::move(converted)),
      index_(index) {}

Result<TokenFile> TokenFile::open(const std::string& prefix) {
  SORTIE_ASSIGN_OR_RETURN(MappedFile idx, MappedFile::open(prefix + ".idx"));
  SORTIE_ASSIGN_OR_RETURN(MappedFile bin, MappedFile::open(prefix + ".bin"));
  const std::string_view head(reinterpret_cast<const char*>(idx.data()),
                              std::min(idx.size(), kIndexMagic.size()));
  const std::string meta_file = prefix + ".meta.json";
  std::error_code ignored;
  std::vector<std::byte> converted;
  if (head != kIndexMagic && std::filesystem::exists(meta_file, ignored)) {
    SORTIE_ASSIGN_OR_RETURN(const std::string meta, read_file(meta_file));
    SORTIE_ASSIGN_OR_RETURN(converted, megatron_index_of_scaling(idx.bytes(), meta, prefix));
  }
  SORTIE_ASSIGN_OR_RETURN(
      const TokenIndex index,
      TokenIndex::parse(converted.empty() ? idx.bytes() : std::span<const std::byte>(converted),
                        bin.size(), prefix));
  return TokenFile(prefix, std::move(idx), std::move(bin), std::move(converted), index);
}

template <class T>
Result<> TokenFile::read_as(std::uint64_t position, std::int64_t vocab_size,
                            std::span<std::int32_t> out) const {
  const std::byte* from = bin_.data() + position * sizeof(T);
  // Two loops that the compiler vectorises: the first widens, the second checks the range of ids.
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<std::int32_t>(load_unaligned<T>(from + i * sizeof(T)));
  const std::uint64_t limit = static_cast<std::uint64_t>(vocab_size);
  std::uint64_t bad = 0;
  for (std::size_t i = 0; i < out.size(); ++i)
    bad |= static_cast<std::uint64_t>(static_cast<std::uint64_t>(static_cast<std::int64_t>(
                                          load_unaligned<T>(from + i * sizeof(T)))) >= limit);
  if (bad == 0) return {};
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto id = static_cast<std::int64_t>(load_unaligned<T>(from + i * sizeof(T)));
    if (id >= 0 && id < vocab_size) continue;
    const std::uint64_t place = position + i;
    const std::uint64_t document = index_.document_of(place);
    return fail(
        ErrorCode::data,
        fmt::format("{}.bin: document {}, token {}: id {} is outside the vocabulary of {}; "
                    "set model.vocab_size to that of the tokenizer, or build the data "
                    "with the right tokenizer",
                    prefix_, document, place - index_.document_begin(document), id, vocab_size));
  }
  return {};
}

Result<> TokenFile::read(std::uint64_t position, std::int64_t vocab_size,
                         std::span<std::int32_t> out) const {
  SORTIE_CHECK(position <= num_tokens() && out.size() <= num_tokens() - position,
               "tokens {} + {} of {}", position, out.size(), num_tokens());
  SORTIE_CHECK(vocab_size > 0 && vocab_size <= std::numeric_limits<std::int32_t>::max());
  return with_token_type(index_.type(),
                         [&]<class T>(T) { return read_as<T>(position, vocab_size, out); });
}

std::string TokenFile::fingerprint() const {
  constexpr std::size_t kBlocks = 64;
  constexpr std::size_t kBlockBytes = 4096;
  XXH3_state_t* state = XXH3_createState();
  SORTIE_CHECK(state != nullptr);
  XXH3_128bits_reset(state);
  XXH3_128bits_update(state, idx_.data(), idx_.size());
  const std::uint64_t bytes = bin_.size();
  XXH3_128bits_update(state, &bytes, sizeof bytes);
  for (std::size_t i = 0; i < kBlocks && bytes > 0; ++i) {
    const std::uint64_t room = bytes > kBlockBytes ? bytes - kBlockBytes : 0;
    const std::uint64_t at = room / (kBlocks - 1) * i;
    XXH3_128bits_update(state, bin_.data() + at, std::min<std::uint64_t>(kBlockBytes, bytes - at));
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state);
  XXH3_freeState(state);
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace sortie::trainer
