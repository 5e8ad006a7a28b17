// RankSet: ranks that have something in common, for messages.
#pragma once

#include <cstddef>
#include <set>
#include <string>

#include "common/cpu/cpu_list.h"

namespace sortie::trainer {

class RankSet {
 public:
  RankSet() = default;
  RankSet(int rank, const std::string& host) { add(rank, host); }
  /// Adds a rank; in ascending order. An empty `host` is unknown.
  void add(int rank, const std::string& host);
  std::size_t size() const { return ranks_.size(); }
  bool empty() const { return ranks_.empty(); }
  const std::set<std::string>& hosts() const { return hosts_; }

  std::string rank_text() const;  // "rank 3", "ranks 0-2,4"
  std::string host_text() const;  // "h[01-03]"
  /// "ranks 0-2,4 (h[01-03])"; without the hosts if none is known.
  std::string text() const;

 private:
  cpu::CpuList ranks_;
  std::set<std::string> hosts_;
};

}  // namespace sortie::trainer
