#include "launcher/supervise/rank_store.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "common/base/json_text.h"

namespace sortie::launcher {
namespace {

std::string text_of(const nlohmann::json& question, const char* key) {
  const auto found = question.find(key);
  return found != question.end() && found->is_string() ? found->get<std::string>() : "";
}

std::string line_of(std::uint64_t number, const char* member = nullptr,
                    const std::string& text = {}) {
  nlohmann::json line = {{"type", "stored"}, {"number", number}};
  if (member != nullptr) line[member] = text;
  return json_text(line);
}

}  // namespace

bool RankStore::is_question(const nlohmann::json& event) {
  return event["type"] == "store" && event.contains("do");
}

void RankStore::take(std::uint32_t rank, const nlohmann::json& question, const Answer& answer) {
  const auto number_at = question.find("number");
  const std::uint64_t number = number_at != question.end() && number_at->is_number_unsigned()
                                   ? number_at->get<std::uint64_t>()
                                   : 0;
  const auto refuse = [&](const std::string& why) { answer(rank, line_of(number, "error", why)); };
  const std::string what = text_of(question, "do"), key = text_of(question, "key");
  if (what != "put" && what != "get") return refuse("do: put or get is expected");
  if (key.empty() || key.size() > kMostKeyBytes)
    return refuse(fmt::format("key: a text of 1 to {} bytes is expected", kMostKeyBytes));
  if (!entries_.contains(key) && entries_.size() == kMostKeys)
    return refuse(fmt::format("the store has its {} keys", kMostKeys));
  if (what == "get") {
    Entry& entry = entries_[key];
    if (entry.there) return answer(rank, line_of(number, "value", entry.value));
    if (!entry.waiting.contains(rank)) {
      if (waiting_ == kMostWaiting)
        return refuse(fmt::format("{} questions wait for values already", kMostWaiting));
      ++waiting_;
    }
    entry.waiting[rank] = number;
    return;
  }
  const std::string value = text_of(question, "value");
  if (value.empty() || value.size() > kMostValueBytes)
    return refuse(fmt::format("value: a text of 1 to {} bytes is expected", kMostValueBytes));
  Entry& entry = entries_[key];
  if (entry.there && entry.value != value) return refuse(key + " has another value already");
  if (!entry.there) {
    if (bytes_ + value.size() > kMostBytes)
      return refuse(fmt::format("the store has its {} bytes", kMostBytes));
    bytes_ += value.size();
  }
  entry.value = value;
  entry.there = true;
  answer(rank, line_of(number));
  for (const auto& [waiting, asked] : entry.waiting)
    answer(waiting, line_of(asked, "value", value));
  waiting_ -= entry.waiting.size();
  entry.waiting.clear();
}

}  // namespace sortie::launcher
