#include "trainer/data/scaling_order.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "common/base/check.h"
#include "trainer/data/numpy_random.h"
#include "trainer/storage/sha256.h"

namespace sortie::trainer {
namespace {

/// Adds in the order in which numpy adds, so that a share close to a whole number is rounded alike.
double numpy_sum(std::span<const double> values) {
  constexpr std::size_t kLanes = 8, kBlock = 128;
  const std::size_t n = values.size();
  if (n > kBlock) {
    const std::size_t half = n / 2 - n / 2 % kLanes;
    return numpy_sum(values.first(half)) + numpy_sum(values.subspan(half));
  }
  double sum = 0.0;
  std::size_t i = 0;
  if (n >= kLanes) {
    double lane[kLanes];
    std::copy_n(values.begin(), kLanes, lane);
    for (i = kLanes; i + kLanes <= n; i += kLanes)
      for (std::size_t k = 0; k < kLanes; ++k) lane[k] += values[i + k];
    sum = ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
  }
  for (; i < n; ++i) sum += values[i];
  return sum;
}

void divide(std::vector<double>& values, double by) {
  for (double& value : values) value /= by;
}

}  // namespace

ScalingPacking::ScalingPacking(const DocumentTable& table, std::int64_t sequence_length,
                               std::uint32_t seed)
    : table_(table), documents_(table.size()) {
  std::iota(documents_.begin(), documents_.end(), 0u);
  NumpyRandom(seed).shuffle(std::span(documents_));
  const auto wanted = static_cast<std::uint64_t>(sequence_length) + 1;
  std::uint64_t have = 0;  // tokens in the current sample
  Start start{};
  for (std::uint64_t place = 0; place < documents_.size(); ++place) {
    const std::uint64_t tokens = tokens_at(place);
    // The last token of a piece is only a target, so a piece of one token has no input.
    for (std::uint64_t at = 0; at + 1 < tokens;) {
      if (have == 0) start = {static_cast<std::uint32_t>(place), static_cast<std::uint32_t>(at)};
      const std::uint64_t end = std::min(tokens, at + wanted - have);
      have += end - at;
      if (have == wanted) {
        starts_.push_back(start);
        have = 0;
      }
      at = end - 1;
    }
  }
}

std::uint64_t ScalingPacking::tokens_at(std::uint64_t place) const {
  const auto [file, document] = table_.place(documents_[place]);
  return file->index().document_tokens(document);
}

Result<> ScalingPacking::read(std::uint64_t index, std::int64_t vocab_size,
                              std::span<std::int32_t> out) const {
  auto [place, skip] = starts_[index];
  for (; !out.empty(); ++place, skip = 0) {
    const std::uint64_t tokens = tokens_at(place);
    if (skip + 1 >= tokens) continue;
    const auto [file, document] = table_.place(documents_[place]);
    const std::size_t count = std::min<std::uint64_t>(tokens - skip, out.size());
    SORTIE_TRY(
        file->read(file->index().document_begin(document) + skip, vocab_size, out.first(count)));
    out = out.subspan(count);
  }
  return {};
}

std::vector<std::uint64_t> scaling_shares(std::span<const std::uint64_t> sizes,
                                          std::span<const double> weights) {
  std::vector<double> counts, share;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) continue;
    counts.push_back(static_cast<double>(sizes[i]));
    share.push_back(weights.empty() ? 0.0 : weights[i]);
  }
  if (counts.empty()) return std::vector<std::uint64_t>(sizes.size());
  if (weights.empty()) {
    // Scaling weighs by number of samples with exponent 1. Every weight is then 1 except for
    // rounding errors, which are reproduced because they affect the result.
    std::vector<double> part = counts;
    divide(part, numpy_sum(counts));
    share = part;
    divide(share, numpy_sum(part));
    for (std::size_t i = 0; i < share.size(); ++i) share[i] *= 1.0 / part[i];
  }
  divide(share, numpy_sum(share));
  divide(share, *std::ranges::max_element(share));
  std::vector<std::uint64_t> shares;
  for (std::size_t i = 0, full = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) {
      shares.push_back(0);
      continue;
    }
    shares.push_back(
        std::max<std::uint64_t>(1, static_cast<std::uint64_t>(share[full] * counts[full])));
    ++full;
  }
  return shares;
}

std::vector<std::uint16_t> scaling_blend(std::span<const std::uint64_t> shares) {
  std::vector<std::uint64_t> taken(shares.size());
  std::vector<std::uint16_t> picks;
  const std::uint64_t all = std::accumulate(shares.begin(), shares.end(), std::uint64_t{0});
  picks.reserve(all);
  while (picks.size() < all) {
    std::size_t best = 0;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < shares.size(); ++i) {
      if (shares[i] == 0) continue;
      const double part = static_cast<double>(taken[i]) / static_cast<double>(shares[i]);
      if (part >= least) continue;
      best = i;
      least = part;
    }
    picks.push_back(static_cast<std::uint16_t>(best));
    ++taken[best];
  }
  return picks;
}

ScalingOrder::Source::Source(TokenFile file)
    : files([&file] {
        std::vector<TokenFile> one;
        one.push_back(std::move(file));
        return one;
      }()),
      table(files) {}

Result<std::unique_ptr<ScalingOrder>> ScalingOrder::open(ScalingOptions options) {
  SORTIE_CHECK(options.sequence_length > 0 && options.vocab_size > 0 && options.group > 0);
  if (options.prefixes.empty())
    return fail(ErrorCode::data, "data: no prefix given; set data.data_prefixes");
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
  std::unique_ptr<ScalingOrder> order(new ScalingOrder(std::move(options)));
  for (const std::string& prefix : order->options_.prefixes) {
    SORTIE_ASSIGN_OR_RETURN(TokenFile file, TokenFile::open(prefix));
    auto source = std::make_unique<Source>(std::move(file));
    if (source->table.size() >= kMost)
      return fail(ErrorCode::data, fmt::format("{}: {} documents; data.sampler = scaling counts "
                                               "them with 32 bits",
                                               prefix, source->table.size()));
    order->sources_.push_back(std::move(source));
  }
  // Room for later epochs: epoch e uses seed + e.
  if (order->options_.seed > kMost - (1u << 20))
    return fail(ErrorCode::data, fmt::format("trainer.seed: {} is too large for data.sampler = "
                                             "scaling, whose seeds have 32 bits",
                                             order->options_.seed));
  const Epoch& first = order->epoch(0);
  for (std::size_t i = 0; i < first.packed.size(); ++i)
    if (first.packed[i].size() == 0)
      return fail(ErrorCode::data,
                  fmt::format("{}: {} tokens fill no sample of {} + 1; give more text or a smaller "
                              "model.sequence_length",
                              order->options_.prefixes[i], order->sources_[i]->table.tokens(),
                              order->options_.sequence_length));
  order->per_epoch_ = first.size() / order->options_.group * order->options_.group;
  if (order->per_epoch_ == 0)
    return fail(ErrorCode::data,
                fmt::format("{}: {} samples, but all ranks take {} at a time; give more text, or a "
                            "smaller topology.micro_batch_size",
                            order->options_.prefixes.front(), first.size(), order->options_.group));
  return order;
}

const ScalingOrder::Epoch& ScalingOrder::epoch(std::uint64_t number) {
  constexpr std::size_t kKept = 2;
  const auto found =
      std::ranges::find_if(epochs_, [&](const Epoch& epoch) { return epoch.number == number; });
  if (found != epochs_.end()) {
    epochs_.splice(epochs_.begin(), epochs_, found);
    return epochs_.front();
  }
  Epoch& epoch = epochs_.emplace_front(Epoch{number, {}, {}, {}});
  if (epochs_.size() > kKept) epochs_.pop_back();
  std::vector<std::uint64_t> sizes;
  for (const auto& source : sources_) {
    epoch.packed.emplace_back(source->table, options_.sequence_length,
                              static_cast<std::uint32_t>(options_.seed + number));
    sizes.push_back(epoch.packed.back().size());
  }
  if (sources_.size() == 1) return epoch;
  epoch.picks = scaling_blend(scaling_shares(sizes, options_.weights));
  std::vector<std::uint64_t> taken(sources_.size());
  for (std::size_t i = 0; i < epoch.picks.size(); ++i) {
    if (i % kStride == 0) epoch.before.insert(epoch.before.end(), taken.begin(), taken.end());
    ++taken[epoch.picks[i]];
  }
  return epoch;
}

Result<> ScalingOrder::read_sample(std::uint64_t sample, std::span<std::int32_t> out) {
  const Epoch& now = epoch(sample / per_epoch_);
  if (now.size() == 0)
    return fail(ErrorCode::data,
                fmt::format("{}: epoch {} is packed into no sample; give more text",
                            options_.prefixes.front(), now.number));
  const std::uint64_t index = sample % per_epoch_ % now.size();
  if (now.picks.empty()) return now.packed[0].read(index, options_.vocab_size, out);
  const std::uint64_t block = index / kStride;
  const std::size_t source = now.picks[index];
  std::uint64_t place = now.before[block * sources_.size() + source];
  for (std::uint64_t i = block * kStride; i < index; ++i) place += now.picks[i] == source ? 1 : 0;
  return now.packed[source].read(place, options_.vocab_size, out);
}

std::string ScalingOrder::fingerprint() const {
  std::string text;
  for (const auto& source : sources_) text += source->files.front().fingerprint();
  return sha256_hex(text);
}

}  // namespace sortie::trainer
