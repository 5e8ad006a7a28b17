// RankStore: a small key-value store through which the ranks of an attempt find each other before
// they are connected, and ask each other when a collective makes no progress. Questions are lines
// on SORTIE_SOCKET; the answer (wire::RankAnswer) has the same number:
//   {"type":"store","number":7,"do":"put","key":K,"value":V}  ->  {"type":"stored","number":7}
//   {"type":"store","number":8,"do":"get","key":K}            ->
//   {"type":"stored","number":8,"value":V}
// or {"type":"stored","number":N,"error":TEXT}. A get is answered as soon as the key has a value. A
// rank may repeat a question that was not answered.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sortie::launcher {

/// No I/O. The size is bounded whatever ranks send.
class RankStore {
 public:
  static constexpr std::size_t kMostKeys = 1u << 16;  // a rank may have keys of its own
  static constexpr std::size_t kMostKeyBytes = 128, kMostValueBytes = 4096;
  static constexpr std::size_t kMostBytes = 32u << 20;   // of all values
  static constexpr std::size_t kMostWaiting = 1u << 17;  // questions that wait for a value

  /// Sends `line` to `rank`.
  using Answer = std::function<void(std::uint32_t rank, std::string line)>;

  static bool is_question(const nlohmann::json& event);
  /// Handles a question of a rank and calls `answer` for every rank that can be answered. A key
  /// keeps its first value; another value is refused, the same value is accepted.
  void take(std::uint32_t rank, const nlohmann::json& question, const Answer& answer);

 private:
  struct Entry {
    std::string value;
    bool there = false;
    std::map<std::uint32_t, std::uint64_t> waiting;  // rank -> number of its last question
  };
  std::map<std::string, Entry> entries_;
  std::size_t bytes_ = 0;    // of all values
  std::size_t waiting_ = 0;  // of all entries
};

}  // namespace sortie::launcher
