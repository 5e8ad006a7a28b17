#include "trainer/data/epoch_order.h"

#include <algorithm>

#include "common/base/check.h"
#include "trainer/random/random.h"

namespace sortie::trainer {
namespace {

/// Distinct keys for the two shuffles of an epoch.
std::uint64_t shuffle_key(std::uint64_t seed, std::uint64_t epoch, std::uint64_t purpose) {
  return random_bits(random_bits(random_bits(seed) + epoch) + purpose);
}

}  // namespace

DocumentTable::DocumentTable(const std::vector<TokenFile>& files) : files_(files) {
  first_.push_back(0);
  for (const TokenFile& file : files) {
    first_.push_back(first_.back() + file.num_documents());
    tokens_ += file.num_tokens();
  }
}

DocumentTable::Place DocumentTable::place(std::uint64_t document) const {
  const auto next = std::upper_bound(first_.begin(), first_.end(), document);
  const auto file = static_cast<std::size_t>(next - first_.begin()) - 1;
  return {&files_[file], document - first_[file]};
}

EpochOrder::EpochOrder(const DocumentTable& table, std::int64_t sequence_length, std::uint64_t seed,
                       std::uint64_t epoch, bool shuffle)
    : table_(table),
      sequence_length_(sequence_length),
      epoch_(epoch),
      shuffle_(shuffle),
      documents_(shuffle_key(seed, epoch, 1), table.size()),
      samples_(shuffle_key(seed, epoch, 2), num_samples(table.tokens(), sequence_length)) {
  starts_.reserve(table.size() / kStride + 1);
  std::uint64_t start = 0;
  for (std::uint64_t i = 0; i < table.size(); ++i) {
    if (i % kStride == 0) starts_.push_back(start);
    const auto [file, document] = table.place(document_at(i));
    start += file->index().document_tokens(document);
  }
  SORTIE_CHECK(start == table.tokens());
}

Result<> EpochOrder::read(std::uint64_t index, std::int64_t vocab_size,
                          std::span<std::int32_t> out) const {
  SORTIE_CHECK(out.size() == static_cast<std::size_t>(sequence_length_) + 1);
  const std::uint64_t sample = shuffle_ ? samples_(index) : index;
  const std::uint64_t begin = sample * static_cast<std::uint64_t>(sequence_length_);
  const auto block = static_cast<std::uint64_t>(
      std::upper_bound(starts_.begin(), starts_.end(), begin) - starts_.begin() - 1);
  std::uint64_t start = starts_[block];  // position of document `i` in the stream
  for (std::uint64_t i = block * kStride; !out.empty(); ++i) {
    const auto [file, document] = table_.place(document_at(i));
    const std::uint64_t tokens = file->index().document_tokens(document);
    const std::uint64_t skip = begin > start ? std::min(begin - start, tokens) : 0;
    const std::size_t count = std::min<std::uint64_t>(tokens - skip, out.size());
    if (count > 0)
      SORTIE_TRY(
          file->read(file->index().document_begin(document) + skip, vocab_size, out.first(count)));
    out = out.subspan(count);
    start += tokens;
  }
  return {};
}

}  // namespace sortie::trainer
