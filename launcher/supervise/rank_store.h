// RankStore: a few small texts that ranks of an attempt leave for each other under keys, so that
// they find each other before they are connected. Lines on SORTIE_SOCKET, and answers
// (wire::RankAnswer), of the same number:
//   {"type":"store","number":7,"do":"put","key":K,"value":V}  ->  {"type":"stored","number":7}
//   {"type":"store","number":8,"do":"get","key":K}            ->
//   {"type":"stored","number":8,"value":V}
// or {"type":"stored","number":N,"error":TEXT}. A get is answered when there is a value. A question
// that is not answered may be asked again.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sortie::launcher {

/// No I/O. Bounded whatever ranks send.
class RankStore {
 public:
  static constexpr std::size_t kMostKeys = 1024, kMostKeyBytes = 128, kMostValueBytes = 4096;

  /// `answer` gets a rank and its line.
  using Answer = std::function<void(std::uint32_t rank, std::string line)>;

  static bool is_question(const nlohmann::json& event);
  /// Of a rank. A key keeps its first value; the same again is no error.
  void take(std::uint32_t rank, const nlohmann::json& question, const Answer& answer);

 private:
  struct Entry {
    std::string value;
    bool there = false;
    std::map<std::uint32_t, std::uint64_t> waiting;  // ranks, and the number of their last question
  };
  std::map<std::string, Entry> entries_;
};

}  // namespace sortie::launcher
