#include "trainer/state/rank_texts.h"

#include <fmt/core.h>

#include <charconv>

#include "common/base/check.h"

namespace sortie::trainer {
namespace {

constexpr char kValue = 'v', kError = 'e';

/// Removes a number and the `end` after it from the front of `text`; returns the number.
std::size_t take_number(std::string_view& text, char end) {
  std::size_t number = 0;
  const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto length = static_cast<std::size_t>(at - text.data());
  SORTIE_CHECK(error == std::errc{} && length < text.size() && *at == end, "packed text");
  text.remove_prefix(length + 1);
  return number;
}

}  // namespace

std::string pack(const std::vector<Result<std::string>>& results) {
  // "v5:hello", "e9,4:gone": kind, an error's code, length, text.
  std::string packed;
  for (const Result<std::string>& result : results)
    packed += result ? fmt::format("{}{}:{}", kValue, result->size(), *result)
                     : fmt::format("{}{},{}:{}", kError, static_cast<int>(result.error().code),
                                   result.error().message.size(), result.error().message);
  return packed;
}

std::vector<Result<std::string>> unpack(std::string_view text) {
  std::vector<Result<std::string>> results;
  while (!text.empty()) {
    const char kind = text.front();
    SORTIE_CHECK(kind == kValue || kind == kError, "packed text");
    text.remove_prefix(1);
    const std::size_t code = kind == kError ? take_number(text, ',') : 0;
    const std::size_t length = take_number(text, ':');
    SORTIE_CHECK(length <= text.size(), "packed text");
    std::string part(text.substr(0, length));
    text.remove_prefix(length);
    if (kind == kValue)
      results.emplace_back(std::move(part));
    else
      results.emplace_back(std::unexpected(Error{static_cast<ErrorCode>(code), std::move(part)}));
  }
  return results;
}

Result<> share_outcome(Communicator& communicator, const Result<>& outcome) {
  Result<std::string> mine;
  if (!outcome) mine = std::unexpected(outcome.error());
  const auto told = unpack(communicator.all_gather(pack({mine}))[0]);
  return told.front() ? Result<>() : std::unexpected(told.front().error());
}

Result<> share_failure_of_any(Communicator& communicator, const Result<>& outcome) {
  Result<std::string> mine;
  if (!outcome) mine = std::unexpected(outcome.error());
  const auto all = communicator.all_gather(pack({mine}));
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (auto told = unpack(all[rank]); !told.front())
      return std::unexpected(
          rank == 0 ? told.front().error()
                    : with_context(told.front().error(), fmt::format("rank {}", rank)));
  return {};
}

}  // namespace sortie::trainer
