#include "trainer/outer/exchange.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "common/base/check.h"
#include "common/base/elapsed.h"
#include "trainer/outer/exchange_message.h"

namespace sortie::trainer::outer {
namespace {

using Clock = std::chrono::steady_clock;

/// Values [begin, end) of the vector.
struct Range {
  std::size_t begin = 0, end = 0;
  std::size_t size() const { return end - begin; }
};

class OwnerReduce {
 public:
  OwnerReduce(SiteLinks& links, const training::OuterExchange& order, std::size_t self,
              const ExchangeSettings& settings, std::span<const float> delta, std::span<float> mean,
              ErrorFeedback* feedback, ExchangeMemory& memory, ExchangeFigures& figures)
      : links_(links),
        order_(order),
        self_(self),
        settings_(settings),
        work_{.threads = settings.threads},
        delta_(delta),
        mean_(mean),
        memory_(memory),
        figures_(figures) {
    const auto block = static_cast<std::size_t>(settings_.format.block);
    piece_ = std::max(settings_.piece / block, std::size_t{1}) * block;
    piece_bytes_ = sizeof(ExchangeHeader) + encoded_bytes(settings_.format, piece_);
    if (feedback == nullptr) return;
    error_ = feedback->error();
    next_error_ = feedback->begin();
  }

  Result<> run();

 private:
  std::size_t members() const { return order_.members.size(); }
  float weight(std::size_t member) const {
    return static_cast<float>(order_.members[member].weight);
  }
  const std::string& site(std::size_t member) const { return order_.members[member].site; }
  /// Piece `number` of the chunk of `owner`; empty if it has fewer.
  Range piece(std::size_t owner, std::size_t number) const;
  std::size_t pieces() const;

  Result<> window(std::size_t first, std::size_t last, std::size_t lag);
  Result<> send_changes(std::size_t number);
  Result<> reduce(std::size_t number);
  Result<> take_means(std::size_t number);

  /// This site's change of these values, plus the error; valid until the next call.
  std::span<const float> change(const Range& range);
  ExchangeHeader header(ExchangePhase phase, std::size_t owner, const Range& range) const;
  /// Memory of a message, with its header; valid until the end of the window.
  std::span<std::byte> message(const ExchangeHeader& header);
  Result<> send(std::size_t peer, std::span<const std::byte> bytes);
  /// Receives a message and returns its codes; valid until the next call.
  Result<std::span<const std::byte>> receive(std::size_t peer, const ExchangeHeader& expected);
  std::unexpected<Error> malformed(std::size_t peer) const;

  SiteLinks& links_;
  const training::OuterExchange& order_;
  const std::size_t self_;
  const ExchangeSettings& settings_;
  const WireWork work_;
  const std::span<const float> delta_;
  const std::span<float> mean_;
  std::span<const float> error_;
  std::span<float> next_error_;  // empty: no feedback
  ExchangeMemory& memory_;
  ExchangeFigures& figures_;
  std::size_t piece_ = 0, piece_bytes_ = 0;
  std::span<std::byte> room_;  // unused memory of the window
  std::vector<std::byte> received_;
  std::vector<float> own_, sum_, back_;
};

Range OwnerReduce::piece(std::size_t owner, std::size_t number) const {
  const auto block = static_cast<std::size_t>(settings_.format.block);
  const std::size_t blocks = (delta_.size() + block - 1) / block;
  const std::size_t begin = blocks * owner / members() * block;
  const std::size_t end = std::min(blocks * (owner + 1) / members() * block, delta_.size());
  const std::size_t from = std::min(begin + number * piece_, end);
  return {from, std::min(from + piece_, end)};
}

std::size_t OwnerReduce::pieces() const {
  std::size_t most = 0;
  for (std::size_t owner = 0; owner < members(); ++owner) {
    std::size_t here = 0;
    while (piece(owner, here).size() > 0) ++here;
    most = std::max(most, here);
  }
  return most;
}

std::span<const float> OwnerReduce::change(const Range& range) {
  const auto delta = delta_.subspan(range.begin, range.size());
  if (error_.empty()) return delta;
  own_.resize(range.size());
  const float* error = error_.data() + range.begin;
  for (std::size_t i = 0; i < own_.size(); ++i) own_[i] = delta[i] + error[i];
  return own_;
}

ExchangeHeader OwnerReduce::header(ExchangePhase phase, std::size_t owner,
                                   const Range& range) const {
  return {.epoch = order_.epoch,
          .round = order_.round,
          .fragment = order_.fragment,
          .phase = phase,
          .wire = static_cast<std::uint64_t>(settings_.format.wire),
          .block = static_cast<std::uint64_t>(settings_.format.block),
          .chunk = owner,
          .begin = range.begin,
          .values = range.size(),
          .elements = delta_.size()};
}

std::span<std::byte> OwnerReduce::message(const ExchangeHeader& header) {
  const std::size_t size = sizeof(header) + encoded_bytes(settings_.format, header.values);
  const auto bytes = room_.first(size);
  room_ = room_.subspan(size);
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes;
}

Result<> OwnerReduce::send(std::size_t peer, std::span<const std::byte> bytes) {
  figures_.sent += bytes.size();
  return links_.send(peer, kExchangeTag, bytes);
}

Result<std::span<const std::byte>> OwnerReduce::receive(std::size_t peer,
                                                        const ExchangeHeader& expected) {
  received_.resize(sizeof(expected) + encoded_bytes(settings_.format, expected.values));
  const auto begin = Clock::now();
  SORTIE_TRY(links_.receive(peer, kExchangeTag, received_));
  figures_.waited += seconds_since(begin);
  const std::string wrong = difference(received_, expected);
  if (!wrong.empty())
    return fail(ErrorCode::protocol,
                fmt::format("exchange of round {}: site {} sent something else: {}; the exchange "
                            "is repeated",
                            order_.round, site(peer), wrong));
  return std::span<const std::byte>(received_).subspan(sizeof(expected));
}

std::unexpected<Error> OwnerReduce::malformed(std::size_t peer) const {
  return fail(ErrorCode::protocol,
              fmt::format("exchange of round {}: site {} sent codes that stand for no number; the "
                          "exchange is repeated",
                          order_.round, site(peer)));
}

Result<> OwnerReduce::send_changes(std::size_t number) {
  for (std::size_t step = 1; step < members(); ++step) {
    // Members begin with different receivers.
    const std::size_t owner = (self_ + step) % members();
    const Range range = piece(owner, number);
    if (range.size() == 0) continue;
    if (weight(self_) == 0) {
      if (!next_error_.empty())
        std::copy_n(error_.begin() + static_cast<std::ptrdiff_t>(range.begin), range.size(),
                    next_error_.begin() + static_cast<std::ptrdiff_t>(range.begin));
      continue;
    }
    const auto bytes = message(header(ExchangePhase::change, owner, range));
    const auto codes = bytes.subspan(sizeof(ExchangeHeader));
    const auto values = change(range);
    if (!encode(settings_.format, values, codes, work_))
      return fail(ErrorCode::diverged,
                  fmt::format("exchange of round {}: the change of site {} is not finite; the site "
                              "has to abstain",
                              order_.round, site(self_)));
    SORTIE_TRY(send(owner, bytes));
    if (next_error_.empty()) continue;
    back_.resize(range.size());
    SORTIE_CHECK(decode(settings_.format, codes, back_, work_));
    float* lost = next_error_.data() + range.begin;
    for (std::size_t i = 0; i < range.size(); ++i) lost[i] = values[i] - back_[i];
  }
  return {};
}

Result<> OwnerReduce::reduce(std::size_t number) {
  const Range range = piece(self_, number);
  if (range.size() == 0) return {};
  sum_.assign(range.size(), 0.0f);
  for (std::size_t member = 0; member < members(); ++member) {
    const float part = weight(member);
    if (part == 0) continue;
    if (member == self_) {
      const auto values = change(range);
      for (std::size_t i = 0; i < sum_.size(); ++i) sum_[i] += part * values[i];
      continue;
    }
    SORTIE_ASSIGN_OR_RETURN(const auto codes,
                            receive(member, header(ExchangePhase::change, self_, range)));
    if (!decode_add(settings_.format, part, codes, sum_, work_)) return malformed(member);
  }
  const auto bytes = message(header(ExchangePhase::mean, self_, range));
  const auto codes = bytes.subspan(sizeof(ExchangeHeader));
  if (!encode(settings_.format, sum_, codes, work_))
    return fail(ErrorCode::diverged,
                fmt::format("exchange of round {}: the sum of all changes is not finite at site "
                            "{}; the round can not be done with these members",
                            order_.round, site(self_)));
  for (std::size_t step = 1; step < members(); ++step)
    SORTIE_TRY(send((self_ + step) % members(), bytes));
  const auto mean = mean_.subspan(range.begin, range.size());
  SORTIE_CHECK(decode(settings_.format, codes, mean, work_));
  double signal = 0.0, noise = 0.0;
  for (std::size_t i = 0; i < sum_.size(); ++i) {
    const float lost = sum_[i] - mean[i];
    signal += static_cast<double>(sum_[i]) * static_cast<double>(sum_[i]);
    noise += static_cast<double>(lost) * static_cast<double>(lost);
  }
  figures_.signal += signal;
  figures_.noise += noise;
  if (next_error_.empty()) return {};
  float* next = next_error_.data() + range.begin;
  if (weight(self_) > 0) {
    const float part = weight(self_);
    for (std::size_t i = 0; i < sum_.size(); ++i) next[i] = (sum_[i] - mean[i]) / part;
  } else {  // its own error was not sent; the error of the sum counts as for an equal weight
    const float* error = error_.data() + range.begin;
    const auto share = static_cast<float>(members());
    for (std::size_t i = 0; i < sum_.size(); ++i) next[i] = error[i] + (sum_[i] - mean[i]) * share;
  }
  return {};
}

Result<> OwnerReduce::take_means(std::size_t number) {
  for (std::size_t owner = 0; owner < members(); ++owner) {
    const Range range = piece(owner, number);
    if (owner == self_ || range.size() == 0) continue;
    SORTIE_ASSIGN_OR_RETURN(const auto codes,
                            receive(owner, header(ExchangePhase::mean, owner, range)));
    if (!decode(settings_.format, codes, mean_.subspan(range.begin, range.size()), work_))
      return malformed(owner);
  }
  return {};
}

/// Exchanges pieces [first, last). Changes are sent `lag` pieces before sums are computed, and sums
/// `lag` pieces before means are received. At the end all members have received what was sent, so
/// flush() does not depend on their progress.
Result<> OwnerReduce::window(std::size_t first, std::size_t last, std::size_t lag) {
  const std::size_t size = (last - first) * members() * piece_bytes_;
  if (members() == 1) {  // without open(), links may still read the shared memory: it is not used
    received_.resize(size);
    room_ = received_;
  } else {
    room_ = memory_.bytes(size);
  }
  for (std::size_t step = first; step < last + 2 * lag; ++step) {
    if (step < last) SORTIE_TRY(send_changes(step));
    if (step >= first + lag && step < last + lag) SORTIE_TRY(reduce(step - lag));
    if (step >= first + 2 * lag) SORTIE_TRY(take_means(step - 2 * lag));
  }
  if (members() == 1) return {};
  const auto begin = Clock::now();
  SORTIE_TRY(links_.flush());
  figures_.waited += seconds_since(begin);
  return {};
}

Result<> OwnerReduce::run() {
  if (members() > 1) SORTIE_TRY(links_.open(order_, self_));
  const std::size_t all = pieces();
  const std::size_t peers = members() - 1;
  const std::size_t in_window =
      peers == 0 ? 1 : std::max(settings_.window / (members() * piece_bytes_), std::size_t{1});
  const std::size_t lag =
      peers == 0 ? 0
                 : std::clamp(settings_.ahead / (peers * piece_bytes_), std::size_t{1}, in_window);
  for (std::size_t first = 0; first < all; first += in_window)
    SORTIE_TRY(window(first, std::min(first + in_window, all), lag));
  figures_.hash = hash_of(mean_);
  return {};
}

Result<> fit_to_add(const training::OuterExchange& order) {
  double total = 0.0;
  for (const auto& member : order.members) {
    if (!std::isfinite(member.weight) || member.weight < 0)
      return fail(ErrorCode::protocol, fmt::format("exchange of round {}: weight of site {} is {}",
                                                   order.round, member.site, member.weight));
    total += member.weight;
  }
  if (total > 0) return {};
  return fail(ErrorCode::protocol,
              fmt::format("exchange of round {}: no site has a weight", order.round));
}

}  // namespace

std::span<std::byte> ExchangeMemory::bytes(std::size_t size) {
  if (size > size_) {
    bytes_.reset();  // first, so that only one block exists at a time
    bytes_ = std::make_unique_for_overwrite<std::byte[]>(size);
    size_ = size;
  }
  return {bytes_.get(), size};
}

Result<> exchange(SiteLinks& links, const training::OuterExchange& order, std::size_t self,
                  const ExchangeSettings& settings, std::span<const float> delta,
                  std::span<float> mean, ErrorFeedback* feedback, ExchangeMemory& memory,
                  ExchangeFigures* figures) {
  SORTIE_CHECK(self < order.members.size() && mean.size() == delta.size(), "{} of {}, {} of {}",
               self, order.members.size(), mean.size(), delta.size());
  SORTIE_CHECK(feedback == nullptr || feedback->error().size() == delta.size());
  ExchangeFigures own;
  ExchangeFigures& of_this = figures == nullptr ? own : *figures;
  of_this = {};
  auto done = fit_to_add(order);
  if (done)
    done = OwnerReduce(links, order, self, settings, delta, mean, feedback, memory, of_this).run();
  if (done) return {};
  std::ranges::fill(mean, std::numeric_limits<float>::quiet_NaN());
  if (feedback != nullptr) feedback->rollback();
  return done;
}

std::uint64_t hash_of(std::span<const float> values) {
  return XXH3_64bits(values.data(), values.size_bytes());
}

}  // namespace sortie::trainer::outer
