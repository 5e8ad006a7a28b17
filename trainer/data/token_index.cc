#include "trainer/data/token_index.h"

#include <fmt/core.h>

namespace sortie::trainer {
namespace {

std::unexpected<Error> broken(std::string_view name, std::string_view what) {
  return fail(ErrorCode::data, fmt::format("{}.idx: {}; build the file again", name, what));
}

}  // namespace

Result<TokenIndex> TokenIndex::parse(std::span<const std::byte> bytes, std::uint64_t bin_bytes,
                                     std::string_view name) {
  const std::byte* data = bytes.data();
  if (bytes.size() < kIndexHeaderBytes)
    return broken(name, fmt::format("truncated: {} bytes, the header alone has {}", bytes.size(),
                                    kIndexHeaderBytes));
  if (std::memcmp(data, kIndexMagic.data(), kIndexMagic.size()) != 0)
    return broken(name, "wrong magic: not a Megatron index, which starts with MMIDIDX");
  const auto version = load_unaligned<std::uint64_t>(data + 9);
  if (version != kIndexVersion)
    return broken(name,
                  fmt::format("version {}, only version {} is known", version, kIndexVersion));
  const auto code = load_unaligned<std::uint8_t>(data + 17);
  const auto type = token_type_from_code(code);
  if (!type)
    return broken(name, fmt::format("element type {} is not an integer type of tokens", code));

  TokenIndex index;
  index.type_ = *type;
  index.num_sequences_ = load_unaligned<std::uint64_t>(data + 18);
  index.num_bounds_ = load_unaligned<std::uint64_t>(data + 26);
  const std::uint64_t body = bytes.size() - kIndexHeaderBytes;
  // Compared by division, because the products below could overflow.
  const bool countable = index.num_sequences_ <= body / 12 && index.num_bounds_ <= body / 8;
  const std::uint64_t wanted = 12 * index.num_sequences_ + 8 * index.num_bounds_;
  if (!countable || wanted > body)
    return broken(name,
                  fmt::format("truncated: {} bytes, but {} sequences and {} document bounds need "
                              "{}",
                              bytes.size(), index.num_sequences_, index.num_bounds_,
                              countable ? std::to_string(kIndexHeaderBytes + wanted) : "more"));
  if (wanted < body)
    return broken(name, fmt::format("{} bytes, but {} sequences and {} document bounds need {}{}",
                                    bytes.size(), index.num_sequences_, index.num_bounds_,
                                    kIndexHeaderBytes + wanted,
                                    body - wanted == index.num_sequences_
                                        ? " (sequence modes of multimodal data are not supported)"
                                        : ""));
  index.lengths_ = data + kIndexHeaderBytes;
  index.pointers_ = index.lengths_ + 4 * index.num_sequences_;
  index.bounds_ = index.pointers_ + 8 * index.num_sequences_;
  SORTIE_TRY(index.check_sequences(bin_bytes, name));
  SORTIE_TRY(index.check_documents(name));
  return index;
}

Result<> TokenIndex::check_sequences(std::uint64_t bin_bytes, std::string_view name) {
  const std::uint64_t size = token_bytes(type_);
  std::uint64_t at = 0;  // bytes; at most 2^63: every step is checked against bin_bytes
  for (std::uint64_t i = 0; i < num_sequences_; ++i) {
    const std::int32_t length = sequence_length(i);
    const auto pointer = load_unaligned<std::uint64_t>(pointers_ + 8 * i);
    if (length < 0) return broken(name, fmt::format("sequence {} has length {}", i, length));
    const std::uint64_t bytes = static_cast<std::uint64_t>(length) * size;
    if (pointer > bin_bytes || bytes > bin_bytes - pointer)
      return fail(
          ErrorCode::data,
          fmt::format("{0}.bin: has {1} bytes, but {0}.idx puts sequence {2} ({3} bytes) at "
                      "byte {4}; the two files do not belong together or the .bin is "
                      "truncated",
                      name, bin_bytes, i, bytes, pointer));
    if (pointer != at)
      return broken(name, fmt::format("sequence {} starts at byte {}, but the sequences before it "
                                      "end at byte {}",
                                      i, pointer, at));
    at += bytes;
  }
  if (at != bin_bytes)
    return fail(ErrorCode::data,
                fmt::format("{0}.bin: has {1} bytes, but the lengths in {0}.idx add up to {2}; the "
                            "two files do not belong together",
                            name, bin_bytes, at));
  num_tokens_ = at / size;
  return {};
}

Result<> TokenIndex::check_documents(std::string_view name) const {
  if (num_bounds_ == 0)
    return broken(name, "no document bounds, at least the leading 0 is required");
  if (bound(0) != 0)
    return broken(name, fmt::format("document bounds start at {}, not 0", bound(0)));
  for (std::uint64_t i = 1; i < num_bounds_; ++i)
    if (bound(i) < bound(i - 1))
      return broken(name, fmt::format("document bounds fall from {} to {} at document {}",
                                      bound(i - 1), bound(i), i));
  if (bound(num_bounds_ - 1) != num_sequences_)
    return broken(name, fmt::format("document bounds end at sequence {}, but there are {}",
                                    bound(num_bounds_ - 1), num_sequences_));
  return {};
}

std::uint64_t TokenIndex::document_begin(std::uint64_t document) const {
  const std::uint64_t sequence = bound(document);
  if (sequence == num_sequences_) return num_tokens_;
  return load_unaligned<std::uint64_t>(pointers_ + 8 * sequence) / token_bytes(type_);
}

std::uint64_t TokenIndex::document_of(std::uint64_t position) const {
  std::uint64_t low = 0;
  std::uint64_t high = num_documents();  // the answer is in [low, high)
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (document_begin(middle) <= position)
      low = middle;
    else
      high = middle;
  }
  return low;
}

}  // namespace sortie::trainer
