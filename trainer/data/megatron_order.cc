#include "trainer/data/megatron_order.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "common/base/check.h"
#include "trainer/data/numpy_random.h"

namespace sortie::trainer {

MegatronOrder::MegatronOrder(const DocumentTable& table, std::int64_t sequence_length,
                             std::uint32_t seed, std::uint64_t samples)
    : table_(table), sequence_length_(sequence_length) {
  const auto length = static_cast<std::uint64_t>(sequence_length);
  const std::uint64_t epoch_tokens = table.tokens();
  const std::uint64_t epochs =
      std::max<std::uint64_t>(1, (samples * length + 1 + epoch_tokens - 1) / epoch_tokens);
  const std::uint64_t total = (epochs * epoch_tokens - 1) / length;
  const std::uint64_t before_last = epochs == 1 ? 0 : ((epochs - 1) * epoch_tokens - 1) / length;
  const auto enough =
      static_cast<std::uint64_t>(0.80 * static_cast<double>((epoch_tokens - 1) / length));
  const bool separate = epochs > 1 && samples - std::min(samples, before_last) < enough;
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max() - 1;
  epochs_ = epochs;
  last_apart_ = separate;
  SORTIE_CHECK(total < kMost && epochs * table.size() < kMost, "{} samples of {} epochs", total,
               epochs);

  documents_.resize(epochs * table.size());
  for (std::size_t i = 0; i < documents_.size(); ++i)
    documents_[i] = static_cast<std::uint32_t>(i % table.size());
  shuffled_.resize(total);
  std::iota(shuffled_.begin(), shuffled_.end(), 0u);
  // One generator for all shuffles, in this order.
  NumpyRandom random(seed);
  const auto shuffle_two = [&random](std::span<std::uint32_t> all, std::size_t first) {
    random.shuffle(all.first(first));
    random.shuffle(all.subspan(first));
  };
  shuffle_two(documents_, separate ? documents_.size() - table.size() : documents_.size());
  shuffle_two(shuffled_, separate ? before_last : shuffled_.size());

  std::uint64_t start = 0;
  for (std::uint64_t place = 0; place < documents_.size(); ++place) {
    if (place % kStride == 0) starts_.push_back(start);
    start += tokens_at(place);
  }
}

std::string MegatronOrder::text() const {
  if (epochs_ == 1) return "1 epoch";
  return fmt::format("{} epochs, {}", epochs_,
                     last_apart_ ? "the last apart" : "shuffled together");
}

std::uint64_t MegatronOrder::tokens_at(std::uint64_t place) const {
  const auto [file, document] = table_.place(documents_[place]);
  return file->index().document_tokens(document);
}

std::pair<std::uint64_t, std::uint64_t> MegatronOrder::sample_index(std::uint64_t sample) const {
  const std::uint64_t begin = sample * static_cast<std::uint64_t>(sequence_length_);
  const auto block = static_cast<std::uint64_t>(
      std::upper_bound(starts_.begin(), starts_.end(), begin) - starts_.begin() - 1);
  std::uint64_t place = block * kStride;
  std::uint64_t start = starts_[block];
  while (start + tokens_at(place) <= begin) start += tokens_at(place++);
  return {place, begin - start};
}

Result<> MegatronOrder::read(std::uint64_t index, std::int64_t vocab_size,
                             std::span<std::int32_t> out) const {
  auto [place, skip] = sample_index(shuffled_[index % shuffled_.size()]);
  for (; !out.empty(); ++place, skip = 0) {
    const auto [file, document] = table_.place(documents_[place]);
    const std::size_t count = std::min<std::uint64_t>(tokens_at(place) - skip, out.size());
    if (count > 0)
      SORTIE_TRY(
          file->read(file->index().document_begin(document) + skip, vocab_size, out.first(count)));
    out = out.subspan(count);
  }
  return {};
}

}  // namespace sortie::trainer
